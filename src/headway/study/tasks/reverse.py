"""Reversing a string."""

from torch import Tensor

from ._strings import StringTask


class Reverse(StringTask):
    """Writes a string from its end: a b c > c b a."""

    name = "reverse"
    source = "Kazemnejad et al. 2023, arXiv:2305.19466; Ruoss et al. 2023, arXiv:2305.16843"
    scored = "every letter of the answer"

    @staticmethod
    def output(text: Tensor) -> Tensor:
        """Returns strings from their ends."""
        return text.flip(-1)
