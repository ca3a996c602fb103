"""The methods by which processes share the attention of a sequence."""

from ._base import Method, Traffic
from .gather import Gather

METHODS: dict[str, Method] = {
    "gather": Gather(),
}
"""The methods by name; "auto" takes the first one that can compute a call and that its rule allows."""

__all__ = ["METHODS", "Method", "Traffic"]
