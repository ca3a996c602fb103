"""Counting modulo five."""

from torch import Tensor

from ._answers import CountingTask

PLACES = 5


class ModularCounting(CountingTask):
    """Walks on a circle of five places, one step forward, one back or none at a time: + + 0 - = 1."""

    name = "modular-counting"
    source = "Cycle Navigation in Ruoss et al. 2023, arXiv:2305.16843"
    letters = 3
    symbols = ("-", "0", "+", *(f"at{place}" for place in range(PLACES)), "=")
    answers = PLACES

    @staticmethod
    def result(text: Tensor) -> Tensor:
        """Returns the place at the end."""
        return (text - 1).sum(-1) % PLACES
