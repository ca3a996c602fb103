"""A sequence over several processes: any encoding, one set of numbers."""

from ._attention import Explanation, attention, explain
from ._shards import Shards
from .methods import METHODS

__all__ = ["METHODS", "Explanation", "Shards", "attention", "explain"]


def __dir__() -> list[str]:
    return __all__
