"""The base class of scores."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from ...errors import HeadwayError
from ...kernels import Call
from ...records import Record
from .._record import AttentionRecord, Records


class Score(Record, ABC):
    """The base class of scores.

    A subclass has a row in ``SCORES``, by which ``Seen.scores`` finds it, or is given there as an object. Its fields
    are the arguments of ``Seen.scores``.
    """

    name: ClassVar[str]
    """What it is called."""

    @abstractmethod
    def of(self, seen: Records) -> Any:
        """Returns the score of a capture.

        Args:
            seen: records of the layers that are wanted.

        Raises:
            HeadwayError: if the capture did not keep what the score needs, or it does not fit.
        """


def records_of_one_call(seen: Records, name: str) -> list[AttentionRecord]:
    """The records of self-attention in a single call of the model, in the order in which they were computed."""
    records = [record for record in seen.records if record.kind == "self"]
    if not records:
        raise HeadwayError(f"{name!r} is a score of self-attention, and there is none: {said_of(seen)}")
    calls = sorted({record.call for record in records})
    if len(calls) > 1:
        raise HeadwayError(
            f"the model was called {len(calls)} times: take one call, such as of_call(-1).scores({name!r}, …)"
        )
    return records


def call_of(record: AttentionRecord, name: str, keep: str = "qk") -> Call:
    """The call of a record. Raises HeadwayError if its queries and keys were not kept."""
    if record._kept_call is None:
        raise HeadwayError(f"{name!r} is computed from queries and keys, which were not kept: capture with {keep=}")
    return record._kept_call


def said_of(seen: Records) -> str:
    """The layers that a message names."""
    return f"the layers are {', '.join(seen.layers)}" if seen.layers else "nothing was captured"
