"""The parity of bits."""

from torch import Tensor

from ._answers import CountingTask


class Parity(CountingTask):
    """Tells whether the number of ones is odd: 1 0 1 1 = odd."""

    name = "parity"
    source = "Ruoss et al. 2023, arXiv:2305.16843"
    letters = 2
    symbols = ("0", "1", "even", "odd", "=")
    answers = 2

    @staticmethod
    def result(text: Tensor) -> Tensor:
        """Returns the number of ones modulo 2."""
        return text.sum(-1) % 2
