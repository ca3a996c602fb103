"""Coordinates of a stream that caches follow: of tokens that come next, of all together, of those that are kept."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from ..coordinates import Coordinates
from ..errors import HeadwayError
from ._token_buffer import Slots


def continued(
    past: Coordinates | None,
    positions: Tensor | Coordinates | None,
    n: int,
    device: torch.device,
) -> Coordinates:
    """The coordinates of n tokens that follow ``past``: those given, else each row one after its last token.

    Plain positions get the order in the stream from ``past``. Raises HeadwayError where positions on several
    axes are to be continued: what follows a patch of a grid is not known.
    """
    if isinstance(positions, Coordinates):
        return Coordinates.of(positions, n)
    if past is None:
        return Coordinates.span(n, device=device) if positions is None else Coordinates.of(positions, n)
    past = past.as_given()  # another token follows in the stream, not where an encoding sees it
    step = torch.arange(1, n + 1, device=device)[None]
    index = past.index[:, -1:] + step
    start = None if past.start is None else past.start + past.index.shape[1]
    if positions is not None:
        return replace(Coordinates.of(positions, n), index=index, start=start)
    if past.position.shape[-1] > 1:
        raise HeadwayError(
            f"positions are not given and the tokens before have {past.position.shape[-1]} axes: give the "
            "positions of the new tokens"
        )
    return Coordinates(
        position=past.position[:, -1:] + step[..., None],
        index=index,
        document=None if past.document is None else past.document[:, -1:].expand(-1, n),
        length=None if past.length is None else _last(past.length) + n,
        ordered=True,
        start=start,
    )


def need_places(at: Coordinates, x: Tensor) -> None:
    """Raises where tokens x [batch, n, …] are said to be in another batch, or on another device."""
    rows, batch = at.position.shape[0], x.shape[0]
    if rows not in (1, batch):
        raise HeadwayError(f"positions are for a batch of {rows} but there is a batch of {batch}: give 1 or {batch}")
    if at.position.device != x.device:
        raise HeadwayError(f"positions are on {at.position.device} but the tokens on {x.device}: move them there")


def joined(past: Coordinates | None, new: Coordinates) -> Coordinates:
    """The coordinates of the tokens before and of the new ones."""
    return new if past is None else past.append(new)


def _last(length: int | Tensor) -> int | Tensor:
    return length[:, -1:] if isinstance(length, Tensor) else length


def cropped(coordinates: Coordinates, length: int) -> Coordinates | None:
    """The first ``length`` tokens, in a stream that much shorter; None where no token is left."""
    removed = coordinates.index.shape[1] - length
    total = coordinates.length
    return (
        replace(coordinates.rows(0, length), length=None if total is None else _last(total) - removed)
        if length
        else None
    )


def kept(at: Coordinates, first: int, last: int) -> Slots | None:
    """The slots of each row's first real tokens and of its last ones; None where those are all."""
    if first < 0 or last < 0:
        raise HeadwayError(f"keep the first {first} and the last {last} tokens: give at least 0 of each")
    latest = at.index.shape[1] - last
    if first >= latest:
        return None
    # A row's own first token follows its padding, as long as there is any but the latest.
    start = (at.index < 0).sum(1, keepdim=True).clamp(max=latest - first)
    return Slots(start + torch.arange(first, device=at.index.device), latest)


def remaining(coordinates: Coordinates, slots: Slots) -> Coordinates:
    """The coordinates of the slots; their stream is as long as before."""
    if not slots.first.shape[1]:
        return coordinates.rows(slots.latest, coordinates.index.shape[1])
    length, document = coordinates.length, coordinates.document
    per_token = isinstance(length, Tensor) and length.shape[1] > 1
    return replace(
        coordinates,
        position=slots.of(coordinates.position, 1),
        index=slots.of(coordinates.index, 1),
        document=None if document is None else slots.of(document, 1),
        length=slots.of(length, 1) if isinstance(length, Tensor) and per_token else length,
        ordered=False,
        start=None,
    )
