"""Coordinates of tokens: their positions, their order in the stream, their documents."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any, Protocol, cast

import torch
from torch import Tensor

from ._torch import writes_of
from .constants import constant
from .errors import HeadwayError, need_lengths
from .records import Record
from .tracing import refuse_tracers, watched

IN_MEMORY = frozenset({torch.int64, torch.float32, torch.float64})
"""Dtypes in which positions are read as they lie in memory."""
FAR = 1 << 60
"""A number above the index and the position of any token, small enough that sums with them fit int64."""


KEPT = 1 << 13
"""The end of the stream whose coordinates are kept between calls, 128 KiB."""


@dataclass(frozen=True, eq=False, repr=False)
class Coordinates(Record):
    """Positions and order of the tokens of one side, queries or keys, independent of any encoding.

    In the shapes below b is 1 or the batch. The last five fields state what is known without reading a tensor.

    Args:
        position: [b, n, axes], integers or floats with any gaps. Encodings read it. float32 has 24 bits: of seconds
            since 1970 it keeps steps of 128. Give such timestamps in float64, or subtract the first one before.
        index: [b, n] int64, the order of each token in its stream. Masks and dropout read it.
        document: [b, n] integers, or None.
        length: tokens in the stream: an int, or a tensor [b, 1] or [b, n]. Encodings that depend on the total length
            read it.
        ordered: whether the index rises by one from slot to slot. Masks are then intervals of slots.
        start: the index of the first slot, if it is the same in every row and known.
        spanned: the ``position`` that is known to rise by one from ``start`` on; see ``consecutive``.
        rising: the ``document`` whose values are known to rise along the slots; see ``documents_in_order``.
        padding: "left" or "right" where rows are padded on that side: tokens with an index below 0, or from the
            ``length`` on, are padding, as ``padded`` makes them. No call attends to them, whatever its mask is.
        shard: the stream whose tokens several processes share, and which of them are here. Attention needs the other
            tokens too, so only ``headway.parallel`` takes such coordinates.

    Raises:
        HeadwayError: for a field of another type, dtype or shape; the message names it.
    """

    position: Tensor
    index: Tensor
    document: Tensor | None = None
    length: int | Tensor | None = None
    ordered: bool = False
    start: int | None = None
    spanned: Tensor | None = None
    rising: Tensor | None = None
    padding: str | None = None
    shard: Shard | None = None

    def __post_init__(self) -> None:
        position, index = self.position, self.index
        for name, x, dimensions in (("position", position, "[batch, n, axes]"), ("index", index, "[batch, n]")):
            if not isinstance(x, Tensor):
                refuse_tracers(x)
                raise HeadwayError(f"Coordinates has {name} of type {type(x).__name__}: give a tensor {dimensions}")
            if x.ndim != dimensions.count(",") + 1:
                raise HeadwayError(f"Coordinates has {name} of shape {tuple(x.shape)}: give {dimensions}")
        if position.dtype == torch.bool or position.is_complex():
            raise HeadwayError(f"Coordinates has position of {position.dtype}: give integers or floats")
        if index.dtype != torch.int64:
            raise HeadwayError(f"Coordinates has index of {index.dtype}: give int64, the order of the tokens")
        if self.padding not in (None, "left", "right"):
            raise HeadwayError(f"Coordinates has padding {self.padding!r}: give 'left', 'right' or None")
        rows, n = position.shape[:2]
        _need_rows("index", index, rows, n)
        if self.document is not None:
            _need_rows("document", self.document, rows, n)
            if self.document.is_floating_point():
                raise HeadwayError(f"Coordinates has document of {self.document.dtype}: give whole numbers")
        if isinstance(self.length, Tensor):
            if not torch.jit.is_tracing():  # sizes are tensors while tracing; attention refuses tracers later
                _need_rows("length", self.length, rows, n, one=True)
        elif not (self.length is None or isinstance(self.length, (int, torch.SymInt))):
            raise HeadwayError(
                f"Coordinates has length {self.length!r}: give an int, or a tensor [batch, 1] or [batch, n]"
            )

    def __repr__(self) -> str:
        rows, n, axes = self.position.shape
        said = [f"{n} tokens" if rows == 1 else f"{rows} rows of {n} tokens"]
        readable = self.position.is_cpu and type(self.position) is Tensor and not watched()
        on_axes = "positions" if axes == 1 else f"positions on {axes} axes"
        on_axes += f" ({str(self.position.dtype).removeprefix('torch.')})" if self.position.is_floating_point() else ""
        numbers = self.position.detach().flatten()
        said.append(f"{on_axes} {_between(numbers)}" if readable and len(numbers) else on_axes)
        if readable and n and not torch.equal(self.index, self.position[..., 0].detach().expand_as(self.index)):
            said.append(f"indices {_between(self.index)}")
        if self.document is not None:
            counts = (
                [row.unique_consecutive(return_counts=True)[1].tolist() for row in self.document] if readable else []
            )
            said.append(
                f"documents of {_few(', '.join(map(str, row)) for row in counts)} tokens" if counts else "documents"
            )
        if self.padding:
            real = self.length.flatten().tolist() if readable and isinstance(self.length, Tensor) else []
            said.append(
                f"padding on the {self.padding}" + (f" of rows of {_few(map(str, real), ', ')} tokens" if real else "")
            )
        elif isinstance(self.length, int):
            said.append(f"length {self.length}")
        if self.shard is not None:
            said.append(f"a shard of {self.shard.whole.index.shape[1]} tokens")
        if isinstance(self, Placed):
            said.append(f"placed by {type(self.by).__name__}")
        return f"Coordinates({'; '.join(said)})"

    @property
    def consecutive(self) -> bool:
        """Whether positions are known to be start, start + 1, … on every axis.

        This is a fact about one tensor: it no longer holds once ``position`` is replaced.
        """
        return self.spanned is not None and self.spanned is self.position and self.start is not None

    @property
    def is_stream(self) -> bool:
        """Whether these are known to be the coordinates of one row of consecutive tokens, as ``span`` makes them."""
        if not (self.consecutive and self.ordered) or self.length is None or isinstance(self.length, Tensor):
            return False
        alone = self.document is None and self.padding is None and self.shard is None
        return alone and self.position.shape[::2] == (1, 1)

    @property
    def documents_in_order(self) -> bool:
        """Whether documents are known to follow one another; a fact about one tensor, like ``consecutive``."""
        return self.rising is not None and self.rising is self.document

    @property
    def tables(self) -> Any:
        """What an encoding's ``tables`` computed from these coordinates; None before an encoding has placed them."""
        return None

    @property
    def learned(self) -> Any:
        """What an encoding's ``learned_tables`` computed; None outside of a forward pass."""
        return None

    @staticmethod
    def span(
        n: int,
        *,
        start: int = 0,
        length: int | None = None,
        axes: int = 1,
        device: torch.device | str | None = None,
    ) -> Coordinates:
        """Coordinates of n tokens without gaps: position = index = start … start + n − 1.

        Args:
            n: the number of tokens.
            start: the position and index of the first one.
            length: tokens in the stream. Default: start + n.
            axes: the number of axes; a token has the same position on each, as text beside images has.
            device: where the tensors are created.
        """
        index = torch.arange(start, start + n, device=device).unsqueeze(0)
        total = start + n if length is None else length
        position = index.unsqueeze(-1).expand(-1, -1, axes)
        return Coordinates(position, index, length=total, ordered=True, start=start, spanned=position)

    @staticmethod
    def of(
        positions: Tensor | Coordinates,
        n: int,
        *,
        name: str = "positions",
        start: int = 0,
        length: int | None = None,
    ) -> Coordinates:
        """Coordinates from a tensor of positions; the index is the order of the slots, start … start + n − 1.

        Args:
            positions: a tensor [n], [batch, n] or [batch, n, axes], or ``Coordinates``, which are returned as they are.
                [n, axes] is one sequence, unless n = axes, where it cannot be told from [batch, n].
            n: the number of tokens.
            name: the name of the argument in messages.
            start: the index of the first token.
            length: tokens in the stream. Default: the largest position + 1.

        Raises:
            HeadwayError: for another shape or number of tokens, or a dtype that is not numeric.
        """
        if isinstance(positions, Coordinates):
            if positions.index.shape[-1] != n:
                raise HeadwayError(
                    f"{name} hold {positions.index.shape[-1]} tokens but there are {n}: give one for each token"
                )
            return positions
        if not isinstance(positions, Tensor):
            raise HeadwayError(
                f"{name} is a {type(positions).__name__}: give a tensor [n], [batch, n] or [batch, n, axes], "
                "or headway.Coordinates"
            )
        if positions.dtype == torch.bool or positions.is_complex():
            raise HeadwayError(f"{name} are {positions.dtype}: give integers or floats")
        # differences of small or unsigned integers would wrap around, and those of 16-bit floats would be rounded
        positions = positions.float() if positions.dtype.itemsize < 4 and positions.is_floating_point() else positions
        positions = positions if positions.is_floating_point() else positions.long()
        shape = tuple(positions.shape)
        if positions.ndim == 2 and shape[1] != n and shape[0] == n and shape[1]:
            positions = positions[None]
        elif positions.ndim == 1:
            positions = positions[None, :, None]
        elif positions.ndim == 2:
            positions = positions[..., None]
        elif positions.ndim != 3 or not shape[2]:
            raise HeadwayError(f"{name} have shape {shape}: give [n], [batch, n] or [batch, n, axes]")
        if positions.shape[1] != n:
            raise HeadwayError(f"{name} have shape {shape} but there are {n} tokens: give one for each token")
        index = torch.arange(start, start + n, device=positions.device)[None]
        total: int | Tensor | None = length
        if total is None:
            total = positions[..., 0].amax(dim=1, keepdim=True) + 1 if n else 0
        return Coordinates(positions, index, length=total, ordered=True, start=start)

    @staticmethod
    def packed(
        lengths: Sequence[int] | Sequence[Sequence[int]] | Tensor,
        *,
        last: Sequence[int] | Sequence[Sequence[int]] | None = None,
        device: torch.device | str | None = None,
    ) -> Coordinates:
        """Coordinates of documents that follow one another in one row; positions restart at 0 in each.

            Coordinates.packed([5, 10])               # one row of 15 tokens
            Coordinates.packed([[5, 10], [7, 8]])     # two rows

        Args:
            lengths: the tokens of each document, or of each document of each row. All rows must have the same number of
                tokens.
            last: for each document, how many of its last tokens are here, such as the queries for packed keys in a
                cache. Default: all tokens.
            device: where the tensors are created.

        Raises:
            HeadwayError: if a tensor of lengths looks like the ends of documents, as ``cu_seqlens`` holds, a length is
                negative, ``last`` does not have one number for each document, from 0 to the document's length, or rows
                have different numbers of tokens.
        """
        if isinstance(lengths, int):
            raise HeadwayError(f"lengths is {lengths}: give the tokens of each document, such as [{lengths}]")
        if len(lengths) and (lengths.ndim > 1 if isinstance(lengths, Tensor) else hasattr(lengths[0], "__len__")):
            return _rows_of([list(row) if not isinstance(row, Tensor) else row for row in lengths], last, device)  # type: ignore[arg-type]
        if isinstance(lengths, Tensor):
            lengths = _lengths_of(lengths)
        lengths, last = cast(Sequence[int], lengths), cast(Sequence[int] | None, last)
        need_lengths(lengths)
        sizes = torch.tensor(list(lengths), dtype=torch.long, device=device)
        total = int(sum(lengths))
        index = torch.arange(total, device=device)
        document = torch.repeat_interleave(torch.arange(len(lengths), device=device), sizes)
        start = torch.repeat_interleave(torch.cumsum(sizes, 0) - sizes, sizes)
        length = torch.repeat_interleave(sizes, sizes)
        position = (index - start)[None, :, None]
        if last is None:
            rows = document[None]
            return Coordinates(position, index[None], rows, length[None], ordered=True, start=0, rising=rows)
        if len(last) != len(lengths) or any(not 0 <= count <= size for count, size in zip(last, lengths, strict=True)):
            raise HeadwayError(
                f"last is {list(last)} for documents of {list(lengths)} tokens: give one number for each, "
                "from 0 to its length"
            )
        counts = torch.tensor(list(last), dtype=torch.long, device=device)
        kept = position[0, :, 0] >= length - counts[document]
        rows = document[None, kept]
        return Coordinates(position[:, kept], index[None, kept], rows, length[None, kept], rising=rows)

    @staticmethod
    def padded(
        lengths: Sequence[int] | Tensor,
        n: int,
        *,
        side: str = "left",
        device: torch.device | str | None = None,
    ) -> Coordinates:
        """Coordinates of padded rows: position and index of the first real token are 0 in each row.

        Padding on the left has a negative index and the position 0. No call attends to padding, so a padded row gives
        the same as the unpadded one, also in later steps with a cache.

        Args:
            lengths: the real tokens of each row.
            n: slots in a row.
            side: where the padding is, "left" or "right".
            device: where the tensors are created.

        Raises:
            HeadwayError: for another side, and for lengths above n or below 0.
        """
        if side not in ("left", "right"):
            raise HeadwayError(f"side is {side!r}: give 'left' or 'right'")
        if not isinstance(lengths, Tensor):
            need_lengths(lengths)
        if not isinstance(lengths, Tensor) and max(lengths, default=0) > n:
            raise HeadwayError(f"lengths go up to {max(lengths)} but rows have {n} slots: give n = {max(lengths)}")
        sizes = torch.as_tensor(lengths, device=device).long()
        index = torch.arange(n, device=sizes.device)[None].expand(sizes.shape[0], n)
        if side == "left":
            index = index - (n - sizes)[:, None]
        return Coordinates(index.clamp(min=0)[..., None], index, length=sizes[:, None], ordered=True, padding=side)

    def axis(self, number: int = 0) -> Tensor:
        """The positions on one axis, [b, n].

        Args:
            number: the axis.

        Raises:
            HeadwayError: if there is no such axis.
        """
        axes = self.position.shape[-1]
        if not 0 <= number < axes:
            raise HeadwayError(
                f"the encoding reads axis {number} but positions have {axes}: give positions [batch, n, axes]"
            )
        return self.position[..., number]

    def placed_by(
        self, encoding: Any, tables: Any = None, *, position: Tensor | None = None, learned: Any = None
    ) -> Placed:
        """These coordinates as placed by an encoding.

        Args:
            encoding: the encoding.
            tables: the result of its ``tables``.
            position: where it sees the tokens. Default: where they are.
            learned: the result of its ``learned_tables``.
        """
        position = self.position if position is None else position
        given = self.given if isinstance(self, Placed) else self
        return Placed._made(
            {
                **self._values(),
                "position": position,
                "given": given,
                "by": encoding,
                "located": position,
                "tables": tables,
                "learned": learned,
                "parts": None,
                "version": _version(given.position),
            }
        )

    def belongs_to(self, encoding: Any) -> bool:
        """Whether ``encoding`` has placed these coordinates, and the positions have not been written into since."""
        return False

    def as_given(self) -> Coordinates:
        """The coordinates from before an encoding placed them."""
        return self

    def facts(self) -> Coordinates:
        """The coordinates as they are now, without the encoding that placed them and its tables."""
        return self

    def step_key(self, batch: int, n: int, encoding: Any) -> Hashable:
        """The facts, other than numbers of coordinates, that a decoding step depends on; None if it cannot be one.

        A step reads from memory one position of each token. The tokens are a stream in order, whose rows may be padded.

        Args:
            batch: the rows of the call.
            n: the tokens of the call.
            encoding: the encoding of the call, by which coordinates that are placed must have been placed.
        """
        position, index = self.position, self.index
        if type(position) is not Tensor or type(index) is not Tensor or not (position.is_cpu and index.is_cpu):
            return None
        (rows, tokens, axes), (index_rows, indices) = position.shape, index.shape
        if tokens != n or indices != n or axes != 1 or rows not in (1, batch) or index_rows not in (1, batch):
            return None
        if position.dtype not in IN_MEMORY or position.requires_grad or not self.ordered or self.document is not None:
            return None
        if self.shard is not None:
            return None
        if self.padding is None:
            return None if self.start is None or self.start < 0 else (position.dtype, False)
        length = self.length
        if isinstance(length, Tensor) and (length.shape[0] != index_rows or length.dtype != torch.int64):
            return None
        return None if self.start is not None else (position.dtype, True)

    def stream_key(self, encoding: Any) -> Hashable:
        """What these coordinates hold, if that is known without reading a tensor; None if it is not.

        Args:
            encoding: the encoding of the call, by which coordinates that are placed must have been placed.
        """
        position, index = self.position, self.index
        if not self.is_stream or type(position) is not Tensor or position.dtype != torch.int64:
            return None
        if _version(position) or _version(index):  # they have been written into, or it is not known
            return None
        return self.start, self.length, position.shape, position.device

    def row_starts(self) -> list[int]:
        """The index of the first token of each row, or of all rows."""
        starts: list[int] = self.index[:, 0].tolist() if self.start is None else [self.start]
        return starts

    def row_stops(self) -> list[int] | None:
        """The index after the last real token of each row that is padded; None if the padding is all in front."""
        if self.length is None:
            return None
        stops: list[int] = (
            self.length[:, -1].tolist() if isinstance(self.length, Tensor) else [self.length] * len(self.index)
        )
        return stops

    def append(self, other: Coordinates) -> Coordinates:
        """The coordinates of these tokens followed by others; an encoding places the longer stream again.

        Args:
            other: the coordinates that follow.

        Raises:
            HeadwayError: if the positions of both have different numbers of axes, or one side is a shard.
        """
        other = other.as_given()
        if self.shard is not None or other.shard is not None:
            raise HeadwayError(
                "cannot append to a shard of a stream: append to the whole stream, and take the shard again"
            )
        held, given = self.position.shape[-1], other.position.shape[-1]
        if held != given:
            raise HeadwayError(f"the positions before have {held} axes but the new ones {given}: give as many")

        def join(a: Tensor, b: Tensor) -> Tensor:
            batch = max(a.shape[0], b.shape[0])
            return torch.cat([part.expand(batch, *part.shape[1:]) for part in (a, b)], dim=1)

        length = other.length
        if (
            isinstance(self.length, Tensor)
            and isinstance(length, Tensor)
            and self.length.shape[1] + length.shape[1] > 2
        ):
            sizes = (self.index.shape[1], other.index.shape[1])  # one length per token, as with documents
            length = join(*(x.expand(-1, n) for x, n in zip((self.length, length), sizes, strict=True)))

        documents = None
        if self.document is not None and other.document is not None:
            documents = join(self.document, other.document)
        unknown = self.start is None and other.start is None
        # "if" makes a plain bool, where a compiler would return a symbol for the comparison of symbolic sizes
        follows = True if self.start is not None and other.start == self.start + self.index.shape[1] else False  # noqa: SIM210
        position = join(self.position, other.position)
        return Coordinates(
            position=position,
            index=join(self.index, other.index),
            document=documents,
            length=length,
            ordered=self.ordered and other.ordered and (follows or unknown),
            start=self.start if follows else None,
            padding=self.padding or other.padding,
            spanned=position if follows and self.consecutive and other.consecutive else None,
        )

    def select(self, rows: Tensor) -> Coordinates:
        """The coordinates of the ``rows`` of the batch, an int64 tensor, such as beams."""

        def pick(part: Tensor) -> Tensor:
            return part if part.shape[0] == 1 else part[rows]

        length = self.length
        found = self._with(
            position=pick(self.position),
            index=pick(self.index),
            document=None if self.document is None else pick(self.document),
            length=pick(length) if isinstance(length, Tensor) else length,
            shard=None,
        )
        if self.shard is None:
            return found
        self.shard.need_unchanged(self)
        return found._with(shard=self.shard._with(whole=self.shard.whole.select(rows), tokens=found))

    def rows(self, start: int, stop: int) -> Coordinates:
        """The coordinates of the tokens ``start`` … ``stop`` − 1."""
        length, position = self.length, self.position[:, start:stop]
        document = None if self.document is None else self.document[:, start:stop]
        if isinstance(length, Tensor) and length.shape[-1] > 1:
            length = length[:, start:stop]
        found = self._with(
            position=position,
            index=self.index[:, start:stop],
            document=document,
            length=length,
            start=None if self.start is None else self.start + start,
            rising=document if self.documents_in_order else None,
            spanned=position if self.consecutive else None,
            shard=None,
        )
        if self.shard is None:
            return found
        self.shard.need_unchanged(self)
        return found._with(shard=self.shard._with(runs=self.shard.runs_of(start, stop), tokens=found))

    def take(self, runs: Sequence[tuple[int, int]]) -> Coordinates:
        """The coordinates of some tokens of a stream that several processes share, with those of the whole stream.

        Args:
            runs: the slots of these tokens, as rising ranges (start, stop).
        """
        parts = [self.rows(start, stop) for start, stop in runs]
        if len(parts) == 1:
            return parts[0]._with(shard=Shard(self.as_given(), tuple(runs), parts[0]))

        def join(name: str) -> Tensor:
            return torch.cat([getattr(part, name) for part in parts], dim=1)

        length, document = self.length, None if self.document is None else join("document")
        if isinstance(length, Tensor) and length.shape[-1] > 1:
            length = join("length")
        tokens = Coordinates(
            position=join("position"),
            index=join("index"),
            document=document,
            length=length,
            rising=document if self.documents_in_order else None,
            padding=self.padding,
        )
        return tokens._with(shard=Shard(self.as_given(), tuple(runs), tokens))


