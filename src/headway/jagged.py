"""Jagged batches: sequences of different lengths without padding, computed as one row of documents.

A jagged tensor is a ``torch.nested`` tensor of the layout ``torch.jagged``: the values of all sequences one after
another, and ``offsets`` [batch + 1], where each begins. FlashAttention calls the offsets cu_seqlens.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ._torch import has_holes, offsets_of, ragged_dim
from .call import Arguments, encoding_for
from .constants import writes
from .coordinates import Coordinates
from .errors import HeadwayError
from .masks import (
    BlockFunction,
    Bound,
    Bounds,
    Causal,
    Dilated,
    Documents,
    Function,
    Mask,
    MaskMod,
    Slot,
    Window,
    mask_or_tensor,
    parts_of,
)
from .positions import PositionEncoding
from .records import attributes, named
from .tracing import watched

BY_DIFFERENCE = (Causal, Window, Dilated)
"""Masks that read only the difference of two indices, which is the same in a sequence and in a row of sequences."""


def is_nested(*tensors: object) -> bool:
    """Returns whether one of the arguments is a nested tensor.

    Args:
        *tensors: tensors, or anything else.
    """
    for x in tensors:  # noqa: SIM110 (a generator takes three times as long, which steps notice)
        if isinstance(x, Tensor) and x.is_nested:
            return True
    return False


# ---------------------------------------------------------------- jagged tensors


def starts_of(name: str, x: Tensor, layout: str) -> Tensor:
    """Returns where the sequences of a jagged tensor begin, and where the last one ends, int64 [batch + 1].

    Args:
        name: its name in messages.
        x: the tensor.
        layout: its dimensions, such as "[batch, heads, tokens, head_dim]".

    Raises:
        HeadwayError: if the tensor is not nested, or not jagged along the dimension "tokens".
    """
    words = layout.strip("[]").split(", ")
    if not is_nested(x):
        raise HeadwayError(f"{name} is not a nested tensor, and others of this call are: give all as nested tensors")
    if x.layout != torch.jagged:
        raise HeadwayError(f"{name} is a nested tensor of layout {x.layout}: give one with layout=torch.jagged")
    if x.ndim != len(words) or ragged_dim(x) != words.index("tokens"):
        shape, swapped = ", ".join(map(str, x.shape)), x.ndim == len(words) == 4
        raise HeadwayError(
            f"{name} has shape [{shape}], jagged along dimension {ragged_dim(x)}: give {layout}, jagged along tokens"
            + (f", such as {name}.transpose(1, 2)" if swapped else "")
        )
    offsets = offsets_of(x)
    return offsets if offsets.dtype == torch.int64 else offsets.long()


def row_of(x: Tensor) -> Tensor:
    """Returns the values of a jagged tensor as one row, [1, …, tokens, …].

    Args:
        x: the jagged tensor.
    """
    return x.values()[None]


def as_jagged(row: Tensor, offsets: Tensor, dim: int = 1) -> Tensor:
    """Returns one row of sequences as a jagged tensor.

    Args:
        row: [1, …, tokens, …].
        offsets: where the sequences begin, those of the tensor that the row was made of.
        dim: the dimension of the tokens.
    """
    return torch.nested.nested_tensor_from_jagged(row[0], offsets=offsets, jagged_dim=dim)


def tokenwise(function: Callable[..., Tensor], x: Tensor, *others: Tensor | None) -> Tensor:
    """Applies a function to each token of jagged tensors [batch, tokens, …]; returns a jagged tensor.

    Args:
        function: maps rows [1, tokens, …] to a row.
        x: the first argument of the function.
        *others: further arguments, jagged as x is, or None.
    """
    rows = [None if one is None else row_of(one) for one in others]
    return as_jagged(function(row_of(x), *rows), offsets_of(x))


# ---------------------------------------------------------------- coordinates


def coordinates(offsets: Tensor, n: int, positions: Tensor | None = None) -> Coordinates:
    """Returns the coordinates of sequences that follow one another in one row, as ``Coordinates.packed``.

    This reads no tensor, so it never waits for a device, and a compiler can trace it.

    Args:
        offsets: where the sequences begin, int64 [batch + 1].
        n: the tokens of all sequences.
        positions: [n] or [n, axes]. Default: 0, 1, … in each sequence.
    """
    if positions is not None or not _may_keep(offsets):
        return _coordinates(offsets, n, positions)
    found = recent(offsets, n)
    if found is None:
        with torch.inference_mode(False):  # an inference tensor could not be saved for a backward pass later
            found = _coordinates(offsets, n, None)
        _recent.made.append((offsets.clone(), n, found, _writes(found)))
    return found


def _coordinates(offsets: Tensor, n: int, positions: Tensor | None) -> Coordinates:
    index = torch.arange(n, device=offsets.device)
    document = torch.searchsorted(offsets[1:], index, right=True)
    rows = document[None]
    if positions is None:
        position, length = (index - offsets[document])[:, None], _sizes(offsets)[document]
    else:
        position = positions.reshape(n, -1)
        position = position.float() if position.is_floating_point() and position.dtype.itemsize < 4 else position
        position = position if position.is_floating_point() else position.long()
        empty = position.new_zeros(offsets.shape[0])
        length = empty.scatter_reduce(0, document, position[:, 0] + 1, "amax", include_self=False)[document]
    return Coordinates(position[None], index[None], rows, length[None], ordered=True, start=0, rising=rows)


class _Recent(threading.local):
    """The last coordinates of a thread, for which the layers of a model ask in turn.

    They are found by the values of the offsets, since a collective, numpy or ``.data`` can change a tensor unnoticed.
    """

    def __init__(self) -> None:
        self.made: deque[tuple[Tensor, int, Coordinates, int]] = deque(maxlen=MOST_RECENT)


MOST_RECENT = 4
_recent = _Recent()


def recent(offsets: Tensor, n: int) -> Coordinates | None:
    """Returns the coordinates that ``coordinates`` has made of the same offsets, if it still has them.

    Args:
        offsets: where the sequences begin.
        n: the tokens of all sequences.
    """
    if not _may_keep(offsets):
        return None
    for held, count, made, version in _recent.made:
        if count == n and torch.equal(held, offsets) and _writes(made) == version:
            return made
    return None


def _may_keep(offsets: Tensor) -> bool:
    """Returns whether coordinates may be kept: on other devices than a CPU, comparing offsets would wait."""
    return not watched() and type(offsets) is Tensor and offsets.is_cpu


def _writes(at: Coordinates) -> int:
    return writes([x for x in (at.position, at.index, at.document, at.length) if isinstance(x, Tensor)])


def sides(
    q_offsets: Tensor,
    k_offsets: Tensor,
    n: int,
    m: int,
    q_positions: Tensor | Coordinates | None,
    k_positions: Tensor | Coordinates | None,
    encoding: PositionEncoding | None,
) -> tuple[Coordinates, Coordinates]:
    """Returns the coordinates of queries and keys; they are one object if both have the same sequences.

    The last query of a sequence stands at its last key, as in ``attention``.

    Args:
        q_offsets: where the sequences of the queries begin, int64 [batch + 1].
        k_offsets: those of the keys; the same object if they are the same.
        n: the queries of all sequences.
        m: the keys of all sequences.
        q_positions: [n] or [n, axes], or the coordinates of the row; None for the default.
        k_positions: likewise.
        encoding: the encoding of the call.

    Raises:
        HeadwayError: if only one side has positions and the lengths of both differ, or if an encoding would have to
            place queries before the first key.
    """
    if q_offsets is k_offsets and (q_positions is None or k_positions is None or q_positions is k_positions):
        at = _side(q_offsets, n, k_positions if q_positions is None else q_positions)
        return at, at
    if (q_positions is None) != (k_positions is None):
        given, missing = ("k_positions", "q_positions") if q_positions is None else ("q_positions", "k_positions")
        raise HeadwayError(f"{given} are given but {missing} are not, and the lengths of q and k differ: give both")
    k_at = _side(k_offsets, m, k_positions)
    if q_offsets is k_offsets or isinstance(q_positions, Coordinates):
        return _side(q_offsets, n, q_positions), k_at
    q_sizes, k_sizes = _sizes(q_offsets), _sizes(k_offsets)
    acts = encoding is not None and bool(getattr(encoding, "acts", True))
    if acts and q_positions is None and q_sizes.is_cpu and not watched() and bool((q_sizes > k_sizes).any()):
        raise HeadwayError(
            "a sequence has more queries than keys, so the first queries would stand below 0: give q_positions and "
            "k_positions"
        )
    own = _side(q_offsets, n, q_positions)
    assert own.document is not None
    document = own.document[0]
    before = (k_sizes - q_sizes)[document]
    local = own.index[0] - q_offsets[document] + before
    if q_positions is None:
        own = own._with(position=local[None, :, None], length=k_sizes[document][None])
    return own._with(index=(k_offsets[document] + local)[None], ordered=False, start=None, rising=None), k_at


def _side(offsets: Tensor, n: int, positions: Tensor | Coordinates | None) -> Coordinates:
    return positions if isinstance(positions, Coordinates) else coordinates(offsets, n, positions)


def _sizes(offsets: Tensor) -> Tensor:
    """Returns the length of each sequence, and 0 for values after the last one."""
    return torch.cat([offsets.diff(), offsets.new_zeros(1)])


# ---------------------------------------------------------------- masks


@dataclass(frozen=True, eq=False)
class ByDocument(Mask):
    """A mask that counts the tokens of each document of one row from 0.

    Args:
        mask: the mask.
        q_offsets: the index of the first query of each document, int64 [documents + 1].
        k_offsets: that of its first key.
    """

    axes = named(q_offsets=(), k_offsets=())

    mask: Mask
    q_offsets: Tensor
    k_offsets: Tensor

    def for_call(self, batch: int, heads: int) -> Mask:
        mask = self.mask.for_call(batch, heads)
        return self if mask is self.mask else self._with(mask=mask)

    def allowed(self, q: Coordinates, k: Coordinates) -> Tensor:
        return self.mask.allowed(_from_zero(q, self.q_offsets), _from_zero(k, self.k_offsets))

    def interval(self, q: Coordinates, k: Coordinates) -> Bounds | None:
        if not k.ordered or q.document is None or self.mask.foreign:
            return None
        own = _from_zero(q, self.q_offsets)
        slots = torch.arange(k.index.shape[1], device=k.index.device)[None]
        found = self.mask.interval(own, k._with(index=slots, start=0, document=None, spanned=None, rising=None))
        if found is None:
            return None
        first = self.k_offsets[q.document] - k.index[:, :1]
        size = _sizes(self.k_offsets)[q.document]
        start, stop = (_counted(bound, own) for bound in found)
        start = 0 if start is None else start.clamp(min=0) if isinstance(start, Tensor) else max(start, 0)
        stop = size if stop is None else torch.minimum(torch.as_tensor(stop, device=size.device), size)
        return first + start, first + stop


def _counted(bound: Bound, q: Coordinates) -> int | Tensor | None:
    return q.index + bound.offset if isinstance(bound, Slot) else bound


def _from_zero(at: Coordinates, offsets: Tensor) -> Coordinates:
    """Returns coordinates whose index counts from 0 in each document."""
    return at._with(index=at.index - offsets[at.document], ordered=False, start=None, spanned=None)


def by_document(mask: Mask | Tensor | None, q_offsets: Tensor, k_offsets: Tensor, *, apart: bool = False) -> Mask:
    """Returns the mask of a row of sequences in which each sequence has this mask and sees no other one.

    Args:
        mask: the mask of each sequence.
        q_offsets: where the sequences of the queries begin, int64 [batch + 1].
        k_offsets: those of the keys.
        apart: whether queries and keys have separate indices, each from 0 on, so that their differences mean nothing.

    Raises:
        HeadwayError: if the mask holds a tensor, whose dimensions do not fit one row of all sequences.
    """
    return Documents() if mask is None else _within(mask, q_offsets, k_offsets, apart) & Documents()


def _within(mask: Mask | Tensor, q_offsets: Tensor, k_offsets: Tensor, apart: bool) -> Mask:
    if isinstance(mask, Mask) and (joined := parts_of(mask)):
        return mask._with(masks=tuple([_within(part, q_offsets, k_offsets, apart) for part in joined]))
    if type(mask) is Function:
        return Function(_of_sequences(mask.function, q_offsets, k_offsets))
    if not isinstance(mask, Mask) or any(isinstance(value, Tensor) for value in attributes(mask).values()):
        said = "a tensor" if isinstance(mask, Tensor) else f"a {type(mask).__name__}"
        said = "a BlockMask" if isinstance(mask, BlockFunction) else said
        said += " that holds a tensor" if isinstance(mask, Mask) else ""
        raise HeadwayError(
            f"mask is {said} and the call has sequences of different lengths: give a mask of headway.masks that holds "
            "none, such as Causal()"
        )
    if (type(mask) in BY_DIFFERENCE and not apart) or type(mask) is Documents:
        return mask
    return ByDocument(mask, q_offsets, k_offsets)


def _of_sequences(function: MaskMod, q_offsets: Tensor, k_offsets: Tensor) -> MaskMod:
    """Returns the function of the tokens of a row for a function of the tokens of each sequence, whose number is b."""

    def of_row(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        q_number, k_number = (
            (offsets[1:-1] <= index).sum() for offsets, index in ((q_offsets, q_idx), (k_offsets, kv_idx))
        )
        return function(q_number, h, q_idx - q_offsets[q_number], kv_idx - k_offsets[k_number])

    of_row.__name__ = getattr(function, "__name__", type(function).__name__)
    return of_row


# ---------------------------------------------------------------- layers


def need_none(arguments: Mapping[str, object]) -> None:
    """Raises HeadwayError if an argument is given that a layer does not take with jagged tensors.

    Args:
        arguments: arguments by name.
    """
    for name, value in arguments.items():
        if value is not None:
            raise HeadwayError(
                f"{name} is given but cannot continue the sequences of a nested tensor, the input: pad them, "
                "positions=Coordinates.padded(lengths, n)"
            )


class Sequences(NamedTuple):
    """The jagged input of a layer, [batch, tokens, …].

    Attributes:
        row: the values of all sequences, [1, tokens, …].
        offsets: where the sequences begin, int64 [batch + 1].
        given: the tensor's own offsets, by which torch knows that two tensors have the same lengths.
    """

    row: Tensor
    offsets: Tensor
    given: Tensor

    @classmethod
    def of(cls, name: str, x: Tensor) -> Sequences:
        """Returns the sequences of a jagged tensor.

        Args:
            name: its name in messages.
            x: the tensor.

        Raises:
            HeadwayError: if it is not jagged along its tokens.
        """
        x = _without_holes(x)
        offsets = starts_of(name, x, "[batch, tokens, width]")
        return cls(row_of(x), offsets, offsets_of(x))

    def need(self, name: str, x: Tensor) -> None:
        """Raises HeadwayError unless x is a jagged tensor of the same lengths.

        Args:
            name: its name in messages.
            x: the tensor.
        """
        _need_same(name, starts_of(name, x, "[batch, tokens, width]"), self.offsets)

    def coordinates(self, name: str, positions: Tensor | Coordinates | None) -> Coordinates:
        """Returns the coordinates of the row.

        Args:
            name: their name in messages.
            positions: a jagged tensor [batch, tokens] or [batch, tokens, axes], or coordinates of the row. Default: 0,
                1, … in each sequence.

        Raises:
            HeadwayError: for a tensor that is not jagged or has other lengths.
        """
        return _side(self.offsets, self.row.shape[1], positions_of(name, positions, self.offsets))

    def same_as(self, other: Sequences) -> bool:
        """Returns whether both have the same lengths.

        Args:
            other: other sequences.
        """
        return self is other or same(self.offsets, other.offsets)

    def mask(self, mask: Mask | Tensor | None, keys: Sequences | None = None) -> Mask:
        """Returns the mask of the row, in which each sequence has this mask and sees no other one.

        Args:
            mask: the mask of each sequence.
            keys: the sequences of the keys; queries and keys then both count from 0. Default: these.

        Raises:
            HeadwayError: if the mask holds a tensor, or the numbers of sequences differ.
        """
        keys = self if keys is None else keys
        if keys.offsets.shape != self.offsets.shape:
            raise HeadwayError(
                f"there are {len(self.offsets) - 1} sequences, and {len(keys.offsets) - 1} of the keys: give as many"
            )
        return by_document(mask, self.offsets, keys.offsets, apart=not keys.same_as(self))

    def jagged(self, out: Tensor) -> Tensor:
        """Returns an output of the row, [1, tokens, …], as a jagged tensor of the same lengths.

        Args:
            out: the output.
        """
        return as_jagged(out, self.given)


# ---------------------------------------------------------------- calls


class Row(NamedTuple):
    """A call of attention of jagged tensors as a call of one row.

    Attributes:
        q: queries, [1, heads, tokens, head_dim].
        k: keys.
        v: values.
        arguments: the other arguments.
        offsets: those of the queries.
        repeated: whether an earlier call had the same coordinates, as in the other layers of a model.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    arguments: Arguments
    offsets: Tensor
    repeated: bool

    @classmethod
    def of(cls, q: Tensor, k: Tensor, v: Tensor, q_offsets: Tensor, k_offsets: Tensor, arguments: Arguments) -> Row:
        """Returns the call of one row, in which each sequence is by itself.

        Args:
            q: queries, [1, heads, tokens, head_dim].
            k: keys.
            v: values.
            q_offsets: where the sequences of the queries begin, int64 [batch + 1].
            k_offsets: those of keys and values; the same object if they are the same.
            arguments: the other arguments, with positions [tokens] or [tokens, axes].

        Raises:
            HeadwayError: if positions or the mask do not fit.
        """
        if q_offsets.shape != k_offsets.shape:
            raise HeadwayError(f"q has {len(q_offsets) - 1} sequences but k {len(k_offsets) - 1}: give as many")
        given = arguments.copy()
        by_default = q_offsets is k_offsets and given.get("q_positions") is None and given.get("k_positions") is None
        repeated = by_default and recent(q_offsets, q.shape[2]) is not None
        encoding = given.get("encoding")
        encoding = encoding_for(encoding, q, given.get("head_shard")) if isinstance(encoding, str) else encoding
        given["encoding"], at = encoding, (given.get("q_positions"), given.get("k_positions"))
        given["q_positions"], given["k_positions"] = sides(q_offsets, k_offsets, q.shape[2], k.shape[2], *at, encoding)
        given["mask"] = by_document(mask_or_tensor(given.get("mask")), k_offsets, k_offsets)
        return cls(q, k, v, given, q_offsets, repeated)

    def jagged(self, out: Tensor) -> Tensor:
        """Returns the output of the row as a jagged tensor, [batch, heads, tokens, …]."""
        return as_jagged(out, self.offsets, 2)


