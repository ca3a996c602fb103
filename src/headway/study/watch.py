"""Whoever wants to see a comparison as it goes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .protocol import Protocol

Row = dict[str, Any]
"""One line of results.jsonl: what was measured for one encoding, seed and length."""


class Watch:
    """Told what happens, in this order; does nothing by itself. Override what you want to see.

    Raising from any of them (KeyboardInterrupt among others) stops the comparison; started again it goes on.
    """

    def planned(self, protocol: Protocol, encodings: Sequence[str], done: int, total: int) -> None:
        """The protocol is fixed; of ``total`` trainings ``done`` stand in the results already."""

    def went_on(self, encoding: str, seed: int, doing: str, part: float) -> None:
        """Work on one training: what is done at the moment, and which part (0 to 1) of it all is done."""

    def measured(self, rows: Sequence[Row]) -> None:
        """New rows, one for each length; they are on disk already."""