class Scans(Protocol):
    """Sums and values of earlier tokens for the tokens of a shard, whichever process has the earlier tokens."""

    def summed(self, steps: Tensor) -> Tensor:
        """Returns the sums of steps up to and including each token, over all tokens of the stream.

        Args:
            steps: the steps of this shard, [batch, n, …].
        """

    def preceding(self, x: Tensor, count: int) -> list[Tensor]:
        """Returns a tensor's values at the ``count`` tokens before each run of the shard, 0 before the first token.

        Args:
            x: the tensor of this shard, [batch, n, …].
            count: the number of tokens.
        """


@dataclass(frozen=True, eq=False, repr=False)
class Shard(Record):
    """The stream that several processes share, and the tokens of one of them.

    Args:
        whole: the coordinates of all tokens.
        runs: the slots of the tokens of the shard, as rising ranges (start, stop).
        tokens: the coordinates of only these tokens.
        scans: reaches the tokens of other processes, within a call of ``headway.parallel``; None outside of one.
    """

    whole: Coordinates
    runs: tuple[tuple[int, int], ...]
    tokens: Coordinates
    scans: Scans | None = None

    def need_unchanged(self, at: Coordinates) -> None:
        """Checks that coordinates of the shard have the tensors that ``take`` has given them.

        Args:
            at: the coordinates.

        Raises:
            HeadwayError: if one was replaced, since other processes would not know of it.
        """
        for name in ("position", "index", "document"):
            if getattr(at, name) is not getattr(self.tokens, name):
                raise HeadwayError(
                    f"{name} was replaced in the coordinates of a shard, and other processes do not know it: replace "
                    "it in the coordinates of all tokens, and take the shard again"
                )

    def runs_of(self, start: int, stop: int) -> tuple[tuple[int, int], ...]:
        """Returns the slots of the tokens ``start`` … ``stop`` − 1 of the shard.

        Args:
            start: the number of the first one among the tokens of the shard.
            stop: the number after the last one.
        """
        found, before = [], 0
        for first, last in self.runs:
            low, high = max(first, first + start - before), min(last, first + stop - before)
            found += [(low, high)] if low < high else []
            before += last - first
        return tuple(found)

    def connected(self) -> Scans:
        """Returns the scans that reach the tokens of other processes.

        Raises:
            HeadwayError: outside of a call of ``headway.parallel``.
        """
        if self.scans is None:
            raise HeadwayError(
                f"the positions belong to a shard, {sum(stop - start for start, stop in self.runs)} of "
                f"{self.whole.index.shape[1]} tokens, and attention needs the others too: call "
                "headway.parallel.attention, or give positions of the whole stream"
            )
        return self.scans


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Placed(Coordinates):
    """Coordinates that an encoding has placed: where it sees the tokens, and its tables.

    Another encoding places ``given`` again. A copy keeps the encoding. If the encoding is copied together with the
    coordinates, the copy refers to the copied encoding.

    Args:
        given: the coordinates before ``PositionEncoding.locate``.
        by: the encoding.
        located: the positions that the tables were computed from.
        tables: the encoding's tables, which depend only on the coordinates.
        learned: the encoding's learned tables, for one forward pass.
        parts: the coordinates placed by each part of a composed encoding, once they have been asked for.
        version: the version counter of the given positions at that time; −1 if it is not counted.
    """

    given: Coordinates
    by: Any
    located: Tensor
    tables: Any = None
    learned: Any = None
    parts: tuple[Placed, ...] | None = None
    version: int = -1

    def belongs_to(self, encoding: Any) -> bool:
        return self.by is encoding and self._fresh

    @property
    def _fresh(self) -> bool:
        """Whether the given positions have not been written into since, by their version counter."""
        return torch.compiler.is_compiling() or self.version < 0 or writes_of(self.given.position) == self.version

    def step_key(self, batch: int, n: int, encoding: Any) -> Hashable:
        known = self.belongs_to(encoding) and self.position is self.located
        return super().step_key(batch, n, encoding) if known else None

    def stream_key(self, encoding: Any) -> Hashable:
        known = self.belongs_to(encoding) and self.position is self.located
        key = self.given.stream_key(encoding) if known else None
        return None if key is None else (key, "placed")

    def as_given(self) -> Coordinates:
        """The coordinates from before an encoding placed them.

        Raises:
            HeadwayError: if the positions were replaced since, so that these are not known.
        """
        if self.position is not self.located:
            raise HeadwayError(
                f"the positions were replaced after a {type(self.by).__name__} had placed the coordinates: replace "
                "them before, or give Coordinates that no encoding has placed"
            )
        return self.given

    def facts(self) -> Coordinates:
        held = self._values()
        return Coordinates._made({name: held[name] for name in FACTS})

    def append(self, other: Coordinates) -> Coordinates:
        return self.as_given().append(other)

    def select(self, rows: Tensor) -> Coordinates:
        return self._part(lambda at: at.select(rows))

    def rows(self, start: int, stop: int) -> Coordinates:
        return self._part(lambda at: at.rows(start, stop))

    def take(self, runs: Sequence[tuple[int, int]]) -> Coordinates:
        return self._part(lambda at: at.take(runs))

    def _part(self, take: Callable[[Coordinates], Coordinates]) -> Coordinates:
        """Returns a part of the tokens, with its located and given positions but without tables."""
        if not self._fresh:
            return take(self.as_given())
        there, given = take(self.facts()), take(self.given)
        position = there.position if self.position is self.located else self.located
        return there.placed_by(self.by)._with(given=given, located=position, version=_version(given.position))

    def __deepcopy__(self, memo: dict[int, Any]) -> Placed:
        by = memo.get(id(self.by), self.by)
        return _copied({k: by if k == "by" else copy.deepcopy(x, memo) for k, x in self._values().items()})

    def __reduce__(self) -> tuple[Any, ...]:
        return _copied, (self._values(),)


