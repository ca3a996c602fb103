"""The records of a capture: one for each attention call."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from torch import Tensor
from typing_extensions import Self

from ..errors import HeadwayError
from ..kernels import Call
from ._above import WeightList, all_above, checked_threshold, of_weights
from ._memory import bytes_in
from ._numbers import index_of, numbers_of, slots_of
from ._run import Statistics, chosen, listed, refuse_twice, statistics_of
from ._table import DataTable
from ._watch import layer_named
from ._weights import dense_weights, refuse_above_limit, said, size_of
from .statistics import Statistic

Asked = str | Statistic | Sequence[str | Statistic]
"""Statistics by name, or as objects."""

SHOWN = 8
"""Records that a representation lists."""


@dataclass(eq=False, repr=False)
class AttentionRecord:
    """One attention call of a model, with what the capture kept of it.

    Attributes:
        layer: the name of the layer, unique within one call of the model: the dotted name of its module, with "#2",
            "#3", … from the second time on that the module attends.
        module: the dotted name of the module.
        kind: "self" or "cross".
        call: the number of the model's call, from 0. Each step of a generation is one.
        source: how the call was found: "headway", "transformers", "multi_head_attention_forward" or
            "scaled_dot_product_attention".
        batch: the rows.
        heads: the query heads.
        kv_heads: the key heads.
        n: the queries.
        m: the keys.
        padding: the queries that are not padding, [batch, n] bool; None if that is not known.
        note: side effects of capturing, such as a disabled fast path of torch; else "".
    """

    layer: str
    module: str
    kind: str
    call: int
    source: str
    batch: int
    heads: int
    kv_heads: int
    n: int
    m: int
    padding: Tensor | None
    note: str
    _value_norms: Tensor | None = field(default=None, init=False)
    _without_norms: str = field(default="", init=False)
    _products: Tensor | None = field(default=None, init=False)
    _kept_call: Call | None = field(default=None, init=False)
    _statistics: Statistics | None = field(default=None, init=False)
    _weights: Tensor | None = field(default=None, init=False)
    _heads: Sequence[int] | None = field(default=None, init=False)
    _rows: Sequence[int] | None = field(default=None, init=False)

    def statistics(self, statistics: Asked | None = None, *, queries: Tensor | None = None) -> Statistics:
        """Returns statistics of the weights: those that were kept, or with keep="qk" any.

        Args:
            statistics: names or objects, as for ``attention_statistics``. Default: those that were kept, or entropy and
                the largest weight.
            queries: the queries that count, [n] or [batch, n] bool. Default: all but ``padding``.

        Raises:
            HeadwayError: if they were not kept and cannot be computed from what was kept.
        """
        if self._statistics is not None:
            if queries is not None:
                raise HeadwayError("queries of kept statistics cannot be chosen afterwards: capture with keep='qk'")
            return self._statistics if statistics is None else _among(self._statistics, statistics)
        if self._kept_call is None:
            kept = "weights" if self._weights is not None else "gradients"
            raise HeadwayError(f"keep={kept!r} keeps no statistics: capture with keep='statistics' or keep='qk'")
        return computed_statistics(
            self._kept_call, DEFAULT if statistics is None else statistics, self.padding if queries is None else queries
        )

    def weights(
        self,
        head: int | None = None,
        *,
        rows: slice | int | Sequence[int] | None = None,
        keys: slice | int | Sequence[int] | None = None,
    ) -> Tensor:
        """Returns attention weights before dropout, [batch, heads, n, m], or of one head [batch, n, m].

        A window of a long text, given by rows and keys, takes no more memory than itself and some rows.

        Args:
            head: the head. Default: all that were kept.
            rows: the queries, as numbers or a slice. Default: all that were kept.
            keys: the keys, likewise. Default: all.

        Raises:
            HeadwayError: if they were not kept, if there is no such head, query or key, or above 1 GiB.
        """
        heads = None if head is None else [index_of(head, self.heads, "head")]
        slots = None if rows is None else slots_of(rows, self.n)
        columns = None if keys is None else slots_of(keys, self.m, "key")
        if self._weights is not None:
            weights = self._weights
            if heads is not None:
                weights = weights[:, [_kept("head", heads[0], self._heads)]]
            if slots is not None:
                weights = weights[:, :, [_kept("row", slot, self._rows) for slot in slots]]
            weights = weights if columns is None else weights[..., columns]
        elif self._kept_call is not None:
            size = size_of(self._kept_call, heads, slots, columns)
            refuse_above_limit(size, f"the weights of {self.layer!r}")
            ordered = None if slots is None else sorted(set(slots))
            weights = dense_weights(self._kept_call, heads, ordered, columns)
            if slots is not None and ordered is not None and slots != ordered:
                weights = weights[:, :, [ordered.index(slot) for slot in slots]]
        else:
            raise self._without_weights()
        return weights if heads is None else weights[:, 0]

    def weights_above(self, threshold: float, head: int | None = None) -> WeightList:
        """Returns all weights of at least a threshold, of the queries that are not padding.

            seen.record(3).weights_above(0.1)

        Unlike the largest weights of each query, such a list is complete for keys too: to a key that is not in it,
        every query gives less. The weights of a softmax sum to 1 at most, so a query has at most 1/threshold of them.
        Memory grows with the number of weights that are found.

        Args:
            threshold: the least weight, above 0 and at most 1.
            head: the head. Default: all that were kept.

        Raises:
            HeadwayError: if there is no such head, the threshold is not a weight, the weights were not kept, or what is
                found takes more than 1 GiB.
        """
        threshold = checked_threshold(threshold)
        number = None if head is None else index_of(head, self.heads, "head")
        if self._weights is not None:
            weights = self._weights if number is None else self._weights[:, [_kept("head", number, self._heads)]]
            heads = [number] if number is not None else list(range(self.heads) if self._heads is None else self._heads)
            rows = list(range(self.n) if self._rows is None else self._rows)
            if self.padding is not None:
                weights = weights * self.padding.expand(self.batch, -1)[:, None, rows, None]
            return of_weights(weights, threshold, heads, rows)
        if self._kept_call is None:
            raise self._without_weights()
        return all_above(self._kept_call, threshold, self.padding, number)

    def _without_weights(self) -> HeadwayError:
        kept = "statistics" if self._statistics is not None else "gradients"
        return HeadwayError(f"keep={kept!r} keeps no weights: capture with keep='qk' or keep='weights'")

    @property
    def value_norms(self) -> Tensor | None:
        """The lengths ‖vⱼ·W_O^h‖ of each key and head, [batch, heads, m], with keep="qkv"; None if not known."""
        return self._value_norms

    @property
    def size(self) -> int:
        """The bytes of the tensors that are kept."""
        return bytes_in(self)

    def __repr__(self) -> str:
        shape = f"batch {self.batch}, heads {self.heads}, n {self.n}, m {self.m}"
        return f"AttentionRecord({self.layer!r}, {self.kind}, call {self.call}: {shape})"


DEFAULT = ("entropy", "largest")
"""The statistics of a capture that names none."""


def _among(kept: Statistics, asked: Asked) -> Statistics:
    """Some of the statistics that were kept."""
    values, statistics = {}, []
    for one in listed(asked):
        statistic = next((own for own in kept._statistics if one in (own.name, own)), None)
        if statistic is None:
            raise HeadwayError(
                f"{one!r} was not kept, but {', '.join(kept.names)}: capture it by statistics=, or keep='qk', from "
                "which any can be computed"
            )
        values[statistic.name] = kept[statistic.name]
        statistics.append(statistic)
    return Statistics(values, statistics, kept.counted)


def computed_statistics(call: Call, statistics: Asked, queries: Tensor | None) -> Statistics:
    """The statistics of a call, on whichever kernel has them."""
    return statistics_of(call, chosen(statistics), queries)


@dataclass(eq=False, repr=False)
class Records:
    """The attention calls of a model, as a ``Score`` reads them; ``Seen`` adds scores and pictures.

    Attributes:
        keep: what was kept: "statistics", "qk", "qkv", "weights" or "gradients".
        records: one ``AttentionRecord`` for each attention call, in their order.
        missed: modules that seem to be attention and ran without an attention call that capture could see: their names,
            with the names of their classes.
    """

    keep: str
    records: list[AttentionRecord] = field(default_factory=list)
    missed: dict[str, str] = field(default_factory=dict)
    _model: str = field(default="", init=False)
    _order: Sequence[str] = field(default=(), init=False)
    _estimate: Callable[[int, int, int | None], int] | None = field(default=None, init=False)

    @property
    def layers(self) -> list[str]:
        """The names of the layers, in the order of the model's ``named_modules``."""
        place = {name: number for number, name in enumerate(self._order)}
        names = dict.fromkeys((record.module, record.layer) for record in self.records)
        return [layer for _, layer in sorted(names, key=lambda name: place.get(name[0], len(place)))]

    @property
    def calls(self) -> int:
        """The number of calls of the model."""
        return len({record.call for record in self.records})

    @property
    def size(self) -> int:
        """The bytes of the tensors that are kept."""
        return bytes_in(self.records)

    def memory(self, batch: int, n: int, m: int | None = None) -> int:
        """Returns the bytes that a call of the model would take, before the first call.

        Args:
            batch: the rows.
            n: the tokens.
            m: the keys of a query. Default: n.

        Raises:
            HeadwayError: if the model's modules do not state their heads.
        """
        assert self._estimate is not None
        return self._estimate(batch, n, m)

    def of_call(self, number: int) -> Self:
        """Returns what was seen in one call of the model.

        Args:
            number: the number of the call, from 0; −1 is the last.

        Raises:
            HeadwayError: if there was no such call.
        """
        numbers = sorted({record.call for record in self.records})
        wanted = numbers[index_of(number, len(numbers), "call", negative=True)]
        of_call = copy.copy(self)
        of_call.records = [record for record in self.records if record.call == wanted]
        return of_call

    def record(self, layer: int | str, *, call: int | None = None) -> AttentionRecord:
        """Returns the record of a layer.

        Args:
            layer: its name, or its number in ``layers``.
            call: the number of the model's call. Default: the only one in which the layer attended.

        Raises:
            HeadwayError: if there is none, or several without ``call``.
        """
        self._need_records()
        name = layer_named(layer, self.layers)
        records = [one for one in self.records if one.layer == name]
        if call is not None:
            numbers, call = [one.call for one in records], numbers_of(call, "call")[0]
            if call < 0:
                call = numbers[call] if -len(numbers) <= call else call
            records = [one for one in records if one.call == call]
            if not records:
                raise HeadwayError(f"{name!r} has no call {call}: its calls are {numbers[0]} … {numbers[-1]}")
        elif len(records) > 1:
            raise HeadwayError(f"{name!r} attended in {len(records)} calls of the model: give call=, such as call=-1")
        return records[0]

    def weights(
        self,
        layer: int | str,
        head: int | None = None,
        *,
        rows: slice | int | Sequence[int] | None = None,
        keys: slice | int | Sequence[int] | None = None,
        call: int | None = None,
    ) -> Tensor:
        """Returns the attention weights of a layer, [batch, heads, n, m], or of one head [batch, n, m].

        These are the weights before dropout.

        Args:
            layer: its name, or its number in ``layers``.
            head: the head. Default: all that were kept.
            rows: the queries, as numbers or a slice. Default: all that were kept.
            keys: the keys, likewise. Default: all.
            call: the number of the model's call. Default: the only one.

        Raises:
            HeadwayError: if they were not kept, if there is no such layer, head, query, key or call, or above 1 GiB.
        """
        return self.record(layer, call=call).weights(head, rows=rows, keys=keys)

    def weights_above(
        self, layer: int | str, threshold: float, head: int | None = None, *, call: int | None = None
    ) -> WeightList:
        """Returns all weights of a layer of at least a threshold, at any length of the text.

            seen.weights_above(3, 0.1).table(tokens).csv("links.csv")

        Args:
            layer: its name, or its number in ``layers``.
            threshold: the least weight, above 0 and at most 1.
            head: the head. Default: all that were kept.
            call: the number of the model's call. Default: the only one.

        Returns:
            A ``WeightList``: tensors of examples, heads, queries, keys and weights, in this order.

        Raises:
            HeadwayError: as ``AttentionRecord.weights_above`` does, and if there is no such layer or call.
        """
        return self.record(layer, call=call).weights_above(threshold, head)

    def statistics(
        self,
        layer: int | str,
        statistics: Asked | None = None,
        *,
        queries: Tensor | None = None,
        call: int | None = None,
    ) -> Statistics:
        """Returns statistics of a layer's weights: those that were kept, or with keep="qk" any.

        Args:
            layer: its name, or its number in ``layers``.
            statistics: names or objects, as for ``attention_statistics``. Default: those that were kept, or entropy and
                the largest weight.
            queries: the queries that count, [n] or [batch, n] bool. Default: all but padding.
            call: the number of the model's call. Default: the only one.

        Raises:
            HeadwayError: if there is no such layer or call, or the statistics were not kept.
        """
        return self.record(layer, call=call).statistics(statistics, queries=queries)

    @property
    def attentions(self) -> tuple[Tensor, ...]:
        """The weights of self-attention by layer, each [batch, heads, n, m], as transformers returns them.

        A model of transformers returns this tuple with output_attentions=True, and BertViz reads it. Rows that see no
        key are zeros.

        Raises:
            HeadwayError: if the model has cross-attention or was called several times, if only some heads or rows were
                kept, and if the weights were not kept or take more than 1 GiB.
        """
        if any(record.kind == "cross" for record in self.records):
            raise HeadwayError(
                "the model has cross-attention too: take encoder_attentions, decoder_attentions and cross_attentions"
            )
        return self._attentions(lambda record: True, "attention")

    @property
    def encoder_attentions(self) -> tuple[Tensor, ...]:
        """The weights of an encoder's self-attention by layer, as transformers returns them."""
        return self._attentions(
            lambda record: record.kind == "self" and not in_decoder(record.module), "attention in an encoder"
        )

    @property
    def decoder_attentions(self) -> tuple[Tensor, ...]:
        """The weights of a decoder's self-attention by layer, as transformers returns them."""
        return self._attentions(
            lambda record: record.kind == "self" and in_decoder(record.module), "attention in a decoder"
        )

    @property
    def cross_attentions(self) -> tuple[Tensor, ...]:
        """The weights of cross-attention by layer, as transformers returns them."""
        return self._attentions(lambda record: record.kind == "cross", "cross-attention")

    def table(self, statistics: Asked | None = None) -> DataTable:
        """Returns one row for each head of each record, as plain dictionaries.

        A row has layer, head, call, kind, queries (the number that counts, over the batch), left_out (the number that
        does not) and the summary of each statistic, the mean over the rows of the batch.

        Args:
            statistics: as for ``statistics``.

        Raises:
            HeadwayError: if the statistics were not kept.
        """
        self._need_records()
        rows = []
        for record in self.records:
            measured = record.statistics(statistics)
            columns = {name: x.nanmean(0).tolist() for name, x in measured.summary().items()}
            counted, left_out = measured.counted.sum((0, 2)).tolist(), measured.left_out.sum(0).tolist()
            for head in range(record.heads):
                row = {"layer": record.layer, "head": head, "call": record.call, "kind": record.kind}
                row |= {"queries": counted[head], "left_out": left_out[head]}
                refuse_twice(row, columns)
                rows.append(row | {name: values[head] for name, values in columns.items()})
        return DataTable(rows)

    def __len__(self) -> int:
        return len(self.records)

    def __repr__(self) -> str:
        calls = f"{self.calls} call{'s' if self.calls != 1 else ''}"
        layers = f"{len(self.layers)} layer{'s' if len(self.layers) != 1 else ''}"
        lines = [f"{type(self).__name__}({self._model}: {layers}, {calls}, keep={self.keep!r}, {said(self.size)})"]
        width = max((len(record.layer) for record in self.records[:SHOWN]), default=0)
        for record in self.records[:SHOWN]:
            call = f"call {record.call}  " if self.calls > 1 else ""
            note = f"  ({record.note})" if record.note else ""
            lines.append(
                f"  {call}{record.layer:<{width}}  {record.kind:<5}  {record.heads} heads, {record.batch} × {record.n} "
                f"queries, {record.m} keys{note}"
            )
        if len(self.records) > SHOWN:
            lines.append(f"  … and {len(self.records) - SHOWN} more")
        if self.missed:
            lines.append(f"  without an attention call that could be seen: {', '.join(self.missed)}")
        return "\n".join(lines)

    def _need_records(self) -> None:
        if not self.records:
            raise HeadwayError("nothing was captured: call the model inside of the block")

    def _attentions(self, wanted: Callable[[AttentionRecord], bool], what: str) -> tuple[Tensor, ...]:
        self._need_records()
        records = [record for record in self.records if wanted(record)]
        if not records:
            raise HeadwayError(f"there is no {what} among {', '.join(self.layers)}")
        if len({record.call for record in records}) > 1:
            raise HeadwayError(
                f"the model was called {self.calls} times: take one call, such as of_call(-1).attentions"
            )
        if any(record._heads is not None or record._rows is not None for record in records):
            raise HeadwayError("only some heads or rows were kept: take weights(layer, head), or capture all of them")
        if self.keep in ("qk", "qkv"):
            sizes = [size_of(record._kept_call, None, None) for record in records if record._kept_call is not None]
            refuse_above_limit(sum(sizes), f"the weights of {len(records)} layers")
        return tuple([record.weights() for record in records])


def in_decoder(module: str) -> bool:
    """Whether a module belongs to a decoder, by its dotted name."""
    parts = module.split(".")
    return any("decoder" in part for part in parts) and not any("encoder" in part for part in parts)


def _kept(what: str, number: int, kept: Sequence[int] | None) -> int:
    """The place of a head or row among those that were kept."""
    if kept is None:
        return number
    if number not in kept:
        raise HeadwayError(f"{what} {number} was not kept: the capture kept {', '.join(map(str, kept))}")
    return list(kept).index(number)
