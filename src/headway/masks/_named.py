"""The masks that have names, and what an argument ``mask`` may be."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import torch
from torch import Tensor

from ..errors import HeadwayError, unknown
from ._base import Mask
from ._by_index import Causal, Chunked, Dilated, KeepFirst, Prefix, Window
from ._documents import Documents
from ._functions import MaskMod, from_flex, is_of_flex
from ._padding import Padding
from ._tensors import Boolean

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

AnyMask: TypeAlias = "Mask | Tensor | str | MaskMod | BlockMask | None"
"""What an argument ``mask`` may be, as ``as_mask`` takes it."""

NAMES: dict[str, Mask] = {"causal": Causal(), "documents": Documents(), "padding": Padding()}
"""Masks that need no arguments, by name."""
NEED_ARGUMENTS = {kind.__name__.lower(): kind for kind in (Window, Chunked, Prefix, KeepFirst, Dilated)}
"""Masks that need arguments, by name."""


def as_mask(mask: AnyMask) -> Mask | None:
    """Returns the mask that an argument ``mask`` gives; None hides nothing.

    Args:
        mask: a mask, a boolean tensor, a name of ``NAMES``, a function or BlockMask of FlexAttention, or None.

    Raises:
        HeadwayError: for anything else.
    """
    if mask is None or isinstance(mask, Mask):
        return mask
    if isinstance(mask, Tensor):
        return Boolean(mask)
    if isinstance(mask, str):
        if mask in NAMES:
            return NAMES[mask]
        kind = NEED_ARGUMENTS.get(mask.lower().replace("_", ""))
        if kind is not None:
            raise HeadwayError(f"mask {mask!r} needs arguments: give headway.masks.{kind.__name__}(…)")
        raise unknown("mask", mask, NAMES)
    if is_of_flex(mask):
        return from_flex(mask)
    shown = f"a {type(mask).__name__}" if isinstance(mask, torch.nn.Module) else f"{mask!r}"
    shown = f"the class {mask.__name__}" if isinstance(mask, type) else shown
    raise HeadwayError(
        f"mask is {shown}: give one of headway.masks, such as Causal(), a boolean tensor, or a function "
        "(b, h, q_idx, kv_idx)"
    )


def mask_or_tensor(mask: AnyMask) -> Mask | Tensor | None:
    """Returns the mask that an argument gives. A boolean tensor stays a tensor, whose shape a layer checks itself.

    Args:
        mask: as for ``as_mask``.

    Raises:
        HeadwayError: as ``as_mask`` does.
    """
    return mask if isinstance(mask, Tensor) else as_mask(mask)
