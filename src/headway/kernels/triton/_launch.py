"""Launches of the programs for a lowered call. Importing this module imports triton."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...masks import Bound as MaskBound
from ...masks import Slot
from .._results import Gradients, Results, new_results
from ..lowering.masks import within
from . import _programs, _tables
from ._arguments import Bound, Dropout, Formula, Inputs, Pairs, Parts, Plane, Sight, Span, Table, Terms, Wanted, number
from ._choices import INTERPRETED, Blocks, blocks_for, splits_for
from ._installed import interprets
from ._lowered import TritonCall
from ._start import start

NONE, NUMBER, SLOT, EACH = (tl.constexpr(kind) for kind in range(4))
ANY, ALIGNED, BESIDE, FLUSH = (tl.constexpr(layout) for layout in range(4))
FORMULAS = dict(zip(_tables.FORMULAS, map(tl.constexpr, range(3)), strict=True))
UNBOUNDED = Bound(NONE, number(0))
EVERYTHING = Span(UNBOUNDED, UNBOUNDED)
CHUNK = 1024
"""Rows of a table that one program sums."""
SPLITS = 16
"""Splits of keys that are merged at once."""
PARTIAL = 1 << 24
"""The most numbers of partial sums of a table, unless the table alone is larger."""


class Launch:
    """The arguments that the programs of a call share."""

    def __init__(self, call: TritonCall) -> None:
        self.call = call
        q, k, v = (_rows_together(x) for x in (call.q, call.k, call.v))
        self.batch, self.heads, self.n, self.head_dim = q.shape
        _, self.kv_heads, self.m, self.v_dim = v.shape
        self.aligned = all(_is_aligned(x) for x in (q, k, v))
        self.inputs = Inputs(*map(self._plane_of, (q, k, v)))
        self.sizes = {
            "head_dim": self.head_dim,
            "v_dim": self.v_dim,
            "head_pad": _padded(self.head_dim),
            "v_pad": _padded(self.v_dim),
            "interpreted": interprets(),
        }
        self.parts = Parts(self._plane(call.scores.sink, self.n), self._terms(), self._sight(), self._dropout())

    @property
    def widths(self) -> dict[str, Any]:
        """The sizes of programs that read no values."""
        return {name: self.sizes[name] for name in ("head_dim", "head_pad", "interpreted")}

    @property
    def group(self) -> int:
        return self.heads // max(self.kv_heads, 1)

    def blocks(self, program: str) -> Blocks:
        if interprets():
            return INTERPRETED._replace(rows=64) if program == "wide split" else INTERPRETED
        return blocks_for(program, self.call.q.dtype, max(self.sizes["head_pad"], self.sizes["v_pad"]))

    def statistic(self, tokens: int) -> Tensor:
        """Allocates one number for each head and token."""
        return torch.empty(self.batch, self.heads, tokens, dtype=torch.float32, device=self.call.q.device)

    def _plane_of(self, x: Tensor) -> Plane:
        """Of [b, heads, tokens, width]."""
        return Plane.of(x, x.stride()[:3], ALIGNED if self.aligned and _is_aligned(x) else ANY)

    def _plane_or_none(self, x: Tensor | None) -> Plane | None:
        return None if x is None else self._plane_of(x)

    # ------------------------------------------------------------ parts

    def _plane(self, x: Tensor | None, tokens: int) -> Plane | None:
        """Of [b, heads or 1, tokens or 1]."""
        if x is None:
            return None
        x = x.detach().resolve_neg().expand(self.batch, self.heads, tokens)
        return Plane.of(x, x.stride(), _layout(x))

    def of_tokens(self, x: Tensor) -> Plane:
        """Of [b, tokens], the same for all heads."""
        x = x.resolve_neg()
        return Plane.of(x, (x.stride(0) if x.shape[0] > 1 else 0, 0, x.stride(1)), _layout(x))

    def _pairs(self, x: Tensor | None) -> tuple[Pairs | None, Any]:
        """Of what broadcasts to [b, heads, n, m], and its layout."""
        if x is None:
            return None, ANY
        x = x.detach().resolve_neg().expand(self.batch, self.heads, self.n, self.m)
        layout = FLUSH if x.stride(3) == 1 and _is_aligned(x) else _layout(x)
        return Pairs(x, *map(number, x.stride())), layout

    def _terms(self) -> Terms:
        scores = self.call.scores
        table, q_position, k_position = None, None, None
        if scores.table is not None:
            values = scores.table.values.detach().resolve_neg().contiguous()
            heads, rows = values.shape
            table = Table(values, *map(number, (rows if heads > 1 else 0, rows - 1, scores.table.origin)))
            q_position, k_position = (
                None if side is None else self.of_tokens(side) for side in (scores.table.q, scores.table.k)
            )
        factor, queries = (self._plane(x, self.n) for x in (scores.factor, scores.queries))
        keys = self._plane(scores.keys, self.m)
        formula, formula_q, formula_k = self._formula()
        return Terms(
            float(self.call.scale), scores.cap, factor, table, q_position, k_position, formula, formula_q, formula_k,
            queries, keys, *self._pairs(scores.dense),
        )  # fmt: skip

    def _formula(self) -> tuple[Formula | None, Plane | None, Plane | None]:
        formula = self.call.scores.formula
        if formula is None:
            return None, None, None
        first, second = (x.detach().resolve_neg().contiguous() for x in (formula.first, formula.second))
        first_h, second_h = (number(int(len(x) > 1)) for x in (first, second))
        parameters = Formula(FORMULAS[formula.kind], first, second, first_h, second_h)
        return parameters, self.of_tokens(formula.q), self.of_tokens(formula.k)

    def _bound(self, x: MaskBound) -> Bound:
        if x is None:
            return UNBOUNDED
        if isinstance(x, Slot):
            return Bound(SLOT, number(within(x.offset, self.n, self.m)))
        if isinstance(x, Tensor):
            each = self.of_tokens(x.clamp(0, self.m).to(torch.int32).expand(self.batch, self.n))
            return Bound(EACH, each)
        return Bound(NUMBER, number(within(x, self.n, self.m)))

    def _sight(self) -> Sight:
        spans = [Span(self._bound(start), self._bound(stop)) for start, stop in self.call.intervals]
        first = spans[0] if spans else EVERYTHING
        second = spans[1] if len(spans) > 1 else None
        documents = self.call.documents
        q_document, k_document = (None, None) if documents is None else (self.of_tokens(x) for x in documents)
        rest = None if self.call.allowed is None else self.call.allowed.view(torch.uint8)
        return Sight(first, second, q_document, k_document, *self._pairs(rest))

    def _dropout(self) -> Dropout | None:
        call = self.call
        if not call.dropout or call.seed is None:
            return None
        queries, keys = (self.of_tokens(side.index) for side in (call.q_coordinates, call.k_coordinates))
        below, first_row, first_head = map(number, (int(call.dropout * 2**32), call.batch_offset, call.head_offset))
        return Dropout(below, 1 / (1 - call.dropout), call.seed, first_row, first_head, queries, keys)

    # ------------------------------------------------------------ programs

    def forward(self) -> Results:
        call = self.call
        results = new_results(call.q, call.v, call.q.dtype)
        blocks = self.blocks("split" if self.n * self.group <= 16 else "wide split")
        splits = splits_for(
            self.n * self.group, self.m, self.batch * self.kv_heads, _processors(call.q.device), blocks.block
        )
        if splits:
            self._forward_in_splits(results, splits, blocks)
            return results
        self.run_forward(results)
        return results

    def run_forward(self, results: Results, output: bool = True, wanted: Wanted | None = None, width: int = 0) -> None:
        """Writes the statistics of each query, the output if it is to be, and what is wanted of the weights.

        Args:
            results: where to.
            output: whether to write the output.
            wanted: what is wanted of the weights, of a query at most ``width`` numbers, a power of 2; 0 for nothing.
        """
        blocks = self.blocks("forward" if output else "reductions")
        inputs = self.inputs if output else self.inputs._replace(v=None)
        start(
            _programs.forward, self.call.q, _tiles(self.n, blocks.rows) * self.batch * self.heads, blocks,
            inputs, self.parts, wanted, self._plane_of(results.out) if output else None,
            results.row_max, results.row_sum, self.n, self.m, self.heads, self.group,
            **self.sizes, rows=blocks.rows, block=blocks.block, width=width,
        )  # fmt: skip

    def column_sums(self, results: Results, counted: Plane | None) -> Tensor:
        """Returns the sums of the weights of each key over the queries that count, [batch, heads, m]."""
        blocks, sums = self.blocks("keys"), self.statistic(self.m)
        start(
            _programs.column_sums, self.call.q, _tiles(self.m, blocks.block) * self.batch * self.heads, blocks,
            self.inputs._replace(v=None), self.parts, (results.row_max, results.row_sum, None), counted, sums,
            self.n, self.m, self.heads, self.group, **self.widths, rows=blocks.rows, block=blocks.block,
        )  # fmt: skip
        return sums

    def pooled(self, results: Results, counted: Plane | None, down: int, across: int) -> tuple[Tensor, Tensor]:
        """Returns the sums and the largest of the weights in each cell, [batch, heads, down, across]."""
        blocks = self.blocks("table")
        mass, largest = torch.empty(2, self.batch, self.heads, down, across, device=self.call.q.device)
        start(
            _programs.pooled_map, self.call.q, mass.numel(), blocks,
            self.inputs._replace(v=None), self.parts, (results.row_max, results.row_sum, None), counted, mass, largest,
            self.n, self.m, self.heads, self.group, down, across, **self.widths, rows=blocks.rows, block=blocks.block,
        )  # fmt: skip
        return mass, largest.masked_fill(mass.isnan(), torch.nan)  # NaN is lost among the largest

    def _forward_in_splits(self, results: Results, splits: int, blocks: Blocks) -> None:
        rows = self.batch * self.heads * self.n
        totals = torch.empty(splits, rows, self.v_dim, device=self.call.q.device)
        largests, sums = torch.empty(2, splits, rows, device=self.call.q.device)
        start(
            _programs.split_forward, self.call.q, self.batch * self.kv_heads * splits, blocks,
            self.inputs, self.parts, totals, largests, sums, self.n, self.m, self.heads, self.group, splits,
            **self.sizes, rows=blocks.rows, block=blocks.block,
        )  # fmt: skip
        start(
            _programs.merge_splits, self.call.q, rows, blocks, totals, largests, sums, self.parts.sink,
            self._plane_of(results.out), results.row_max, results.row_sum, self.n, self.heads, splits,
            v_dim=self.v_dim, v_pad=self.sizes["v_pad"], chunk=SPLITS,
        )  # fmt: skip

    def backward(self, results: Results, d_out: Tensor, d_lse: Tensor | None, partial_keys: bool) -> Gradients:
        call, scores = self.call, self.call.scores
        up, delta = _rows_together(d_out), self.statistic(self.n)
        blocks = self.blocks("queries")
        lse = None if d_lse is None else d_lse.float().contiguous()
        start(
            _programs.deltas, self.call.q, _tiles(self.n, blocks.rows) * self.batch * self.heads, blocks,
            self._plane_of(_rows_together(results.out)), self._plane_of(up), lse, delta, self.n, self.heads,
            v_dim=self.v_dim, v_pad=self.sizes["v_pad"], rows=blocks.rows,
        )  # fmt: skip
        shared = self.inputs, self.parts, self._plane_of(up), (results.row_max, results.row_sum, delta)
        found: Gradients = []

        def wanted(x: Tensor | None, like: Tensor | None = None) -> Tensor | None:
            """Allocates the gradient of x if it is wanted."""
            if x is None or not x.requires_grad:
                return None
            gradient = _empty_like(x) if like is None else like
            found.append((x, gradient))
            return gradient

        d_q = wanted(call.q)
        d_factor = wanted(scores.factor, self.statistic(self.n))
        d_queries = wanted(scores.queries, self.statistic(self.n))
        own_delta = None if partial_keys else self.statistic(self.n)
        if own_delta is not None or not d_q is d_factor is d_queries is None:
            start(
                _programs.queries_gradient, call.q, _tiles(self.n, blocks.rows) * self.batch * self.heads, blocks,
                *shared,
                lse, own_delta, self._plane_or_none(d_q), d_factor, d_queries, self.n, self.m, self.heads, self.group,
                **self.sizes, rows=blocks.rows, block=blocks.block,
            )  # fmt: skip
        if own_delta is not None:
            delta = own_delta
            shared = *shared[:3], (results.row_max, results.row_sum, delta)
        d_k, d_v, d_keys = wanted(call.k), wanted(call.v), wanted(scores.keys, self.statistic(self.m))
        slopes = [self.statistic(self.m) if x.requires_grad else None for x in scores.parameters]
        if any(x is not None for x in (d_k, d_v, d_keys, *slopes)):
            d_first, d_second = slopes or (None, None)
            blocks = self.blocks("keys")
            start(
                _programs.keys_gradient, call.q, _tiles(self.m, blocks.block) * self.batch * self.kv_heads, blocks,
                *shared,
                self._plane_or_none(d_k), self._plane_or_none(d_v), d_keys, d_first, d_second,
                self.n, self.m, self.kv_heads, self.group, **self.sizes, rows=blocks.rows, block=blocks.block,
            )  # fmt: skip
            for x, by_key in zip(scores.parameters, slopes, strict=True):
                if by_key is not None:
                    found.append((x, by_key.double().sum(-1)))
        if scores.table is not None and scores.table.values.requires_grad:
            found.append((scores.table.values, self._table_gradient(shared)))
        if scores.dense is not None and scores.dense.requires_grad:
            found.append((scores.dense, self._dense_gradient(shared)))
        if scores.sink is not None and scores.sink.requires_grad:
            found.append((scores.sink, _sink_gradient(scores.sink, results, delta)))
        return found

    def _table_gradient(self, shared: tuple[Any, ...]) -> Tensor:
        """The gradient of the table, [batch, heads, rows]."""
        assert self.call.scores.table is not None
        blocks, count = self.blocks("table"), self.call.scores.table.values.shape[1]
        device = self.call.q.device
        if self.call.scores.table.q is None:
            side = blocks.block
            i_tiles, diagonals = _tiles(self.n, side), _tiles(self.n, side) + _tiles(self.m, side) - 1
            partial = torch.empty(self.batch * self.heads, diagonals, 2, side, device=device)
            start(
                _programs.diagonals_gradient, self.call.q, self.batch * self.heads * diagonals, blocks,
                *shared, partial, self.n, self.m, self.heads, self.group, **self.sizes, block=side,
            )  # fmt: skip
            near, far = partial.unbind(2)
            total = partial.new_zeros(self.batch * self.heads, (diagonals + 1) * side)
            total[:, :-side] += near.flatten(1)
            total[:, side:] += far.flatten(1)
            skipped = i_tiles * side - self.n
            return total[:, skipped : skipped + count].unflatten(0, (self.batch, self.heads))
        shares = max(1, min(_tiles(self.m, blocks.block), PARTIAL // max(1, self.batch * self.heads * count)))
        partial = torch.empty(self.batch * self.heads, shares, count, device=device)
        grid = self.batch * self.heads * shares * _tiles(count, CHUNK)
        start(
            _programs.rows_gradient, self.call.q, grid, blocks, *shared, partial,
            self.n, self.m, self.heads, self.group, shares, count,
            **self.sizes, rows=blocks.rows, block=blocks.block, chunk=CHUNK,
        )  # fmt: skip
        return partial.double().sum(1).unflatten(0, (self.batch, self.heads))

    def _dense_gradient(self, shared: tuple[Any, ...]) -> Tensor:
        """The gradient of the dense bias, in its shape and dtype."""
        assert self.call.scores.dense is not None
        blocks = self.blocks("table")
        gradient = torch.empty_like(self.call.scores.dense, memory_format=torch.contiguous_format)
        batch, heads = gradient.shape[:2]
        tiles = _tiles(self.n, blocks.rows) * _tiles(self.m, blocks.block)
        pairs, layout = self._pairs(gradient)
        start(
            _programs.dense_gradient, self.call.q, batch * heads * tiles, blocks, *shared,
            pairs, self.n, self.m, self.heads, self.group, heads, self.batch // max(batch, 1),
            self.heads // max(heads, 1), **self.sizes, rows=blocks.rows, block=blocks.block, layout=layout,
        )  # fmt: skip
        return gradient


def _sink_gradient(sink: Tensor, results: Results, delta: Tensor) -> Tensor:
    """−δ times the weight of the sink, [batch, heads, n]; 0 where nothing else is in sight."""
    weight = (sink.detach() - results.row_max).exp() / results.row_sum
    return torch.where(delta == 0, 0.0, -delta * weight)


def _processors(device: torch.device) -> int:
    """Returns how many multiprocessors a GPU has; of the interpreter a few, so that short sequences are split."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 2


def _rows_together(x: Tensor) -> Tensor:
    """Returns x, with the numbers of each token beside one another."""
    x = x.detach().resolve_neg()
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()


def _empty_like(x: Tensor) -> Tensor:
    """Allocates a tensor like x, with the numbers of each token beside one another."""
    found = torch.empty_like(x)
    return found if found.stride(-1) == 1 else torch.empty_like(x, memory_format=torch.contiguous_format)


def _layout(x: Tensor) -> Any:
    return BESIDE if x.stride(-1) == 1 else ANY


def _is_aligned(x: Tensor) -> bool:
    return not any(stride % 16 for stride in x.stride()[:3])


def _padded(width: int) -> int:
    """Returns the next power of 2, at least 16, which products need."""
    return max(16, triton.next_power_of_2(width))


def _tiles(count: int, block: int) -> int:
    return -(-count // block)
