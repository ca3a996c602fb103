"""The tokens that a cache must keep, by the mask and the encoding of the calls that read it."""

from __future__ import annotations

from typing import NamedTuple

from ..masks import And, Chunked, KeepFirst, Mask, Or, Prefix, Window
from ..positions import Compose, PositionEncoding


class Retention(NamedTuple):
    """How many tokens of each row a cache keeps: its first ones and its last ones."""

    first: int
    last: int

    @staticmethod
    def under(mask: Mask | None) -> Retention | None:
        """Returns the tokens that a mask may show to later tokens; None if that may be all of them.

        At least the last token is kept, since the stream continues after it.
        """
        if type(mask) is Window and mask.left is not None:
            return Retention(0, max(mask.left, 1))
        if type(mask) is Chunked:
            return Retention(0, max(mask.size * (mask.previous + 1) - 1, 1))
        if type(mask) is KeepFirst:
            return Retention(mask.count, 1)
        if type(mask) is Prefix and isinstance(mask.length, int):
            return Retention(mask.length, 1)
        if type(mask) is And or type(mask) is Or:
            parts = [Retention.under(part) for part in mask.masks]
            bounded = [part for part in parts if part is not None]
            if type(mask) is And:
                return min(bounded, key=sum, default=None)
            if len(bounded) == len(parts):
                return Retention(max(part.first for part in bounded), max(part.last for part in bounded))
        return None


def reads_others(encoding: PositionEncoding | None) -> bool:
    """Whether an encoding's effect on a query and a key can depend on other tokens, such as those between them."""
    if encoding is None:
        return False
    parts = [part for part in encoding.modules() if isinstance(part, PositionEncoding)]
    moves = (type(part).relocate is not PositionEncoding.relocate for part in parts if not isinstance(part, Compose))
    return encoding.reads_input or any(moves)
