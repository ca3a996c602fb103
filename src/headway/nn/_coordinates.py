"""Coordinates of the tokens of a stream: of new tokens, of past and new ones together, and of the tokens in a cache."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from ..coordinates import Coordinates, Placed, stream
from ..errors import HeadwayError
from ..tracing import watched
from ._token_buffer import Slots


def continued(
    past: Coordinates | None,
    positions: Tensor | Coordinates | None,
    n: int,
    device: torch.device,
) -> Coordinates:
    """Returns the coordinates of n tokens that follow ``past``: as given, or one after each row's last token.

    Plain positions get their order in the stream from ``past``. Raises HeadwayError if positions on several axes are
    missing, since the position after a patch of a grid is unknown.
    """
    if isinstance(positions, Coordinates):
        return Coordinates.of(positions, n)
    if past is None:
        return stream(n, 0, n, device) if positions is None else Coordinates.of(positions, n)
    past = past.as_given()  # new tokens continue the positions as given, not as an encoding has located them
    if positions is None and past.is_stream:
        return stream(n, past.start + past.index.shape[1], past.length + n, device)  # type: ignore[operator, arg-type]
    if past.padding == "right":
        _need_tokens_last(past)
    step = torch.arange(1, n + 1, device=device)[None]
    index = past.index[:, -1:] + step
    start = None if past.start is None else past.start + past.index.shape[1]
    length = None if past.length is None else _last(past.length) + n
    if positions is not None:
        given = replace(Coordinates.of(positions, n), index=index, start=start, padding=past.padding)
        return replace(given, length=length) if past.padding else given
    if past.position.shape[-1] > 1:
        raise HeadwayError(
            f"positions are not given and those of earlier tokens have {past.position.shape[-1]} axes: give the "
            "positions of the new tokens"
        )
    return Coordinates(
        position=past.position[:, -1:] + step[..., None],
        index=index,
        document=None if past.document is None else past.document[:, -1:].expand(-1, n),
        length=length,
        ordered=True,
        start=start,
        padding=past.padding,
    )


def _need_tokens_last(past: Coordinates) -> None:
    """Raises HeadwayError unless rows that are padded on the right are known, on a CPU, to have no padding."""
    row = "a row"
    if past.index.is_cpu and not watched() and past.length is not None:
        ended = (past.index[:, -1:] >= _last(past.length)).flatten().nonzero()
        if not len(ended):
            return
        row = f"row {int(ended[0])}"
    raise HeadwayError(
        f"{row} of the earlier tokens ends in padding, after which the next token would stand: pad on the left, "
        "positions=Coordinates.padded(lengths, n)"
    )


def check_coordinates(at: Coordinates, x: Tensor) -> None:
    """Raises HeadwayError unless the coordinates have the batch size and the device of the tokens x [batch, n, …]."""
    rows, batch = at.position.shape[0], x.shape[0]
    if rows not in (1, batch):
        raise HeadwayError(f"positions are for a batch of {rows} but there is a batch of {batch}: give 1 or {batch}")
    if at.position.device != x.device:
        raise HeadwayError(f"positions are on {at.position.device} but the tokens on {x.device}: move them there")


def joined(past: Coordinates | None, new: Coordinates) -> Coordinates:
    """Returns the coordinates of the past tokens followed by the new ones."""
    if past is None:
        return new
    if past.is_stream and new.is_stream and not isinstance(new, Placed):
        count, added, start = past.index.shape[1], new.index.shape[1], past.start
        if new.start == start + count:  # type: ignore[operator]
            return stream(count + added, start, new.length, new.index.device)  # type: ignore[arg-type]
    return past.append(new)


def _last(length: int | Tensor) -> int | Tensor:
    return length[:, -1:] if isinstance(length, Tensor) else length


def cropped(coordinates: Coordinates, length: int) -> Coordinates | None:
    """Returns the coordinates of the first ``length`` tokens, in a stream shortened to them; None if none is left."""
    if not length:
        return None
    removed = coordinates.index.shape[1] - length
    total = coordinates.length
    if coordinates.is_stream:
        return stream(length, coordinates.start, total - removed, coordinates.index.device)  # type: ignore[arg-type, operator]
    if total is not None:
        total = _last(total)
        if coordinates.padding and isinstance(total, Tensor):  # the removed tokens may be padding
            total = torch.minimum(total, coordinates.index[:, length - 1 : length] + 1)
        else:
            total = total - removed
    return replace(coordinates.rows(0, length), length=total)


def kept(at: Coordinates, first: int, last: int) -> Slots | None:
    """Returns the slots of each row's first real tokens and of its last ones; None if those are all slots."""
    if first < 0 or last < 0:
        raise HeadwayError(f"keep the first {first} and the last {last} tokens: give at least 0 of each")
    latest = at.index.shape[1] - last
    if first >= latest:
        return None
    if not first:
        return Slots(at.index.new_empty(1, 0), latest)
    # a row's first real token follows its padding, unless the padding reaches the latest slots
    start = (at.index < 0).sum(1, keepdim=True).clamp(max=latest - first)
    return Slots(start + torch.arange(first, device=at.index.device), latest)


def remaining(coordinates: Coordinates, slots: Slots) -> Coordinates:
    """Returns the coordinates of the slots; the length of their stream does not change."""
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
