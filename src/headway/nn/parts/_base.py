"""The base class of the parts that a layer computes around attention."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from typing import Any, ClassVar, NamedTuple, cast

import torch
from torch import Tensor, nn

from ...errors import HeadwayError, unknown


class LayerSizes(NamedTuple):
    """The sizes of a layer from which its parts are made.

    Attributes:
        embed_dim: the width of the layer's input.
        num_heads: the number of heads of a part's input, which is the output of attention or of the part before it.
        num_kv_heads: the number of key heads.
        head_dim: the width of each of these heads.
        layer: the number of the layer in its stack, from 0.
    """

    embed_dim: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    layer: int


class FirstValues:
    """The values of the first layer of one forward pass, which later layers mix into their own.

    A ``Stack`` makes one for each forward pass of layers that need it. Give one object to all layers of a stack of your
    own, the first layer first.
    """

    def __init__(self) -> None:
        self.values: Tensor | None = None
        """[batch, kv_heads, n, head_dim]; None before the first layer is called."""
        self.with_gradients = True
        """Whether gradients were enabled where the values were computed."""


class Part(nn.Module):
    """The base class of parts: modules around attention that know neither scores nor positions.

    A part acts through three hooks. By default, each returns its first argument. The parts of a layer act in
    the order in which they are given.
    """

    reads_first_values: ClassVar[bool] = False
    """Whether ``values`` reads or sets the values of the first layer."""

    def output_sizes(self, sizes: LayerSizes) -> LayerSizes:
        """Returns the sizes of the output, for the parts that follow.

        Args:
            sizes: the sizes of the part's inputs.
        """
        return sizes

    def values(self, v: Tensor, first: FirstValues | None) -> Tensor:
        """Changes the values of the layer's tokens, before a cache stores them and an encoding transforms them.

        Args:
            v: the values, [batch, kv_heads, n, head_dim].
            first: the values of the first layer.
        """
        return v

    def attended(self, v: Tensor) -> Tensor:
        """Returns the values of all tokens in the form that attention takes, one head for each head of the keys.

        Args:
            v: the values of all tokens, as ``values`` returned them, [batch, heads, m, width].
        """
        return v

    def output(self, out: Tensor, x: Tensor, v: Tensor | None) -> Tensor:
        """Changes the output of attention, before the layer's last projection.

        Args:
            out: the output of attention, [batch, heads, n, width].
            x: the layer's input for these tokens, [batch, n, embed_dim].
            v: the values of the same tokens, as ``values`` returned them, [batch, kv_heads, n, width]; None where
                queries are not the tokens whose values are attended to.
        """
        return out

    def reset_parameters(self) -> None:
        """Resets the parameters to their initial values."""


def parts_of(parts: nn.ModuleList | None) -> Iterable[Part]:
    """Returns the parts of a layer, in their order; none if it has None."""
    return () if parts is None else cast(Iterable[Part], parts)


PartLike = str | Part | Callable[..., Part]
"""A name in PARTS, a part, or a class or function of some of ``LayerSizes`` that makes one."""


def make_part(
    part: PartLike,
    sizes: LayerSizes,
    table: Mapping[str, Callable[..., Part]],
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> Part:
    """Returns a new part for a layer, or the given part.

    Args:
        part: a name, a part, or a function that makes one from some of the sizes, which its arguments name.
        sizes: the sizes of the part's inputs.
        table: the parts by their names.
        device: the device of a part that is made here.
        dtype: its dtype.

    Raises:
        HeadwayError: if the name is unknown, or no part is made.
    """
    if isinstance(part, str):
        if part not in table:
            raise unknown("part", part, table)
        part = table[part]
    if isinstance(part, Part):
        return part
    if not callable(part):
        raise HeadwayError(f"parts has {part!r}: give a name, a Part, or a function of the layer's sizes")
    takes = inspect.signature(part).parameters
    known = {**sizes._asdict(), "device": device, "dtype": dtype}
    given: dict[str, Any] = {name: value for name, value in known.items() if name in takes}
    with nullcontext() if device is None else torch.device(device):
        made = part(**given)
    if not isinstance(made, Part):
        raise HeadwayError(
            f"parts has {part!r}, which makes a {type(made).__name__}: give a function that makes a Part"
        )
    return made if device is None and dtype is None else made.to(device=device, dtype=dtype)