class _Recent(threading.local):
    """The last streams of a thread, which the layers of a model ask for in turn."""

    def __init__(self) -> None:
        self.made: dict[tuple[int, int, int], Coordinates] = {}
        self.whole: Coordinates | None = None


_recent = _Recent()
MOST_RECENT = 8
"""The most streams of a thread that are kept, those of one step of a model."""


def stream(count: int, start: int, length: int, device: torch.device) -> Coordinates:
    """Returns ``Coordinates.span`` of tensors that are kept between calls and must not be written to.

    Args:
        count: the number of tokens.
        start: the position and index of the first one.
        length: tokens in the stream.
        device: where the tensors are.
    """
    # lengths are symbols if the call is watched
    if watched() or device.type != "cpu" or start < 0 or start + count > KEPT:
        return Coordinates.span(count, start=start, length=length, device=device)
    whole = constant(_kept_stream, device=device)
    made, key = _recent.made, (count, start, length)
    if _recent.whole is not whole or len(made) > MOST_RECENT:
        made.clear()
        _recent.whole = whole
    found = made.get(key)
    if found is None:
        position, index = whole.position[:, start : start + count], whole.index[:, start : start + count]
        found = whole._with(position=position, index=index, length=length, start=start, spanned=position)
        made[key] = found
    return found


