"""The methods with which processes share the attention of a sequence."""

from ._base import Method, Traffic
from .gather import Gather
from .heads import Heads
from .ring import Ring

METHODS: dict[str, Method] = {
    "ring": Ring(),
    "heads": Heads(),
    "gather": Gather(),
}
"""The methods by name; "auto" takes the first one that can compute a call and that its rule allows."""

__all__ = ["METHODS", "Method", "Traffic"]
