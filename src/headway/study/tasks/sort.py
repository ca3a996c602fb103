"""Sorting letters."""

from torch import Tensor

from ._sequences import LETTERS
from ._strings import StringTask


class Sort(StringTask):
    """Writes the letters of a string in the order of the alphabet: c a b a > a a b c."""

    name = "sort"
    source = "Kazemnejad et al. 2023, arXiv:2305.19466; Bucket Sort in Ruoss et al. 2023, arXiv:2305.16843"
    scored = "every letter of the answer"
    letters = 16
    symbols = (*LETTERS, ">")
    answers = 16

    @staticmethod
    def output(text: Tensor) -> Tensor:
        """Returns strings in order."""
        return text.sort(-1).values

    def order_free(self, length: int) -> float:
        """Returns 1: the answer does not depend on the order."""
        return 1.0