def _kept_stream(device: torch.device) -> Coordinates:
    return Coordinates.span(KEPT, device=device)


FACTS = tuple(field.name for field in fields(Coordinates))


def _between(numbers: Tensor) -> str:
    low, high = numbers.min().item(), numbers.max().item()
    return f"{low:.10g} … {high:.10g}" if numbers.is_floating_point() else f"{low} … {high}"


def _few(parts: Iterable[str], between: str = " | ") -> str:
    """The first of the parts, and "…" for more than a line can hold."""
    every = list(parts)
    return between.join(every[:4]) + (f"{between}…" if len(every) > 4 else "")


def _rows_of(rows: list[Any], last: Any, device: torch.device | str | None) -> Coordinates:
    """Returns the coordinates of several rows of documents."""
    if last is not None and (len(last) != len(rows) or not all(hasattr(one, "__len__") for one in last)):
        raise HeadwayError(f"last is {last!s:.60} for {len(rows)} rows of documents: give a list for each row")
    found = [
        Coordinates.packed(row, last=None if last is None else last[i], device=device) for i, row in enumerate(rows)
    ]
    counts = [one.index.shape[1] for one in found]
    if min(counts) != max(counts):
        what = "tokens" if last is None else "last tokens"
        row = f"row {counts.index(min(counts))} a document of {max(counts) - min(counts)} tokens more, of padding"
        raise HeadwayError(
            f"rows have {counts!s:.60} {what}: give all as many" + (f", such as {row}" if last is None else "")
        )
    every: dict[str, Any] = {
        name: torch.cat([getattr(one, name) for one in found]) for name in ("position", "index", "document", "length")
    }
    return found[0]._with(**every, rising=every["document"])