def row(q: Tensor, k: Tensor, v: Tensor, arguments: Arguments) -> Row:
    """Returns a call of attention of jagged tensors as a call of one row.

    Args:
        q: queries, [batch, heads, tokens, head_dim], jagged.
        k: keys, likewise; their lengths may differ from those of q.
        v: values, of the lengths of k.
        arguments: the other arguments. Positions, inputs and a sink for each query are jagged too.

    Raises:
        HeadwayError: if one of them is not jagged, or lengths do not fit.
    """
    layout = "[batch, heads, tokens, head_dim]"
    q, k, v = (_without_holes(x) for x in (q, k, v))
    q_offsets, k_offsets, v_offsets = (starts_of(name, x, layout) for name, x in (("q", q), ("k", k), ("v", v)))
    if not same(k_offsets, v_offsets):
        raise HeadwayError(f"v has sequences of {_said(v_offsets)} tokens but k of {_said(k_offsets)}: give as many")
    if same(q_offsets, k_offsets):
        k_offsets = q_offsets
    given = arguments.copy()
    for side, offsets in (("q", q_offsets), ("k", k_offsets)):
        at, read = f"{side}_positions", f"{side}_input"
        given[at] = positions_of(at, given.get(at), offsets)  # type: ignore[literal-required, arg-type]
        x = given.get(read)
        if isinstance(x, Tensor):
            _need_same(read, starts_of(read, x, "[batch, tokens, embed_dim]"), offsets)
            given[read] = row_of(x)  # type: ignore[literal-required]
    sink = given.get("sink")
    if isinstance(sink, Tensor) and sink.is_nested:
        _need_same("sink", starts_of("sink", sink, "[batch, heads, tokens]"), q_offsets)
        given["sink"] = row_of(sink)
    found = Row.of(row_of(q), row_of(k), row_of(v), q_offsets, k_offsets, given)
    return found._replace(offsets=offsets_of(q))  # the same object, from which torch knows that lengths are equal


