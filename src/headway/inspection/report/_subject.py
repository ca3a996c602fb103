"""What a report is about: the self-attention calls of one text, its tokens, and the roles of the heads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from ..._common.words import Span
from ...errors import HeadwayError
from ...kernels import Call, cut
from .._numbers import index_of
from .._record import AttentionRecord, Records
from ..roles._finding import Finding
from ..roles._results import HeadRoles
from ..texts import EncodedText
from ._words import Layout, layout


@dataclass(frozen=True, eq=False)
class Told:
    """The text of a report.

    Attributes:
        text: the text as it is written.
        layout: where its tokens stand.
    """

    text: str
    layout: Layout


@dataclass(frozen=True, eq=False)
class Subject:
    """One text that a model has read, and the attention of its layers.

    Attributes:
        model: the name of the model.
        layers: the name of each layer.
        calls: the call of each layer, of one row.
        queries: the queries of each layer that are not padding, [1, n] bool; None for all.
        told: the text.
        roles: the measured roles of the heads, or None.
    """

    model: str
    layers: list[str]
    calls: list[Call]
    queries: list[Tensor | None]
    told: Told
    roles: HeadRoles | None

    @property
    def n(self) -> int:
        """The number of tokens."""
        return self.calls[0].q.shape[2]

    @property
    def heads(self) -> list[tuple[int, int]]:
        """The layer and the number in it of each head."""
        return [(layer, head) for layer, call in enumerate(self.calls) for head in range(call.q.shape[1])]

    def findings(self) -> Mapping[tuple[int, int], list[Finding]]:
        """The roles that hold of each head, the best first."""
        if self.roles is None:
            return {}
        number = {name: layer for layer, name in enumerate(self.layers)}
        known = [(name, number[name]) for name in self.roles.layers if name in number]
        return {
            (layer, head): self.roles.of(name, head) for name, layer in known for head in range(self.roles.heads(name))
        }


def subject_of(
    seen: Records,
    text: EncodedText | str | None,
    tokens: Sequence[str] | None,
    offsets: Sequence[Span] | None,
    roles: HeadRoles | None,
    example: int,
    call: int | None,
    name: str | None,
) -> Subject:
    """Returns the subject of a report.

    Raises HeadwayError if there is only cross-attention, for calls that do not read one query for each key, and for a
    text that does not fit.
    """
    records = _records(seen, call)
    if roles is not None and not isinstance(roles, HeadRoles):
        raise HeadwayError(f"roles is {type(roles).__name__}: give the result of head_roles")
    row = index_of(example, records[0].batch, "example")
    calls = [_row_of(record, row) for record in records]
    queries = [None if one.padding is None else one.padding.expand(one.batch, -1)[row : row + 1] for one in records]
    told = _told(text, tokens, offsets, records[0].n)
    return Subject(name or seen._model, [one.layer for one in records], calls, queries, told, roles)


def _records(seen: Records, call: int | None) -> list[AttentionRecord]:
    seen._need_records()
    if seen.keep not in ("qk", "qkv"):
        raise HeadwayError(f"keep={seen.keep!r} keeps too little for a report: capture with keep='qk'")
    if call is None and seen.calls > 1:
        raise HeadwayError(f"the model was called {seen.calls} times: give call=, such as call=0")
    records = seen.records if call is None else seen.of_call(call).records
    order = {layer: number for number, layer in enumerate(seen.layers)}
    own = sorted((one for one in records if one.kind == "self"), key=lambda one: order[one.layer])
    if not own:
        raise HeadwayError("a report shows self-attention, and there is none: " + ", ".join(seen.layers))
    first = own[0]
    if first.n != first.m or not first.n:
        raise HeadwayError(
            f"{first.layer!r} has {first.n} queries and {first.m} keys: capture a call that reads the whole text at "
            "once, without a cache"
        )
    other = next((one for one in own if (one.batch, one.n, one.m) != (first.batch, first.n, first.m)), None)
    if other is not None:
        raise HeadwayError(
            f"{first.layer!r} reads {first.batch} × {first.n} tokens and {other.layer!r} {other.batch} × {other.n}: "
            "capture layers= that read the same text"
        )
    return own


def _row_of(record: AttentionRecord, row: int) -> Call:
    call = record._kept_call
    if call is None:
        raise HeadwayError(f"{record.layer!r} keeps no queries and keys: capture with keep='qk'")
    return call if record.batch == 1 else cut(call, "batch", row, row + 1)


def _told(text: EncodedText | str | None, tokens: Sequence[str] | None, offsets: Sequence[Span] | None, n: int) -> Told:
    if isinstance(text, EncodedText):
        if tokens is not None or offsets is not None:
            raise HeadwayError("text has tokens of its own: leave tokens= and offsets= out")
        _need_length("text", "tokens", len(text), n)
        if text.spans:
            return Told(text.text.text, layout(text.text.text, text.tokens, text.spans, text.word_of))
        tokens, text = text.tokens, None
    if isinstance(text, str):
        if offsets is None:
            raise HeadwayError("text is a string: give offsets= too, start and stop of each token in it, or encode it")
        _need_length("offsets", "spans", len(offsets), n)
        spans = [(int(start), int(stop)) for start, stop in offsets]
        wrong = next((span for span in spans if not 0 <= span[0] <= span[1] <= len(text)), None)
        if wrong is not None:
            raise HeadwayError(f"offsets have {wrong}: give spans in the {len(text)} characters of the text")
        names = [text[start:stop] or "·" for start, stop in spans] if tokens is None else list(map(str, tokens))
        _need_length("tokens", "of them", len(names), n)
        return Told(text, layout(text, names, spans))
    if text is not None:
        raise HeadwayError(f"text is {type(text).__name__}: give a string with offsets=, or what texts.encode returns")
    if offsets is not None:
        raise HeadwayError("offsets are given without a text: give text= too")
    names = [str(i) for i in range(n)] if tokens is None else list(map(str, tokens))
    _need_length("tokens", "of them", len(names), n)
    spans, start = [], 0
    for name in names:
        spans.append((start, start + len(name)))
        start += len(name) + 1
    return Told(" ".join(names), layout(" ".join(names), names, spans, range(n)))


def _need_length(name: str, what: str, length: int, n: int) -> None:
    if length != n:
        raise HeadwayError(f"{name} has {length} {what} and the model read {n}: give one for each token")
