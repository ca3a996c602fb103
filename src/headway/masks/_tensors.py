"""Masks that tensors state: booleans, an interval of key slots for each query, and bits."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..coordinates import Coordinates
from ..errors import HeadwayError
from ..records import Divisible, Sizes, named
from ._base import Bound, Bounds, Mask, Slot


@dataclass(frozen=True, eq=False)
class Boolean(Mask):
    """A mask given as a tensor.

    Args:
        values: a boolean tensor [n, m], or one of four dimensions that broadcasts to [batch, heads, n, m]; True where a
            query may attend to a key.

    Raises:
        HeadwayError: for another dtype or number of dimensions.
    """

    axes = named(values=("1|queries 1|keys", "1|batch 1|heads 1|queries 1|keys"))

    values: Tensor

    def __post_init__(self) -> None:
        if self.values.dtype != torch.bool:
            raise HeadwayError(
                f"mask is a tensor of {self.values.dtype}: a mask is boolean, True where a query may attend; "
                "numbers to be added are terms.DenseBias"
            )
        if self.values.ndim not in (2, 4):
            each = ", so mask[:, None] if it is [batch, n, m]" if self.values.ndim == 3 else ""
            raise HeadwayError(
                f"mask has shape {tuple(self.values.shape)}: give [n, m] or four dimensions that broadcast to "
                f"[batch, heads, n, m]{each}"
            )

    def _misfit(self, holder: Divisible, name: str, x: Tensor, sizes: Sizes) -> HeadwayError:
        wanted = tuple([sizes[word] for word in ("batch", "heads", "queries", "keys")])
        said = f"mask has shape {tuple(x.shape)}: it must broadcast to {wanted}"
        if tuple(x.shape) == (sizes["batch"], sizes["keys"]):
            said += (
                "; if it is [batch, m], which keys are not padding, give mask[:, None, None], or "
                "headway.masks.Padding(lengths)"
            )
        return HeadwayError(said)

    def allowed(self, q: Coordinates, k: Coordinates) -> Tensor:
        return self.values if self.values.ndim == 4 else self.values[None, None]


@dataclass(frozen=True, eq=False)
class Interval(Mask):
    """A query attends to an interval of key slots.

    Args:
        start: the first key slot: an int, integers [1 or batch, 1 or n], or None for the first one.
        stop: the slot after the last one, likewise.
        start_beside: whether ``start``, an int, counts from the query's own slot.
        stop_beside: whether ``stop`` does.
        first_query: the slot of the first query in the whole call.
    """

    axes = named(start="1|batch 1|queries", stop="1|batch 1|queries")

    start: int | Tensor | None
    stop: int | Tensor | None
    start_beside: bool = False
    stop_beside: bool = False
    first_query: int = 0

    @staticmethod
    def of(bounds: Bounds) -> Interval:
        """Returns the mask of an ``interval``.

        Args:
            bounds: the interval.
        """
        start, stop = (bound.offset if isinstance(bound, Slot) else bound for bound in bounds)
        return Interval(start, stop, isinstance(bounds[0], Slot), isinstance(bounds[1], Slot))

    def _bound(self, bound: int | Tensor | None, beside: bool) -> Bound:
        return Slot(bound + self.first_query) if beside and isinstance(bound, int) else bound

    def interval(self, q: Coordinates, k: Coordinates) -> Bounds:
        return self._bound(self.start, self.start_beside), self._bound(self.stop, self.stop_beside)

    def allowed(self, q: Coordinates, k: Coordinates) -> Tensor:
        slot = torch.arange(k.index.shape[1], device=k.index.device)
        start, stop = (self._slots(bound, q) for bound in self.interval(q, k))
        allowed = torch.ones(1, 1, len(slot), dtype=torch.bool, device=slot.device)
        allowed = allowed if start is None else slot >= start
        return (allowed if stop is None else allowed & (slot < stop))[:, None]

    def _slots(self, bound: Bound, q: Coordinates) -> int | Tensor | None:
        """Returns a bound as a number or a tensor [b, 1 or n, 1]."""
        if isinstance(bound, Slot):
            return torch.arange(q.index.shape[1], device=q.index.device)[None, :, None] + bound.offset
        return bound[..., None] if isinstance(bound, Tensor) else bound

    def block(self, start: int, stop: int, n: int) -> Mask:
        return self.cut("queries", start, stop)._with(first_query=self.first_query + start)

    def of_keys(self, start: int, stop: int, n: int, m: int) -> Mask:
        first, last = (None if bound is None else bound - start for bound in (self.start, self.stop))
        return self._with(start=first, stop=last)


@dataclass(frozen=True, eq=False)
class Bits(Mask):
    """A mask given as a bit for each pair, 1 where a query may attend to a key.

    Args:
        bits: uint8 [1 or batch, 1 or heads, 1 or n, bytes], where a byte has the bits of eight keys, the lowest first.
        count: the number of keys.
        first: the number of the first key's bit.
    """

    axes = named(bits="1|batch 1|heads 1|queries bytes")

    bits: Tensor
    count: int
    first: int = 0

    def own_sizes(self, sizes: Sizes, around: Sizes) -> dict[str, int | None]:
        """Returns the number of bytes."""
        return {"bytes": -(-(self.first + self.count) // 8)}

    def allowed(self, q: Coordinates, k: Coordinates) -> Tensor:
        number = torch.arange(8, dtype=torch.uint8, device=self.bits.device)
        flags = (self.bits[..., None] >> number) & 1
        return flags.flatten(-2)[..., self.first : self.first + self.count].bool()

    def of_keys(self, start: int, stop: int, n: int, m: int) -> Mask:
        return self._with(first=self.first + start, count=stop - start)

    def __repr__(self) -> str:
        return f"Bits({tuple(self.bits.shape)}, count={self.count}, first={self.first})"