def cumulative(name: str, given: Tensor, x: Tensor) -> Tensor:
    """Returns cumulative lengths as offsets, int64 [batch + 1].

    Args:
        name: their name in messages.
        given: the cumulative lengths, such as [0, 5, 15].
        x: the values of all sequences, [tokens, …].

    Raises:
        HeadwayError: for another type, dtype, shape or device; and, if they can be read without waiting for a device,
            if they do not rise from 0 to the number of tokens.
    """
    if not isinstance(given, Tensor) or given.ndim != 1 or given.is_floating_point() or given.dtype == torch.bool:
        said = f"{given.dtype} {list(given.shape)}" if isinstance(given, Tensor) else f"a {type(given).__name__}"
        raise HeadwayError(f"{name} is {said}: give integers [batch + 1], such as torch.tensor([0, {x.shape[0]}])")
    if given.device != x.device:
        raise HeadwayError(f"{name} is on {given.device} but the tokens are on {x.device}: move it there")
    if given.is_cpu and not watched():
        ends = given.tolist()
        if not ends or ends[0] != 0 or ends[-1] != x.shape[0] or ends != sorted(ends):
            raise HeadwayError(
                f"{name} is {ends!s:.60} for {x.shape[0]} tokens: give where each sequence begins, from 0 on, and "
                "the number of tokens at the end"
            )
    return given.long()


