"""Attention masks: which keys each query may attend to.

``&`` and ``|`` join masks. A mask is defined by ``allowed``, which returns a boolean tensor for some queries and keys.
Most masks also have an ``interval`` of key slots for each query, which lets kernels skip keys that no query attends to.
The masks here read the ``index`` of the tokens, which is their order in the stream, never their positions.

Every ``mask`` argument also takes a boolean tensor, a name ("causal", "documents", "padding"), a function of
FlexAttention, (b, h, q_idx, kv_idx), or a BlockMask.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from functools import reduce, wraps
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeAlias

import torch
from torch import Tensor

from ._common import notebook
from ._torch import mapped_over_pairs
from .coordinates import FAR, Coordinates
from .errors import HeadwayError, need_lengths, unknown
from .records import Divisible, Sizes, named, owner
from .tracing import watched

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

__all__ = [
    "Mask",
    "Causal",
    "Window",
    "sliding_window",
    "Chunked",
    "Prefix",
    "KeepFirst",
    "Dilated",
    "Documents",
    "Padding",
    "Boolean",
    "Function",
    "BlockFunction",
    "Interval",
    "Bits",
    "And",
    "Or",
    "Slot",
    "Bound",
    "Bounds",
    "AnyMask",
    "as_mask",
    "conjuncts",
    "from_flex",
    "hiding_padding",
    "is_python",
    "looks_ahead",
    "parts_of",
    "real_stop",
]


def __dir__() -> list[str]:
    return __all__


FEW_TOKENS, MANY_TOKENS = 16, 64
"""The tokens of the picture of a mask: as many as its tensors have, within these bounds."""


class Slot(NamedTuple):
    """The key slot i + offset for the query in slot i.

    Args:
        offset: slots after the query's own.
    """

    offset: int


Bound = int | Slot | Tensor | None
"""A key slot: an int for all queries, a ``Slot``, integers [b, 1 or n], or None for the first or the last slot."""
Bounds = tuple[Bound, Bound]
"""The key slots start … stop − 1, as far as they exist; none if stop ≤ start."""


class Mask(Divisible):
    """The base class of masks.

    A subclass defines ``allowed`` and the ``axes`` of its tensors. Everything else is optional.
    """

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        if "allowed" in vars(cls) and cls.__module__ != __name__:
            cls.allowed = _checked(cls.allowed)  # type: ignore[assignment, method-assign]
        for name in ("interval", "reach"):  # an inherited one describes an inherited ``allowed``
            if not issubclass(owner(cls, name), owner(cls, "allowed")):
                setattr(cls, name, getattr(Mask, name))

    def allowed(self, q: Coordinates, k: Coordinates) -> Tensor:
        """Returns where queries may attend to keys, as a boolean tensor that broadcasts to [batch, heads, n, m].

        Args:
            q: coordinates of the queries.
            k: coordinates of the keys.
        """
        raise TypeError(f"{type(self).__name__} must define allowed(q, k)")

    def interval(self, q: Coordinates, k: Coordinates) -> Bounds | None:
        """Returns the mask as one interval of key slots for each query, the same in all heads; None if it is not one.

        It is used if the class that defines it also defines ``allowed``, or is a subclass of the class that does.

        Args:
            q: coordinates of the queries, of which there is at least one.
            k: coordinates of the keys, of which there is at least one.

        Returns:
            The first key slot and the one after the last. Each is an int, a ``Slot`` that counts from the query's own,
            an integer tensor [b, 1 or n] where b is 1 or the batch, or None for the first or the last key.
        """
        return None

    def reach(self, start: int, stop: int, n: int, m: int) -> tuple[int, int]:
        """Returns the slots that queries ``start`` … ``stop`` − 1 reach; ``n`` queries are the last of ``m`` keys."""
        return 0, m

    def plan_key(self) -> Hashable:
        """Returns what the mask depends on besides coordinates; None if it holds tensors or is not of this module.

        Calls with an equal key share what was prepared for the first of them.
        """
        kind, held = type(self), vars(self).values()
        if kind.__module__ != __name__:
            return None
        for one in held:
            if one is not None and type(one) is not int and type(one) is not str:
                return None
        return (kind, *held)

    def block(self, start: int, stop: int, n: int) -> Mask:
        """Returns the mask for the queries ``start`` … ``stop`` − 1 of ``n``."""
        return self.cut("queries", start, stop)

    def of_keys(self, start: int, stop: int, n: int, m: int) -> Mask:
        """Returns the mask for the keys ``start`` … ``stop`` − 1 of ``m``, for ``n`` queries.

        Raises:
            HeadwayError: if the dimensions of a tensor are not named in ``axes``.
        """
        return self.cut("keys", start, stop)

    def check(self, batch: int, heads: int, n: int, m: int) -> None:
        """Checks by ``axes`` that tensors fit a call of ``batch`` rows, ``heads``, ``n`` queries and ``m`` keys.

        Raises:
            HeadwayError: if one does not.
        """
        if self.axes:
            self.check_tensors({"batch": batch, "heads": heads, "queries": n, "keys": m})

    def for_call(self, batch: int, heads: int) -> Mask:
        """Returns the mask for a call of ``batch`` rows and ``heads``, which coordinates do not state."""
        return self

    def _misfit(self, holder: Divisible, name: str, x: Tensor, sizes: Sizes) -> HeadwayError:
        layouts = [[word for _, word, _ in layout] for layout in self.axes[name].values()]
        if layouts[0][-1:] not in (["batch"], ["queries"], ["keys"]):
            return super()._misfit(holder, name, x, sizes)
        each = {"batch": "row", "queries": "query", "keys": "key"}[layouts[0][-1]]
        wanted = " or ".join(f"[{', '.join(str(sizes.get(word, word)) for word in layout)}]" for layout in layouts)
        return HeadwayError(
            f"{type(holder).__name__} has {name} of shape {tuple(x.shape)}: give one for each {each}, {wanted}"
        )

    def _repr_html_(self) -> str:
        """A picture of the mask for a few tokens, if the mask needs no further coordinates."""
        queries, keys = self.extent("queries"), self.extent("keys")  # 1 where no tensor has them
        n, m = (
            min(one if one > 1 else max(other, FEW_TOKENS), MANY_TOKENS)
            for one, other in ((queries, keys), (keys, queries))
        )
        said = notebook.paragraph(_spelled(self))
        try:
            self.check(1, 1, n, m)
            k = Coordinates.span(m)
            seen = self.allowed(k if n == m else Coordinates.span(n, start=m - n, length=m), k)
            rows = seen[0, 0].expand(n, m).tolist()
        except Exception:  # it is for rows, heads or documents that are not known here, or of a user's class
            return said
        return said + notebook.grid(rows, "keys", "queries")

    def __and__(self, other: Mask) -> Mask:
        return And((*_parts(self, And), *_parts(other, And)))

    def __or__(self, other: Mask) -> Mask:
        return Or((*_parts(self, Or), *_parts(other, Or)))


def _spelled(mask: Mask) -> str:
    """Returns a mask as one writes it, with the shapes of tensors in place of their numbers."""
    if isinstance(mask, _Joined):
        parts = (f"({_spelled(one)})" if isinstance(one, _Joined) else _spelled(one) for one in mask.masks)
        return (" & " if isinstance(mask, And) else " | ").join(parts)
    held = {name: list(value.shape) if isinstance(value, Tensor) else value for name, value in vars(mask).items()}
    said = ", ".join(f"{name}={value}" for name, value in held.items() if value is not None)
    return f"{type(mask).__name__}({said})"


Allowed = Callable[[Any, Coordinates, Coordinates], Tensor]


def _checked(allowed: Allowed) -> Allowed:
    """Returns ``allowed`` of a class outside of this module, with a check of what it returns."""

    @wraps(allowed)
    def checked(self: Mask, q: Coordinates, k: Coordinates) -> Tensor:
        found = allowed(self, q, k)
        n, m = q.index.shape[1], k.index.shape[1]
        said = type(found).__name__
        if isinstance(found, Tensor):
            if found.ndim == 2:
                found = found[None, None]
            said = f"{found.dtype} of shape {tuple(found.shape)}"
            if found.dtype == torch.bool and found.ndim == 4 and found.shape[2] in (1, n) and found.shape[3] in (1, m):
                return found
        raise HeadwayError(
            f"{type(self).__name__}.allowed returns {said}: return a boolean tensor [batch, heads, {n}, {m}], each 1 "
            "where it does not matter, such as allowed[:, None] of one [batch, queries, keys]"
        )

    return checked


def _parts(mask: Mask, kind: type[And] | type[Or]) -> tuple[Mask, ...]:
    if is_of_flex(mask):
        mask = from_flex(mask)
    if not isinstance(mask, Mask):
        raise HeadwayError(f"a mask cannot be joined with a {type(mask).__name__}: wrap tensors in masks.Boolean")
    return mask.masks if type(mask) is kind else (mask,)


def _difference(q: Coordinates, k: Coordinates) -> Tensor:
    """Returns the key's index minus the query's, [b, 1, n, m]."""
    return (k.index[:, None, :] - q.index[:, :, None])[:, None]


def _first(k: Coordinates) -> int | Tensor:
    """Returns the index of the first key: an int if it is known, else a tensor [b, 1]."""
    return k.index[:, :1] if k.start is None else k.start


def _from_zero(k: Coordinates, stop: int | Tensor | None) -> Bounds:
    """Returns the key slots of the indices 0 … stop − 1, or of all from 0 on if stop is None."""
    first_slot = -_first(k)
    return None if k.start == 0 else first_slot, None if stop is None else stop + first_slot


def _slot_beside(q: Coordinates, k: Coordinates, offset: int) -> Slot | Tensor:
    """Returns the key slot whose index is the query's plus offset; a ``Slot`` if no tensor has to be read for that."""
    if q is k:
        return Slot(offset)
    if q.ordered and q.start is not None and k.start is not None:
        return Slot(q.start - k.start + offset)
    return q.index + (offset - _first(k))


