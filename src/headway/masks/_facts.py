"""What is known of a mask without evaluating it."""

from __future__ import annotations

from ._base import Mask
from ._by_index import Chunked, Dilated, KeepFirst, Prefix, Window
from ._documents import Documents
from ._functions import Function
from ._joined import And, Or, parts_of
from ._padding import Padding


def is_python(mask: Mask) -> bool:
    """Returns whether a mask, or one of its parts, is a Python function that kernels cannot read.

    Args:
        mask: the mask.
    """
    if joined := parts_of(mask):
        return any(map(is_python, joined))
    return isinstance(mask, Function) or type(mask).foreign


def looks_ahead(mask: Mask | None) -> bool:
    """Whether a mask lets queries attend to later keys, as far as that is known without reading its tensors.

    Args:
        mask: the mask; None hides nothing.
    """
    if type(mask) is And:
        return all(map(looks_ahead, mask.masks))
    if type(mask) is Or:
        return any(map(looks_ahead, mask.masks))
    if type(mask) is Window:
        return mask.right != 0
    return mask is None or type(mask) in (Chunked, Prefix, KeepFirst, Documents, Padding, Dilated)