def positions_of(name: str, given: Tensor | Coordinates | None, offsets: Tensor) -> Tensor | Coordinates | None:
    """Returns positions of a row of sequences: values of a jagged tensor, or the given coordinates or None.

    Args:
        name: their name in messages.
        given: a jagged tensor [batch, tokens] or [batch, tokens, axes], coordinates, or None.
        offsets: where the sequences begin.

    Raises:
        HeadwayError: for a tensor that is not jagged or has other lengths.
    """
    if given is None or isinstance(given, Coordinates):
        return given
    if not is_nested(given):
        raise HeadwayError(
            f"{name} is not a nested tensor and the tokens are: give a jagged one, [batch, tokens] or "
            "[batch, tokens, axes]"
        )
    _need_same(name, starts_of(name, given, "[batch, tokens]" if given.ndim == 2 else "[batch, tokens, axes]"), offsets)
    return given.values()


def same(a: Tensor, b: Tensor) -> bool:
    """Returns whether two tensors of offsets are known to be equal.

    Args:
        a: offsets.
        b: offsets.
    """
    if a is b:
        return True
    return a.shape == b.shape and not watched() and torch.equal(a, b)


def _need_same(name: str, offsets: Tensor, others: Tensor) -> None:
    if not same(offsets, others):
        raise HeadwayError(
            f"{name} has sequences of {_said(offsets)} tokens but there are {_said(others)}: give as many"
        )


def _said(offsets: Tensor) -> str:
    sizes = [] if watched() else offsets.diff().tolist()
    return f"[{', '.join(map(str, sizes[:4]))}{', …' if len(sizes) > 4 else ''}]"


def _without_holes(x: Tensor) -> Tensor:
    """Returns a jagged tensor whose sequences follow one another, of one that is a view of a padded tensor."""
    if not is_nested(x) or x.layout != torch.jagged or not has_holes(x):
        return x
    return x.transpose(1, 2).contiguous().transpose(1, 2) if x.ndim == 4 and ragged_dim(x) == 2 else x.contiguous()