def _count(mask: Mask, name: str, least: int) -> None:
    """Checks a field that counts tokens: a whole number of at least ``least``, which is clamped to FAR."""
    value = getattr(mask, name)
    if not isinstance(value, int) or value < least:
        raise HeadwayError(f"{name} is {value!r}: give a whole number of at least {least}")
    if value > FAR:
        object.__setattr__(mask, name, FAR)


@dataclass(frozen=True, eq=False)
class Causal(Mask):
    """A query attends to the keys up to its own index."""

    def allowed(self, q: Coordinates, k: Coordinates) -> Tensor:
        return _difference(q, k) <= 0

    def interval(self, q: Coordinates, k: Coordinates) -> Bounds | None:
        return (None, _slot_beside(q, k, 1)) if k.ordered else None

    def reach(self, start: int, stop: int, n: int, m: int) -> tuple[int, int]:
        return 0, stop + m - n


@dataclass(frozen=True, eq=False)
class Window(Mask):
    """A query attends to the keys around its own index.

    Args:
        left: keys before the query's own index; None for all of them.
        right: keys after it; None for all of them.

    Raises:
        HeadwayError: for a number below 0.
    """

    left: int | None = None
    right: int | None = None

    def __post_init__(self) -> None:
        for name in ("left", "right"):
            if getattr(self, name) is not None:
                _count(self, name, 0)

    def allowed(self, q: Coordinates, k: Coordinates) -> Tensor:
        difference = _difference(q, k)
        allowed = torch.ones_like(difference, dtype=torch.bool)
        if self.left is not None:
            allowed = difference >= -self.left
        if self.right is not None:
            allowed = allowed & (difference <= self.right)
        return allowed

    def interval(self, q: Coordinates, k: Coordinates) -> Bounds | None:
        if not k.ordered:
            return None
        start = None if self.left is None else _slot_beside(q, k, -self.left)
        return start, None if self.right is None else _slot_beside(q, k, self.right + 1)

    def reach(self, start: int, stop: int, n: int, m: int) -> tuple[int, int]:
        low = 0 if self.left is None else max(0, start + m - n - self.left)
        return low, m if self.right is None else min(m, stop + m - n + self.right)


