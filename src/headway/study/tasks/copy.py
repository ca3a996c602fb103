"""Copying a string."""

from torch import Tensor

from ._strings import StringTask


class Copy(StringTask):
    """Writes a string again: a b c > a b c."""

    name = "copy"
    source = "Kazemnejad et al. 2023, arXiv:2305.19466"
    scored = "every letter of the copy"

    @staticmethod
    def output(text: Tensor) -> Tensor:
        """Returns the same."""
        return text
