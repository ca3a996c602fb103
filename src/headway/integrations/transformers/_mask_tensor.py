"""A mask of headway as a tensor without storage, which a model passes to its attention."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..._torch import no_torch_function, tree_leaves, tree_map_only
from ...coordinates import Coordinates
from ...errors import HeadwayError
from ...masks import Causal, Chunked, Mask, Padding, Window
from ._library import ITS_OWN


@dataclass(frozen=True)
class LocatedMask:
    """A mask, or None if every query attends to every key, and the coordinates of queries and keys."""

    mask: Mask | None
    q: Coordinates
    k: Coordinates

    def dense(self) -> Tensor:
        """The boolean mask [b, 1, n, m]."""
        if self.mask is None:
            return torch.ones(1, 1, self.q.index.shape[1], self.k.index.shape[1], device=self.q.index.device).bool()
        return self.mask.allowed(self.q, self.k)

    def first_keys(self, count: int) -> LocatedMask | None:
        """The same for the first ``count`` keys; None if the mask holds tensors with an entry for each key."""
        if any(type(part) not in (Causal, Window, Chunked, Padding) for part in leaves(self.mask)):
            return None
        return replace(self, k=self.k.rows(0, count))


def leaves(mask: Mask | None) -> list[Mask]:
    if mask is None:
        return []
    return [leaf for part in getattr(mask, "masks", ()) for leaf in leaves(part)] or [mask]


class MaskTensor(Tensor):
    """A boolean tensor [batch, 1, n, m] without storage, which holds a ``LocatedMask``."""

    located: LocatedMask
    __torch_function__ = no_torch_function

    @staticmethod
    def __new__(cls, located: LocatedMask, batch: int) -> MaskTensor:
        shape = (batch, 1, located.q.index.shape[1], located.k.index.shape[1])
        self = Tensor._make_wrapper_subclass(cls, shape, dtype=torch.bool, device=located.q.index.device)
        self.located = located
        return self

    def __repr__(self) -> str:  # type: ignore[override]
        return f"MaskTensor({self.located.mask}, shape={tuple(self.shape)})"

    def dense(self) -> Tensor:
        return self.located.dense().expand(self.shape)

    @classmethod
    def __torch_dispatch__(cls, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        aten = torch.ops.aten
        kwargs = kwargs or {}
        if op in (aten.detach.default, aten.alias.default):
            return cls(args[0].located, args[0].shape[0])
        if op is aten.slice.Tensor:
            kept = _sliced(*args, **kwargs)
            if kept is not None:
                return cls(kept, args[0].shape[0])
        elif _on_scores(op, args, kwargs):
            raise HeadwayError(ITS_OWN)
        return op(*tree_map_only(cls, cls.dense, args), **tree_map_only(cls, cls.dense, kwargs))


def _on_scores(op: Any, args: Any, kwargs: dict[str, Any]) -> bool:
    """Whether an operation treats the mask as that of eager attention, which is floats or has the opposite meaning."""
    aten = torch.ops.aten
    if op is aten._to_copy.default:
        return bool(kwargs.get("dtype", torch.bool).is_floating_point)
    masking = op.overloadpacket in (aten.add, aten.add_, aten.masked_fill, aten.masked_fill_)
    return masking and any(isinstance(x, Tensor) and x.is_floating_point() for x in tree_leaves(args))


def _sliced(
    x: MaskTensor, dim: int = 0, start: int | None = None, stop: int | None = None, step: int = 1
) -> LocatedMask | None:
    """The mask after a slice that keeps all entries or the first keys; None after any other slice."""
    size = x.shape[dim]
    if step != 1 or (start or 0) != 0:
        return None
    stop = size if stop is None else min(stop, size)
    if stop == size:
        return x.located
    return x.located.first_keys(stop) if dim % 4 == 3 and stop > 0 else None


def span(count: int, offset: int | Tensor, device: torch.device | str) -> Coordinates:
    if isinstance(offset, int):
        return Coordinates.span(count, start=offset, device=device)
    index = torch.arange(count, device=device)[None] + offset
    return Coordinates(index[..., None], index, ordered=True)