def sliding_window(size: Any) -> Window:
    """Returns the window of a Hugging Face config's ``sliding_window``, which counts the query itself.

    Args:
        size: the value of sliding_window.

    Raises:
        HeadwayError: if it is not a whole number above 0.
    """
    if type(size) is not int or size < 1:
        raise HeadwayError(f"the config's sliding_window is {size!r}: give a whole number above 0, or None")
    return Window(size - 1)


@dataclass(frozen=True, eq=False)
class Chunked(Mask):
    """A query attends to the keys of its own chunk, and of some chunks before it.

        0 ≤ ⌊i/size⌋ − ⌊j/size⌋ ≤ previous

    ``Causal() & Chunked(size, previous=1)`` is blockwise causal attention, which xPos uses beyond its trained length in
    blocks of half of that length.

    Args:
        size: tokens in a chunk, at least 1.
        previous: chunks before the query's own, at least 0.

    Raises:
        HeadwayError: for smaller numbers.

    References:
        Sun et al. 2023, section 2.3.
    """

    size: int
    previous: int = 0

    def __post_init__(self) -> None:
        _count(self, "size", 1)
        _count(self, "previous", 0)

    def allowed(self, q: Coordinates, k: Coordinates) -> Tensor:
        back = q.index[:, None, :, None] // self.size - k.index[:, None, None, :] // self.size
        return (back >= 0) & (back <= self.previous)

    def interval(self, q: Coordinates, k: Coordinates) -> Bounds | None:
        if not k.ordered:
            return None
        stop = (q.index // self.size + 1) * self.size - _first(k)
        return stop - min((1 + self.previous) * self.size, 4 * FAR), stop


@dataclass(frozen=True, eq=False)
class Prefix(Mask):
    """Every query attends to the first tokens; ``Causal() | Prefix(length)`` is the mask of a prefix language model.

    Args:
        length: tokens in the prefix: an int, or integers [batch].

    Raises:
        HeadwayError: for a number below 0.
    """

    axes = named(length="1|batch")

    whole: ClassVar[tuple[str, ...]] = ("length",)

    length: int | Tensor

    def __post_init__(self) -> None:
        if not isinstance(self.length, Tensor):
            _count(self, "length", 0)

    def _stop(self) -> int | Tensor:
        return self.length[:, None].long().clamp(max=FAR) if isinstance(self.length, Tensor) else self.length

    def allowed(self, q: Coordinates, k: Coordinates) -> Tensor:
        return ((k.index >= 0) & (k.index < self._stop()))[:, None, None, :]

    def interval(self, q: Coordinates, k: Coordinates) -> Bounds | None:
        return _from_zero(k, self._stop()) if k.ordered else None


@dataclass(frozen=True, eq=False)
class KeepFirst(Mask):
    """Every query attends to the first tokens (attention sinks): ``Causal() & (Window(left=255) | KeepFirst(4))``.

    Args:
        count: the number of these tokens, at least 0.

    Raises:
        HeadwayError: for a number below 0.
    """

    count: int

    def __post_init__(self) -> None:
        _count(self, "count", 0)

    def allowed(self, q: Coordinates, k: Coordinates) -> Tensor:
        return ((k.index >= 0) & (k.index < self.count))[:, None, None, :]

    def interval(self, q: Coordinates, k: Coordinates) -> Bounds | None:
        return _from_zero(k, self.count) if k.ordered else None


@dataclass(frozen=True, eq=False)
class Documents(Mask):
    """A query attends to the keys of its own document, in rows of packed sequences.

    Args:
        ids: the document of each key, integers [m] or [batch, m]. Default: the ``document`` of the coordinates, as
            ``Coordinates.packed`` has it.
        query_ids: the document of each query, [n] or [batch, n]. Default: the queries are the last n of the keys.
    """

    axes = named(ids=("keys", "1|batch keys"), query_ids=("queries", "1|batch queries"))

    whole: ClassVar[tuple[str, ...]] = ("ids", "query_ids")

    ids: Tensor | None = None
    query_ids: Tensor | None = None

    @staticmethod
    def lengths(lengths: list[int], device: torch.device | str | None = None) -> Documents:
        """The mask of documents of these ``lengths``, which follow one another, with ids on ``device``."""
        need_lengths(lengths)
        sizes = torch.tensor(lengths, device=device)
        return Documents(torch.repeat_interleave(torch.arange(len(lengths), device=device), sizes))

    def ids_of(self, q: Coordinates, k: Coordinates) -> tuple[Tensor, Tensor]:
        """Returns the document of each query and of each key, [b, n] and [b, m], where b is 1 or the batch.

        Args:
            q: coordinates of the queries.
            k: coordinates of the keys.

        Raises:
            HeadwayError: if neither the mask nor the coordinates have documents.
        """
        n, m = q.index.shape[1], k.index.shape[1]
        if self.ids is None:
            if q.document is None or k.document is None:
                raise HeadwayError(
                    "Documents() has no ids and the coordinates no documents: give Documents(ids) or "
                    "positions=Coordinates.packed(lengths)"
                )
            return q.document, k.document
        ids = _by_row(self.ids)
        return (ids[:, m - n :] if self.query_ids is None else _by_row(self.query_ids)), ids

    def check(self, batch: int, heads: int, n: int, m: int) -> None:
        """Checks that ids fit a call, and that there are ids for its queries.

        Raises:
            HeadwayError: if not.
        """
        super().check(batch, heads, n, m)
        if self.ids is None and self.query_ids is not None:
            raise HeadwayError("Documents has query_ids and no ids: give ids of the keys too")
        if n > m and self.ids is not None and self.query_ids is None:
            raise HeadwayError(
                f"Documents has ids for {m} keys but there are {n} queries: give query_ids [{n}] or [{batch}, {n}] too"
            )

    def _with_query_ids(self, n: int) -> Documents:
        """Returns the mask with ``query_ids``, for queries that are no longer the last of the keys."""
        if self.ids is None or self.query_ids is not None:
            return self
        ids = _by_row(self.ids)
        return self._with(ids=ids, query_ids=ids[:, ids.shape[1] - n :])

    def block(self, start: int, stop: int, n: int) -> Mask:
        return self._with_query_ids(n).cut("queries", start, stop)

    def of_keys(self, start: int, stop: int, n: int, m: int) -> Mask:
        return self._with_query_ids(n).cut("keys", start, stop)

    def interval(self, q: Coordinates, k: Coordinates) -> Bounds | None:
        own, ids = (x.long() for x in self.ids_of(q, k))
        # otherwise the ids must be read, which would synchronize with a device that has streams
        known = self.ids is None and k.documents_in_order
        if not known and not (ids.is_cpu and bool((ids[:, 1:] >= ids[:, :-1]).all())):
            return None
        rows = max(own.shape[0], ids.shape[0])
        ids, own = (x.expand(rows, -1).contiguous() for x in (ids, own))
        return torch.searchsorted(ids, own), torch.searchsorted(ids, own, right=True)

    def allowed(self, q: Coordinates, k: Coordinates) -> Tensor:
        return _equal(*self.ids_of(q, k))


def _by_row(ids: Tensor) -> Tensor:
    return ids if ids.ndim == 2 else ids[None]


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
        return _from_zero(k, real_stop(k)) if k.ordered else None

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
    if isinstance(mask, _Joined):
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


@dataclass(frozen=True, eq=False)
class Dilated(Mask):
    """A query attends to every ``step``-th key, counted from its own index.

    Args:
        step: at least 1.

    Raises:
        HeadwayError: for a smaller number.
    """

    step: int

    def __post_init__(self) -> None:
        _count(self, "step", 1)

    def allowed(self, q: Coordinates, k: Coordinates) -> Tensor:
        return _difference(q, k) % self.step == 0


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
                f"mask is a tensor of {self.values.dtype}: a mask is boolean, True where one may look; "
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
                "; if it is [batch, m], which keys are no padding, give mask[:, None, None], or "
                "headway.masks.Padding(lengths)"
            )
        return HeadwayError(said)

    def allowed(self, q: Coordinates, k: Coordinates) -> Tensor:
        return self.values if self.values.ndim == 4 else self.values[None, None]