def _lengths_of(lengths: Tensor) -> list[int]:
    """The lengths of a tensor as numbers, unless they are the ends of documents."""
    found: list[int] = lengths.tolist()
    if len(found) > 1 and found[0] == 0 and sorted(found) == found:
        raise HeadwayError(
            f"lengths are {found}, which look like cu_seqlens: give the length of each document, cu_seqlens.diff(), or "
            "a list if the first document is empty"
        )
    return found


def _copied(held: dict[str, Any]) -> Placed:
    """Returns placed coordinates of copied tensors, with the version counter of the copy."""
    return Placed._made({**held, "version": _version(held["given"].position)})


def _version(position: Tensor) -> int:
    if torch.compiler.is_compiling():
        return -1
    try:
        return writes_of(position)
    except RuntimeError:  # an inference tensor has no version counter
        return -1


def _need_rows(name: str, x: Tensor, rows: int, n: int, *, one: bool = False) -> None:
    """Raises HeadwayError unless x is [1 or rows, n] or, if ``one``, [1 or rows, 1]."""
    shape = tuple(x.shape)
    if len(shape) == 2 and (shape[1] == n or (one and shape[1] == 1)) and (shape[0] == rows or 1 in (shape[0], rows)):
        return
    wanted = f"[{rows}, {n}]" + (f" or [{rows}, 1]" if one else "")
    raise HeadwayError(f"Coordinates has {name} of shape {shape} but position holds {rows} rows of {n}: give {wanted}")
