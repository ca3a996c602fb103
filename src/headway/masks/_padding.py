"""The mask of padding, and the padding that coordinates state."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from ..coordinates import Coordinates
from ..errors import HeadwayError, need_lengths
from ..records import named
from ..tracing import watched
from ._base import Bounds, Mask
from ._by_index import from_zero
from ._joined import Joined, conjuncts


@dataclass(frozen=True, eq=False)
class Padding(Mask):
    """No query attends to padding.

    ``lengths`` hold for one call, since the next one has more keys. If the coordinates of the keys state the padding,
    as those of ``Coordinates.padded`` do, only the coordinates count.

    Args:
        lengths: the real tokens of each row, integers [batch] or a list. Default: padding has an index below 0 or from
            the ``length`` of the coordinates on, as ``Coordinates.padded`` has it.
        side: where the padding is, "left" or "right".

    Raises:
        HeadwayError: for another side or negative lengths. In a call, for lengths above its number of keys, or other
            than those of its coordinates; lengths on a device are not checked if that would wait for it.
    """

    axes = named(lengths="batch")

    whole: ClassVar[tuple[str, ...]] = ("lengths",)

    lengths: Tensor | list[int] | tuple[int, ...] | None = None
    side: str = "right"
    longest: int | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.side not in ("left", "right"):
            raise HeadwayError(f"side is {self.side!r}: give 'left' or 'right'")
        if isinstance(self.lengths, (list, tuple)):
            object.__setattr__(self, "lengths", torch.tensor(self.lengths, dtype=None if self.lengths else torch.long))
        given = self.lengths
        if type(given) is Tensor and given.ndim == 1 and given.is_cpu and not watched():
            counts = given.tolist()
            need_lengths(counts)
            object.__setattr__(self, "longest", max(counts, default=None))

    def check(self, batch: int, heads: int, n: int, m: int) -> None:
        """Checks that there is a length for each row of a call, and that none is above its keys.

        Raises:
            HeadwayError: if not.
        """
        super().check(batch, heads, n, m)
        if not torch.compiler.is_compiling() and self.longest is not None and self.longest > m:
            raise HeadwayError(f"Padding has lengths up to {self.longest} but there are {m} keys: give {m} at most")

    def of_keys(self, start: int, stop: int, n: int, m: int) -> Mask:
        if self.lengths is None:
            return self
        lengths = torch.as_tensor(self.lengths).long()
        here = lengths - start if self.side == "right" else lengths - (m - stop)
        return self._with(lengths=here.clamp(0, stop - start), longest=None)

    def _real(self, k: Coordinates) -> Tensor:
        """Returns the real tokens of each row, [b, 1], in int64, since small or unsigned integers would wrap around."""
        return torch.as_tensor(self.lengths, device=k.index.device)[:, None].long()

    def interval(self, q: Coordinates, k: Coordinates) -> Bounds | None:
        if self.lengths is not None:
            lengths = self._real(k)
            return (None, lengths) if self.side == "right" else (k.index.shape[1] - lengths, None)
        return from_zero(k, real_stop(k)) if k.ordered else None

    def allowed(self, q: Coordinates, k: Coordinates) -> Tensor:
        if self.lengths is None:
            stop = real_stop(k)
            real = k.index >= 0 if stop is None else (k.index >= 0) & (k.index < stop)
            return real[:, None, None, :]
        m = k.index.shape[1]
        lengths = self._real(k)
        slot = torch.arange(m, device=k.index.device)[None]
        real = slot < lengths if self.side == "right" else slot >= m - lengths
        return real[:, None, None, :]


def real_stop(k: Coordinates) -> Tensor | None:
    """Returns the index after the last real token of each row, [b, 1], if each row has padding of its own.

    Rows that do not state padding and all start at one known index (a span, plain positions, packed documents) have
    none; their length counts positions.

    Args:
        k: the coordinates.
    """
    if k.padding and isinstance(k.length, int):
        return k.index.new_full((1, 1), k.length)
    padded = k.padding or (k.start is None and k.document is None)
    return k.length[:, -1:] if padded and isinstance(k.length, Tensor) else None


def hiding_padding(mask: Mask | None, k: Coordinates) -> Mask | None:
    """Returns the mask that also hides the padding that the coordinates of the keys state.

    If the mask has lengths of its own, they must be those of the coordinates, or of an earlier call.

    Args:
        mask: the mask; None hides nothing.
        k: coordinates of the keys.

    Raises:
        HeadwayError: if lengths of the mask contradict the coordinates, as far as both can be read without waiting for
            a device.
    """
    if not k.padding:
        return mask
    if mask is None:
        return Padding()
    mask = _by_coordinates(mask, k)
    return mask if any(type(part) is Padding for part in conjuncts(mask)) else mask & Padding()


def _by_coordinates(mask: Mask, k: Coordinates) -> Mask:
    """Returns the mask with ``Padding()`` in place of one that has lengths."""
    if isinstance(mask, Joined):
        return mask._with(masks=tuple([_by_coordinates(part, k) for part in mask.masks]))
    if type(mask) is not Padding or mask.lengths is None:
        return mask
    stated, lengths = Padding(), torch.as_tensor(mask.lengths)
    if k.index.is_cpu and lengths.is_cpu and not watched():
        real = stated.allowed(k, k)
        if bool((mask.allowed(k, k) != real).any()):
            rows = real.sum(3).flatten().tolist()
            raise HeadwayError(
                f"Padding has lengths {_few(lengths.tolist())} on the {mask.side}, but the coordinates of the "
                f"{k.index.shape[1]} keys state other padding, with {_few(rows)} tokens: give masks.Padding(), which "
                "reads the coordinates"
            )
    return stated


def _few(numbers: list[int]) -> str:
    return f"[{', '.join(map(str, numbers[:4]))}{', …' if len(numbers) > 4 else ''}]"
