"""Where each token is: its order in the stream, the position its encoding reads, its document."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .errors import HeadwayError
from .records import Record
from .tracing import refuse_tracers


class Placing:
    """By which encoding coordinates were placed, and from which positions.

    A copy of the coordinates alone keeps the encoding; one that the encoding is copied with takes its copy.
    """

    __slots__ = ("by", "given", "located", "version")

    def __init__(self, by: Any, given: Tensor, located: Tensor) -> None:
        self.by = by
        self.given = given
        """The positions before the encoding's ``locate``."""
        self.located = located
        """The positions that the tables are of."""
        self.version = -1 if torch.compiler.is_compiling() or given.is_inference() else given._version

    @property
    def fresh(self) -> bool:
        """Whether nobody has written into the positions since, as far as their version counter tells."""
        return torch.compiler.is_compiling() or self.version < 0 or self.given._version == self.version

    def __deepcopy__(self, memo: dict[int, Any]) -> Placing:
        by = memo.get(id(self.by), self.by)
        return Placing(by, copy.deepcopy(self.given, memo), copy.deepcopy(self.located, memo))

    def __reduce__(self) -> tuple[Any, ...]:
        return Placing, (self.by, self.given, self.located)


@dataclass(frozen=True, eq=False)
class Coordinates(Record):
    """Where the tokens of one side (queries or keys) are.

    Shapes, with b either 1 or the batch:
        position  [b, n, axes]  integers or floats, any gaps: what encodings read
        index     [b, n] int64  the order of the token in its stream: what masks and dropout read
        document  [b, n] or None
        length    tokens in the stream: an int, or a tensor [b, 1] or [b, n]; read by encodings of total length
        tables    what the encoding that placed them computed from the coordinates alone
        ordered   a static fact: along the slots, index rises by one; masks then become intervals of slots
        start     a static fact: the index of the first slot in every row, where that is known without looking
        placing   by which encoding they were placed, and from where; None before ``PositionEncoding.place``
        prepared  whether the keys and values at these coordinates come prepared, from a cache
        learned   what the encoding that placed them computed with its parameters, for one forward pass alone
        spanned   the positions that are known, without looking, to rise by one from ``start`` on; see ``consecutive``
        rising    the documents that are known, without looking, to lie one after another; see ``documents_in_order``
    """

    position: Tensor
    index: Tensor
    document: Tensor | None = None
    length: int | Tensor | None = None
    tables: Any = None
    ordered: bool = False
    start: int | None = None
    placing: Placing | None = None
    prepared: bool = False
    learned: Any = None
    spanned: Tensor | None = None
    rising: Tensor | None = None

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
        rows, n = position.shape[:2]
        _need_rows("index", index, rows, n)
        if self.document is not None:
            _need_rows("document", self.document, rows, n)
            if self.document.is_floating_point():
                raise HeadwayError(f"Coordinates has document of {self.document.dtype}: give whole numbers")
        if isinstance(self.length, Tensor):
            if not torch.jit.is_tracing():  # where every size is a tensor, until attention refuses the tracer
                _need_rows("length", self.length, rows, n, one=True)
        elif not (self.length is None or isinstance(self.length, (int, torch.SymInt))):
            raise HeadwayError(
                f"Coordinates has length {self.length!r}: give an int, or a tensor [batch, 1] or [batch, n]"
            )

    @property
    def consecutive(self) -> bool:
        """Whether positions are known to be start, start + 1, … on every axis.

        A fact of one tensor: whoever puts other positions in its place loses it without having to know of it.
        """
        return self.spanned is not None and self.spanned is self.position and self.start is not None

    @property
    def documents_in_order(self) -> bool:
        """Whether documents are known to lie one after another; a fact of one tensor, as ``consecutive`` is."""
        return self.rising is not None and self.rising is self.document

    @property
    def placed(self) -> bool:
        """Whether an encoding's ``locate`` has been applied."""
        return self.placing is not None

    @staticmethod
    def span(
        n: int,
        *,
        start: int = 0,
        length: int | None = None,
        axes: int = 1,
        device: torch.device | str | None = None,
    ) -> Coordinates:
        """Tokens without gaps: position = index = start … start + n − 1, in a stream of ``length`` tokens.

        On several axes a token stands at the same position on each, as text does beside images.
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
        device: torch.device | str | None = None,
    ) -> Coordinates:
        """Takes a plain tensor [n], [batch, n] or [batch, n, axes] as positions; ``Coordinates`` pass through.

        The index of plain positions is the order of the slots, start … start + n − 1. Their stream is ``length``
        tokens long where that is given, else one more than the largest position.
        Raises HeadwayError for another shape, another number of tokens, or a dtype that is no number.
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
        # a distance of small or unsigned integers would wrap around, one of 16-bit floats would be rounded
        positions = positions.float() if positions.dtype.itemsize < 4 and positions.is_floating_point() else positions
        positions = positions if positions.is_floating_point() else positions.long()
        shape = tuple(positions.shape)
        if positions.ndim == 1:
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
    def packed(lengths: Sequence[int], *, device: torch.device | str | None = None) -> Coordinates:
        """Documents one after another in one row: positions restart at 0, ``document`` counts them."""
        sizes = torch.tensor(list(lengths), dtype=torch.long, device=device)
        total = int(sum(lengths))
        index = torch.arange(total, device=device)
        document = torch.repeat_interleave(torch.arange(len(lengths), device=device), sizes)
        start = torch.repeat_interleave(torch.cumsum(sizes, 0) - sizes, sizes)
        length = torch.repeat_interleave(sizes, sizes)
        position = (index - start)[None, :, None]
        document = document[None]
        return Coordinates(position, index[None], document, length[None], ordered=True, start=0, rising=document)

    @staticmethod
    def padded(
        lengths: Sequence[int] | Tensor,
        n: int,
        *,
        side: str = "left",
        device: torch.device | str | None = None,
    ) -> Coordinates:
        """Sequences of several lengths in rows of n: position and index of the first real token are 0.

        Padding in front has a negative index and the position 0. Together with ``masks.Padding(lengths, side)``
        a padded row gives what the unpadded one gives.
        """
        if side not in ("left", "right"):
            raise HeadwayError(f"side is {side!r}: give 'left' or 'right'")
        if not isinstance(lengths, Tensor) and max(lengths, default=0) > n:
            raise HeadwayError(f"lengths go up to {max(lengths)} but rows have {n} slots: give n = {max(lengths)}")
        sizes = torch.as_tensor(lengths, device=device)
        index = torch.arange(n, device=sizes.device)[None].expand(len(sizes), n)
        if side == "left":
            index = index - (n - sizes)[:, None]
        return Coordinates(index.clamp(min=0)[..., None], index, length=sizes[:, None], ordered=True)

    def axis(self, number: int = 0) -> Tensor:
        """The positions on one axis, [b, n]; an axis that is not there raises."""
        axes = self.position.shape[-1]
        if not 0 <= number < axes:
            raise HeadwayError(
                f"the encoding reads axis {number} but positions have {axes}: give positions [batch, n, axes]"
            )
        return self.position[..., number]

    def placed_by(
        self, encoding: Any, tables: Any = None, *, position: Tensor | None = None, learned: Any = None
    ) -> Coordinates:
        """These coordinates as the encoding places them: with its tables, at ``position`` where that is another."""
        position = self.position if position is None else position
        given = self.position if self.placing is None else self.placing.given
        placing = Placing(encoding, given, position)
        return self._with(position=position, tables=tables, learned=learned, placing=placing)

    def belongs_to(self, encoding: Any) -> bool:
        """Whether the encoding has placed these coordinates, and nobody has written into the positions since."""
        placing = self.placing
        return placing is not None and placing.by is encoding and placing.fresh

    def as_given(self) -> Coordinates:
        """These coordinates as they were before an encoding placed them.

        Raises HeadwayError where that is not known: for keys that come prepared, and where positions were replaced.
        """
        placing = self.placing
        if placing is None:
            return self
        name = type(placing.by).__name__
        if self.prepared:
            raise HeadwayError(
                f"the keys at these coordinates were prepared by a {name}, another object than the encoding of this "
                "call: hand over that object, or prepare the keys anew"
            )
        if self.position is not placing.located:
            raise HeadwayError(
                f"the positions were replaced after a {name} had placed the coordinates: replace them before, or hand "
                "over Coordinates that no encoding has placed"
            )
        return self._with(position=placing.given, tables=None, placing=None, learned=None)

    def placing_of(self, change: Callable[[Tensor], Tensor], position: Tensor) -> Placing | None:
        """Who placed the tokens that ``change`` takes of these; ``position`` is theirs."""
        placing = self.placing
        if placing is None:
            return None
        if self.position is placing.located:
            return Placing(placing.by, change(placing.given), position)
        return Placing(placing.by, change(placing.given), placing.located)  # replaced, as is ``position``

    def _current(self) -> Coordinates:
        """These coordinates; without their placing where the positions have been written into since."""
        return self if self.placing is None or self.belongs_to(self.placing.by) else self.as_given()

    def append(self, other: Coordinates) -> Coordinates:
        """The coordinates of these tokens and then of the others, as given: a longer stream is placed anew."""
        if self.placing is not None or other.placing is not None:
            return self.as_given().append(other.as_given())
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
            sizes = (self.index.shape[1], other.index.shape[1])  # one for each token, as documents have it
            length = join(*(x.expand(-1, n) for x, n in zip((self.length, length), sizes, strict=True)))

        documents = None
        if self.document is not None and other.document is not None:
            documents = join(self.document, other.document)
        unknown = self.start is None and other.start is None
        follows = self.start is not None and other.start == self.start + self.index.shape[1]
        return Coordinates(
            position=join(self.position, other.position),
            index=join(self.index, other.index),
            document=documents,
            length=length,
            ordered=self.ordered and other.ordered and (follows or unknown),
            start=self.start if follows else None,
        )

    def select(self, rows: Tensor) -> Coordinates:
        """The coordinates of some rows of the batch, in the order given (beams, for one)."""

        def pick(part: Tensor) -> Tensor:
            return part if part.shape[0] == 1 else part[rows]

        at = self._current()
        length, position = at.length, pick(at.position)
        return at._with(
            position=position,
            index=pick(at.index),
            document=None if at.document is None else pick(at.document),
            length=pick(length) if isinstance(length, Tensor) else length,
            tables=None,
            learned=None,
            placing=at.placing_of(pick, position),
        )

    def rows(self, start: int, stop: int) -> Coordinates:
        """The coordinates of the tokens start … stop − 1."""
        at = self._current()
        length, position = at.length, at.position[:, start:stop]
        document = None if at.document is None else at.document[:, start:stop]
        if isinstance(length, Tensor) and length.shape[-1] > 1:
            length = length[:, start:stop]
        return at._with(
            position=position,
            index=at.index[:, start:stop],
            document=document,
            length=length,
            start=None if at.start is None else at.start + start,
            rising=document if at.documents_in_order else None,
            spanned=position if at.consecutive else None,
            tables=None,
            learned=None,
            placing=at.placing_of(lambda given: given[:, start:stop], position),
        )


def _need_rows(name: str, x: Tensor, rows: int, n: int, *, one: bool = False) -> None:
    """Raises unless x is [b, n] for one row or for as many as the positions have; one: whether [b, 1] will do too."""
    shape = tuple(x.shape)
    if len(shape) == 2 and (shape[1] == n or (one and shape[1] == 1)) and (shape[0] == rows or 1 in (shape[0], rows)):
        return
    wanted = f"[{rows}, {n}]" + (f" or [{rows}, 1]" if one else "")
    raise HeadwayError(f"Coordinates has {name} of shape {shape} but position holds {rows} rows of {n}: give {wanted}")