def _equal(a: Tensor, b: Tensor) -> Tensor:
    return (a[:, :, None] == b[:, None, :])[:, None]


# ---------------------------------------------------------------- functions of FlexAttention

MaskMod = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""FlexAttention's ``mask_mod``: of the numbers of a row of the batch, a head, a query and a key, whether it sees it."""
AnyMask: TypeAlias = "Mask | Tensor | str | MaskMod | BlockMask | None"
"""What an argument ``mask`` may be, as ``as_mask`` takes it."""


@dataclass(frozen=True, eq=False)
class Function(Mask):
    """A mask given as a function (b, h, q_idx, kv_idx) of tensors without dimensions, as FlexAttention's ``mask_mod``.

    The function is mapped over all pairs by ``torch.vmap``, so it may index tensors that it captures, and must return
    a boolean tensor. q_idx and kv_idx are the ``index`` of the tokens, their order in the stream: in a step with a
    cache, the query has the index of its token. In a call whose queries and keys are the same tokens, without padding
    on the left, they are the numbers in the tensors, as in FlexAttention.

    Args:
        function: the function.
        rows: the rows of the batch that b stands for, [batch]. Default: those of the call.
        heads: the heads that h stands for, [heads]. Default: those of the call.

    References:
        Dong et al. 2024, arXiv:2412.05496.
    """

    axes = named(rows="batch", heads="heads")

    whole: ClassVar[tuple[str, ...]] = ("rows", "heads")

    function: MaskMod
    rows: Tensor | None = None
    heads: Tensor | None = None

    def for_call(self, batch: int, heads: int) -> Mask:
        rows = torch.arange(batch) if self.rows is None else self.rows
        return self._with(rows=rows, heads=torch.arange(heads) if self.heads is None else self.heads)

    def extent(self, axis: str) -> int:
        """Returns how many rows or heads the mask distinguishes, at least 1, tried with one query and one key."""
        number = {"batch": 0, "heads": 1}.get(axis)
        if number is None or self.rows is None or self.heads is None:
            return 1
        if watched():
            return len(self.rows) if axis == "batch" else len(self.heads)
        first = torch.zeros(1, 1, dtype=torch.long)
        return self._of(first, first).shape[number]

    def allowed(self, q: Coordinates, k: Coordinates) -> Tensor:
        return self._of(q.index, k.index)

    def _of(self, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        """Returns what the function gives for numbers [b, n] and [b, m], with size 1 where it does not matter."""
        device = q_idx.device
        count = max(q_idx.shape[0], kv_idx.shape[0])
        rows = torch.arange(count, device=device) if self.rows is None else self.rows.to(device)
        heads = torch.arange(1, device=device) if self.heads is None else self.heads.to(device)
        name = getattr(self.function, "__name__", type(self.function).__name__)
        try:
            found = mapped_over_pairs(self.function, rows, heads, q_idx, kv_idx)
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            raise HeadwayError(
                f"the mask function {name} fails for (b, h, q_idx, kv_idx), tensors without dimensions: "
                f"{str(error).partition(chr(10))[0]}"
            ) from error
        if found.ndim != 4 or found.dtype != torch.bool:
            raise HeadwayError(
                f"the mask function {name} returns {found.dtype} of shape {tuple(found.shape[4:])}: return one boolean"
            )
        return found


NONE, SOME, ALL = 0, 1, 2


@dataclass(frozen=True, eq=False)
class BlockFunction(Function):
    """A mask given as FlexAttention's ``BlockMask``, for tensors of its sizes.

    q_idx and kv_idx of its function are the numbers of queries and keys in the tensors of a call, as in FlexAttention.

    Args:
        blocks: which pairs of a block of queries and one of keys are visible, int8 [1 or batch, 1 or heads, blocks,
            blocks]: none (0), those that the function allows (1), or all (2).
        q_slots: the number of each query, [n].
        k_slots: the number of each key, [m].
        q_block: the queries in a block.
        k_block: the keys in a block.
    """

    axes = named(
        rows="batch",
        heads="heads",
        blocks="1|batch 1|heads query_blocks key_blocks",
        q_slots="queries",
        k_slots="keys",
    )

    blocks: Tensor = field(kw_only=True)
    q_slots: Tensor = field(kw_only=True)
    k_slots: Tensor = field(kw_only=True)
    q_block: int = field(kw_only=True)
    k_block: int = field(kw_only=True)

    @staticmethod
    def of(mask: Any) -> BlockFunction:
        """Returns the mask of a ``BlockMask``.

        Args:
            mask: the ``BlockMask``.
        """
        n, m = mask.seq_lengths
        q_block, k_block = mask.BLOCK_SIZE
        shape = (*mask.kv_indices.shape[:-2], -(-n // q_block), -(-m // k_block))
        blocks = torch.zeros(shape, dtype=torch.int8, device=mask.kv_indices.device)
        lists = ((mask.kv_num_blocks, mask.kv_indices, SOME), (mask.full_kv_num_blocks, mask.full_kv_indices, ALL))
        for counts, indices, kind in lists:
            if counts is None:
                continue
            listed = torch.arange(indices.shape[-1], device=indices.device) < counts[..., None]
            wide = blocks.new_zeros(*shape[:-1], shape[-1] + 1)  # a column for what is not listed
            at = indices[..., : shape[-2], :].long().masked_fill(~listed[..., : shape[-2], :], shape[-1])
            blocks = torch.maximum(blocks, wide.scatter_(-1, at, kind)[..., :-1])
        blocks = blocks[(None,) * (4 - blocks.ndim)]
        q_slots, k_slots = torch.arange(n, device=blocks.device), torch.arange(m, device=blocks.device)
        return BlockFunction(
            mask.mask_mod, blocks=blocks, q_slots=q_slots, k_slots=k_slots, q_block=q_block, k_block=k_block
        )

    def check(self, batch: int, heads: int, n: int, m: int) -> None:
        """Checks that the BlockMask was made for the sizes of a call.

        Raises:
            HeadwayError: if not.
        """
        rows, of_heads = self.blocks.shape[:2]
        own = (rows, of_heads, self.q_slots.numel(), self.k_slots.numel())
        if rows not in (1, batch) or of_heads not in (1, heads) or own[2:] != (n, m):
            raise HeadwayError(
                f"the BlockMask is made for {own[0]} rows, {own[1]} heads, {own[2]} queries and {own[3]} keys and the "
                f"call has {batch}, {heads}, {n} and {m}: make one for these sizes, or give its mask_mod"
            )
        super().check(batch, heads, n, m)

    def own_sizes(self, sizes: Sizes, around: Sizes) -> dict[str, int | None]:
        """Returns the numbers of blocks."""
        blocks = (-(-self.q_slots.numel() // self.q_block), -(-self.k_slots.numel() // self.k_block))
        return dict(zip(("query_blocks", "key_blocks"), blocks, strict=True))

    def extent(self, axis: str) -> int:
        number = {"batch": 0, "heads": 1}.get(axis)
        own = 1 if number is None else self.blocks.shape[number]
        return max(own, super().extent(axis))

    def allowed(self, q: Coordinates, k: Coordinates) -> Tensor:
        found = self._of(self.q_slots[None], self.k_slots[None])
        blocks = self.blocks[:, :, self.q_slots // self.q_block][..., self.k_slots // self.k_block]
        return (blocks == ALL) | ((blocks == SOME) & found)


def is_of_flex(mask: Any) -> bool:
    """Returns whether an argument is a function, as FlexAttention takes, or a BlockMask.

    Args:
        mask: the argument.
    """
    if isinstance(mask, (Mask, Tensor, type, torch.nn.Module, str)) or mask is None:
        return False
    return callable(mask) or _is_block_mask(mask)


def _is_block_mask(mask: Any) -> bool:
    flex = sys.modules.get("torch.nn.attention.flex_attention")  # who has a BlockMask has imported it
    return flex is not None and isinstance(mask, flex.BlockMask)


def from_flex(mask: Any) -> Function:
    """Returns the mask of a function or BlockMask of FlexAttention; every ``mask`` argument also takes these directly.

        Causal() & from_flex(lambda b, h, q_idx, kv_idx: document[q_idx] == document[kv_idx])

    Args:
        mask: a function (b, h, q_idx, kv_idx), or a BlockMask.

    Raises:
        HeadwayError: for anything else, or a function of another number of arguments.
    """
    if _is_block_mask(mask):
        return BlockFunction.of(mask)
    if not is_of_flex(mask):
        raise HeadwayError(f"mask is {mask!r:.60}: give a function (b, h, q_idx, kv_idx) or a BlockMask")
    try:
        inspect.signature(mask).bind(0, 0, 0, 0)
    except (TypeError, ValueError):
        name = getattr(mask, "__name__", type(mask).__name__)
        raise HeadwayError(
            f"mask is the function {name}, which does not take four arguments: give a function (b, h, q_idx, kv_idx) "
            "that returns whether the query sees the key, or one of headway.masks"
        ) from None
    return Function(mask)


NAMES: dict[str, Mask] = {"causal": Causal(), "documents": Documents(), "padding": Padding()}
"""Masks that need no arguments, by name."""


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
        kind = next((one for one in __all__ if one.lower() == mask.lower().replace("_", "")), None)
        if kind in ("Window", "Chunked", "Prefix", "KeepFirst", "Dilated"):
            raise HeadwayError(f"mask {mask!r} needs arguments: give headway.masks.{kind}(…)")
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


# ---------------------------------------------------------------- evaluated masks


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


def is_python(mask: Mask) -> bool:
    """Returns whether a mask, or one of its parts, is a Python function that kernels cannot read.

    Args:
        mask: the mask.
    """
    if joined := parts_of(mask):
        return any(map(is_python, joined))
    return isinstance(mask, Function) or type(mask).__module__ != __name__


@dataclass(frozen=True, eq=False)
class _Joined(Mask):
    """The base class of joined masks."""

    masks: tuple[Mask, ...]

    def plan_key(self) -> Hashable:
        keys = [mask.plan_key() for mask in self.masks]
        return (type(self), *keys) if type(self) in (And, Or) and None not in keys else None

    def block(self, start: int, stop: int, n: int) -> Mask:
        return self._with(masks=tuple(mask.block(start, stop, n) for mask in self.masks))

    def of_keys(self, start: int, stop: int, n: int, m: int) -> Mask:
        return self._with(masks=tuple(mask.of_keys(start, stop, n, m) for mask in self.masks))

    def check(self, batch: int, heads: int, n: int, m: int) -> None:
        for mask in self.masks:
            mask.check(batch, heads, n, m)

    def for_call(self, batch: int, heads: int) -> Mask:
        masks = tuple([mask.for_call(batch, heads) for mask in self.masks])
        same = all(a is b for a, b in zip(masks, self.masks, strict=True))
        return self if same else self._with(masks=masks)


@dataclass(frozen=True, eq=False)
class And(_Joined):
    """Allows what all of the masks allow.

    Args:
        masks: the masks.
    """

    def allowed(self, q: Coordinates, k: Coordinates) -> Tensor:
        return reduce(torch.logical_and, (mask.allowed(q, k) for mask in self.masks))

    def reach(self, start: int, stop: int, n: int, m: int) -> tuple[int, int]:
        lows, highs = zip(*(mask.reach(start, stop, n, m) for mask in self.masks), strict=True)
        return max(lows), max(max(lows), min(highs))


@dataclass(frozen=True, eq=False)
class Or(_Joined):
    """Allows what any of the masks allows.

    Args:
        masks: the masks.
    """

    def allowed(self, q: Coordinates, k: Coordinates) -> Tensor:
        return reduce(torch.logical_or, (mask.allowed(q, k) for mask in self.masks))

    def reach(self, start: int, stop: int, n: int, m: int) -> tuple[int, int]:
        lows, highs = zip(*(mask.reach(start, stop, n, m) for mask in self.masks), strict=True)
        return min(lows), max(highs)


def parts_of(mask: Mask | None) -> tuple[Mask, ...]:
    """Returns the masks that & or | joined into this one; none if it is not joined.

    Args:
        mask: the mask.
    """
    return mask.masks if isinstance(mask, (And, Or)) and type(mask) in (And, Or) else ()


def conjuncts(mask: Mask | None) -> tuple[Mask, ...]:
    """Returns the masks that must all allow a key.

    Args:
        mask: the mask; None hides nothing.
    """
    if type(mask) is And:
        return mask.masks
    return () if mask is None else (mask,)


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
