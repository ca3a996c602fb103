"""Gathers the arguments of the programs for a lowered call. Importing this module imports triton."""

from __future__ import annotations

from copy import copy
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from typing_extensions import Self

from ...masks import Bound as MaskBound
from ...masks import Slot
from ...terms import Linear, Log, Power
from .._problem import gpu
from .._results import ForwardResults
from ..lowering.masks import within
from . import programs
from ._arguments import (
    Axis,
    Bound,
    ByRow,
    Dropout,
    Formula,
    Grid,
    Inputs,
    Lists,
    Matrix,
    Pairs,
    Parts,
    Plane,
    Results,
    Sight,
    SizeArguments,
    Span,
    Statistics,
    Stretched,
    TableArguments,
    Terms,
    Vectors,
    number,
)
from ._choices import INTERPRETED, Blocks, blocks_for
from ._installed import interprets
from ._lowered import TritonCall
from ._relative import Relative
from ._start import Starts, start
from ._tables import BEYOND
from .programs import (
    ALIGNED,
    ANY,
    BESIDE,
    COUNTS,
    EACH,
    FLUSH,
    LINEAR,
    LOG,
    NONE,
    NUMBER,
    POWER,
    RELATIVE_QUERIES,
    SLOPE,
    SLOT,
)

FORMULAS = {Linear: LINEAR, Log: LOG, Power: POWER}
UNBOUNDED = Bound(NONE, number(0))
MOST_LISTED = 1 << 24
"""The most numbers that lists of blocks may hold."""
CLASSIFIED, LISTED = 8, 512
"""The number of blocks that one program examines, and the number that are listed at once."""
LISTER = Blocks(1, 1, 4, 1)
ROWS = 32
"""The number of table rows for which one program sums the pairs of its tokens."""


class Launch:
    """The arguments that the programs of a call share.

    Args:
        call: the call.
        starts: starts the programs; by default triton looks each of them up.
        like: the launch of a call that differs in the values of q, k and v, and possibly in terms of the same kinds.
            With the same terms, both calls share one ``scores`` object.
    """

    inputs: Inputs
    parts: Parts

    def __init__(self, call: TritonCall, starts: Starts | None = None, like: Launch | None = None) -> None:
        if like is not None:
            vars(self).update(vars(like))
        self.call, self.starts = call, starts
        if like is None:
            self._measure()
        elif call.scores is like.call.scores:
            known = like.inputs
            assert known.v is not None
            q, k, v = (x if x.stride(3) == 1 else rows_together(x) for x in (call.q, call.k, call.v))
            self.inputs = Inputs(Matrix(q, *known.q[1:]), Matrix(k, *known.k[1:]), Matrix(v, *known.v[1:]), *known[3:])
            return
        relative = call.scores.relative_keys, call.scores.relative_queries
        queries, keys = (self.of_heads(rows_together(x)) for x in (call.q, call.k))
        self.inputs = Inputs(queries, keys, self.of_values(rows_together(call.v)), *map(self._tokens, relative))
        sink = self._plane(call.scores.sink, self.n)
        values = self.vectors(call.relative_values, self.v_pad)
        sight, drop = (self._sight(), self._dropout()) if like is None else (like.parts.sight, like.parts.drop)
        self.parts = Parts(sink, values, None, self._terms(), sight, drop)

    def _measure(self) -> None:
        """Reads the sizes of the call."""
        call = self.call
        q, k, v = (rows_together(x) for x in (call.q, call.k, call.v))
        self.batch, self.heads, self.n, self.head_dim = q.shape
        _, self.kv_heads, self.m, self.v_dim = v.shape
        self.aligned = all(_is_aligned(x) for x in (q, k, v))
        relative = call.scores.relative_keys, call.scores.relative_queries
        self.in_blocks = sum(x is not None and x.q is None for x in (*relative, call.relative_values))
        self.head_pad, self.v_pad = padded(self.head_dim), padded(self.v_dim)
        if not self.aligned:  # ptxas 12.8 confuses keys and values of different widths in shared memory
            self.head_pad = self.v_pad = max(self.head_pad, self.v_pad)
        self.chosen: dict[str, Blocks] = {}
        self.lists: dict[tuple[int, int, bool], Lists | None] = {}

    def without_tensors(self, terms: bool) -> Self:
        """Returns the part of this launch that later calls share: without q, k and v, and without varying terms.

        Args:
            terms: whether the terms stay the same.
        """
        found = copy(self)
        inputs = [x if x is None else x._replace(at=None) for x in self.inputs[:3]]
        found.inputs = Inputs(*inputs, *(self.inputs[3:] if terms else (None, None)))  # type: ignore[arg-type]
        found.call = self.call._with(q=None, k=None, v=None)
        if not terms:
            found.call = found.call._with(scores=None, relative_values=None, terms=())
            found.parts = self.parts._replace(sink=None, relative_values=None, terms=None)  # type: ignore[arg-type]
        return found

    def with_table(self, values: Tensor | None) -> Self:
        """Returns a copy of this launch with other values in its table of distances.

        Args:
            values: the values, contiguous; None for a copy that is kept without them.
        """
        scores, terms = self.call.scores, self.parts.terms
        assert scores.table is not None
        assert terms.table is not None
        found = object.__new__(type(self))
        vars(found).update(vars(self))
        found.call = self.call._with(scores=scores._with(table=scores.table._replace(values=values)))  # type: ignore[arg-type]
        found.parts = self.parts._replace(terms=terms._replace(table=terms.table._replace(at=values)))
        return found

    @property
    def group(self) -> int:
        return self.heads // max(self.kv_heads, 1)

    def blocks(self, program: str) -> Blocks:
        found = self.chosen.get(program)
        if found is None:
            found = self.chosen[program] = self._blocks(program)
        return found

    def _blocks(self, program: str) -> Blocks:
        if interprets():
            return INTERPRETED._replace(rows=64) if program == "wide split" else INTERPRETED
        width = max(self.head_pad, self.v_pad)
        stretched, warpgroups = self.call.scores.stretched is not None, _has_warpgroups(self.call.q.device)
        return blocks_for(program, self.call.q.dtype, width, self.in_blocks, stretched, warpgroups)

    def buffer(self, *shape: int) -> Tensor:
        """Allocates numbers in float32."""
        return torch.empty(shape, dtype=torch.float32, device=self.call.q.device)

    def statistic(self, tokens: int) -> Tensor:
        """Allocates one number for each head and token."""
        return self.buffer(self.batch, self.heads, tokens)

    def _matrix(self, x: Tensor, pad: int) -> Matrix:
        """Returns the matrix of x [b, heads, tokens, width], whose rows programs pad to ``pad`` numbers."""
        return Matrix.of(x, ALIGNED if self.aligned and _is_aligned(x) else ANY, pad)

    def of_heads(self, x: Tensor) -> Matrix:
        """Returns the matrix of a tensor with the width of queries and keys."""
        return self._matrix(x, self.head_pad)

    def of_values(self, x: Tensor) -> Matrix:
        """Returns the matrix of a tensor with the width of values."""
        return self._matrix(x, self.v_pad)

    def of_relative(self, x: Tensor) -> Matrix:
        """Returns the matrix of a tensor with the width of relative keys or queries."""
        return self._matrix(x, padded(x.shape[3]))

    def start(self, program: Any, grid: int, blocks: Blocks, *arguments: Any, **constants: Any) -> None:
        """Starts ``grid`` instances of a program."""
        (start if self.starts is None else self.starts)(program, self.call.q, grid, blocks, *arguments, **constants)

    # ------------------------------------------------------------ parts

    def _plane(self, x: Tensor | None, tokens: int) -> Plane | None:
        """Returns the plane of x [b, heads or 1, tokens or 1]."""
        if x is None:
            return None
        x = x.detach().resolve_neg().expand(self.batch, self.heads, tokens)
        return Plane.of(x, x.stride(), _layout(x))

    def _tokens(self, x: Relative | None) -> Matrix | None:
        """The tokens that relative vectors are multiplied with in blocks."""
        return None if x is None or x.q is not None or x.tokens is None else self.of_relative(rows_together(x.tokens))

    def vectors(self, x: Relative | None, pad: int | None = None) -> Vectors | None:
        """The vectors that are multiplied in blocks, padded to ``pad`` numbers, by default to the next power of 2."""
        if x is None or x.q is not None:
            return None
        (vectors, stride), (_, rows, width) = _by_head(x.vectors), x.vectors.shape
        last, origin = map(number, (rows - 1, x.origin))
        sizes = tl.constexpr(width), tl.constexpr(pad or padded(width)), tl.constexpr(x.ends is not None)
        return Vectors(vectors, stride, last, origin, *sizes, vectors if x.ends is None else x.ends)

    def by_row(self, x: Relative | None, numbers: Tensor | None) -> ByRow | None:
        """The numbers of each token for the rows of a table, [batch, heads, tokens, rows], which are looked up."""
        if x is None or x.q is None or numbers is None:
            return None
        numbers = numbers.detach().resolve_neg().contiguous()
        b, h, n, last, origin = map(number, (*numbers.stride()[:3], x.vectors.shape[1] - 1, x.origin))
        return ByRow(numbers, b, h, n, ANY, last, origin)

    def of_tokens(self, x: Tensor) -> Plane:
        """Returns the plane of x [b, tokens], which all heads share."""
        x = x.resolve_neg()
        return Plane.of(x, (x.stride(0) if x.shape[0] > 1 else 0, 0, x.stride(1)), _layout(x))

    def pairs(self, x: Tensor | None) -> tuple[Pairs | None, Any]:
        """Returns the pairs of x, which broadcasts to [b, heads, n, m], and their layout."""
        if x is None:
            return None, ANY
        x = x.detach().resolve_neg().expand(self.batch, self.heads, self.n, self.m)
        layout = FLUSH if x.stride(3) == 1 and _is_aligned(x) else _layout(x)
        return Pairs(x, *map(number, x.stride())), layout

    def _terms(self) -> Terms:
        scores = self.call.scores
        dense, layout = self.pairs(scores.dense)
        return Terms(
            scale=float(self.call.scale),
            cap=scores.cap,
            factor=self._plane(scores.factor, self.n),
            queries=self._plane(scores.queries, self.n),
            keys=self._plane(scores.keys, self.m),
            dense=dense,
            dense_layout=layout,
            **self._relative(),
            **self._table(),
            **self._grid(),
            **self._formula(),
            **self._stretched(),
        )

    def _sides(self, q: Tensor | None, k: Tensor | None) -> list[Plane | None]:
        """The positions of queries and keys; None if they rise by one."""
        return [None if x is None else self.of_tokens(x) for x in (q, k)]

    def _relative(self) -> dict[str, Any]:
        """Relative keys and queries that are multiplied in blocks, and those whose products are looked up."""
        keys, queries = self.call.scores.relative_keys, self.call.scores.relative_queries
        found: dict[str, Any] = {"relative_keys": self.vectors(keys), "relative_queries": self.vectors(queries)}
        for name, x in (("query_products", keys), ("key_products", queries)):
            found[name] = self.by_row(x, None if x is None else x.products)
        for x in (keys, queries, self.call.relative_values):
            if x is not None and x.q is not None:  # the same positions for all terms
                found["relative_q_position"], found["relative_k_position"] = self._sides(x.q, x.k)
        return found

    def _table(self) -> dict[str, Any]:
        found = self.call.scores.table
        if found is None:
            return {}
        table = TableArguments(*_by_head(found.values), *map(number, (found.values.shape[1] - 1, found.origin)))
        q, k = self._sides(found.q, found.k)
        return {"table": table, "table_ends": found.ends, "q_position": q, "k_position": k}

    def _grid(self) -> dict[str, Any]:
        found = self.call.scores.grid
        if found is None:
            return {}
        axes = [Axis(number(one.last), number(one.origin)) for one in found.axes]
        sides: dict[str, Any] = {}
        for name, one in zip(("first", "second"), found.axes, strict=False):
            sides |= {f"{name}_q": self.of_tokens(one.q), f"{name}_k": self.of_tokens(one.k)}
        return {"grid": Grid(*_by_head(found.values), axes[0], axes[-1]), **sides}

    def _formula(self) -> dict[str, Any]:
        found = self.call.scores.formula
        if found is None:
            return {}
        first, second = (x.detach().resolve_neg().contiguous() for x in (found.parameters[0], found.parameters[-1]))
        kind = SLOPE if found.second is None else FORMULAS[found.kind]
        formula = Formula(kind, first, second, *(number(int(len(x) > 1)) for x in (first, second)))
        q, k = self._sides(found.q, found.k)
        return {"formula": formula, "formula_start": found.start, "formula_q": q, "formula_k": k}

    def _stretched(self) -> dict[str, Any]:
        found = self.call.scores.stretched
        if found is None:
            return {}
        intercept, slope, rate = (x.detach().resolve_neg() for x in (found.intercept, found.slope, found.rate))
        intercept, slope = (x.expand(self.heads, -1).contiguous() for x in (intercept, slope))
        count, padded = len(found.edges), triton.next_power_of_2(max(1, len(found.edges)))
        edges = torch.nn.functional.pad(found.edges, (0, padded - count), value=torch.inf)
        steps = torch.nn.functional.pad(slope.diff(), (0, 1))
        numbers = number(count), tl.constexpr(padded), intercept, slope, steps, number(count + 1), rate.contiguous()
        sizes = None
        if found.sizes is not None:
            size, by_rate = found.sizes
            sizes = SizeArguments(size, by_rate, number(self.n - 1 + BEYOND))
        q, k = self._sides(found.q, found.k)
        stretch = self.of_tokens(found.stretch.detach())
        stretched = {"stretched": Stretched(edges, *numbers), "stretch": stretch, "sizes": sizes}
        return {**stretched, "stretched_q": q, "stretched_k": k}

    def _bound(self, x: MaskBound) -> Bound:
        if x is None:
            return UNBOUNDED
        if isinstance(x, Slot):
            return Bound(SLOT, number(within(x.offset, self.n, self.m)))
        if isinstance(x, Tensor):
            each = self.of_tokens(x.clamp(0, self.m).to(torch.int32).expand(self.batch, self.n))
            return Bound(EACH, each)
        return Bound(NUMBER, number(within(x, self.n, self.m)))

    def _limit(self, x: MaskBound) -> Bound:
        """Returns a bound of the keys of each sequence, a number or [b, 1]."""
        if not isinstance(x, Tensor):
            return self._bound(x)
        return Bound(EACH, self.of_tokens(x.clamp(0, self.m).to(torch.int32).expand(self.batch, 1)))

    def _sight(self) -> Sight:
        limits = [self._limit(x) for x in self.call.real_keys]
        spans = [Span(*map(self._bound, each), *limits) for each in self.call.intervals or [(None, None)]]
        second = spans[1] if len(spans) > 1 else None
        documents = self.call.documents
        q_document, k_document = (None, None) if documents is None else (self.of_tokens(x) for x in documents)
        rest = None if self.call.allowed is None else self.call.allowed.view(torch.uint8)
        return Sight(spans[0], second, q_document, k_document, *self.pairs(rest), None)

    def listed(self, blocks: Blocks, of_keys: bool = False) -> Parts:
        """Returns the parts, with lists of the blocks in sight if the mask is more than intervals.

        Args:
            blocks: the blocks of the program that reads the lists.
            of_keys: whether the program computes blocks of keys, not of queries.
        """
        size = blocks.rows, blocks.block, of_keys
        if size not in self.lists:
            self.lists[size] = self._list(blocks, of_keys)
        found = self.lists[size]
        return self.parts if found is None else self.parts._replace(sight=self.parts.sight._replace(lists=found))

    def _list(self, blocks: Blocks, of_keys: bool) -> Lists | None:
        call = self.call
        if call.documents is None and call.allowed is None:
            return None
        bounds = [bound for each in (*call.intervals, call.real_keys) for bound in each if isinstance(bound, Tensor)]
        allowed = [] if call.allowed is None else [call.allowed]
        batch = max(len(x) for x in (*bounds, *(call.documents or ()), *allowed))
        heads = max((x.shape[1] for x in allowed), default=1)
        own, others = tiles(self.n, blocks.rows), tiles(self.m, blocks.block)
        own, others = (others, own) if of_keys else (own, others)
        width = others + COUNTS.value
        if batch * heads * own * width > MOST_LISTED:
            return None
        at = torch.empty(batch, heads, own, width, dtype=torch.int32, device=call.q.device)
        b, h = heads * own if batch > 1 else 0, own if heads > 1 else 0
        lists = Lists(at, *map(number, (b, h, width)))
        kinds = torch.empty(batch * heads, own, others, dtype=torch.int8, device=call.q.device)
        start(
            programs.classify_tiles, call.q, batch * heads * own * tiles(others, CLASSIFIED), blocks,
            self.parts.sight, kinds, self.n, self.m, heads,
            rows=blocks.rows, block=blocks.block, of_keys=of_keys, chunk=CLASSIFIED,
        )  # fmt: skip
        start(programs.list_tiles, call.q, batch * heads * own, LISTER, lists, kinds, others, chunk=LISTED)
        return lists

    def _dropout(self) -> Dropout | None:
        call = self.call
        if not call.dropout or call.seed is None:
            return None
        queries, keys = (self.of_tokens(side.index) for side in (call.q_coordinates, call.k_coordinates))
        below, first_row, first_head = map(number, (int(call.dropout * 2**32), call.batch_offset, call.head_offset))
        return Dropout(below, 1 / (1 - call.dropout), call.seed, first_row, first_head, queries, keys)

    # ------------------------------------------------------------ statistics of recomputed weights

    def statistics_of(
        self, results: ForwardResults, up: Matrix | None = None, d_lse: Tensor | None = None
    ) -> Statistics:
        """Returns the statistics for recomputing weights, with δ from the output if its gradient is given."""
        blocks = self.blocks("queries")
        found = Statistics(*(self.statistic(self.n) for _ in Statistics._fields))
        out = None if up is None else self.of_values(rows_together(results.out))
        self.start(
            programs.query_statistics, tiles(self.n, blocks.rows) * self.batch * self.heads, blocks,
            Results(out, results.row_max, results.row_sum), up, d_lse, found, self.n, self.heads,
            rows=blocks.rows, with_delta=up is not None,
        )  # fmt: skip
        return found

    # ------------------------------------------------------------ sums of pairs by row

    def sums_by_row(self, term: Relative, kind: Any, statistics: Statistics, up: Matrix | None = None) -> Tensor:
        """Returns, for each token and row, the sum over its pairs with that row, [batch, heads, tokens, rows]."""
        blocks, count = self.blocks("table"), term.vectors.shape[1]
        tokens, size = (self.m, blocks.block) if kind == RELATIVE_QUERIES else (self.n, blocks.rows)
        sums = self.buffer(self.batch, self.heads, tokens, count)
        self.start(
            programs.sums_by_row, self.batch * self.heads * tiles(tokens, size) * tiles(count, ROWS), blocks,
            self.inputs, self.parts, up, statistics, self.by_row(term, sums), sums,
            self.n, self.m, self.heads, self.group, count,
            rows=blocks.rows, block=blocks.block, chunk=ROWS, kind=kind,
        )  # fmt: skip
        return sums


def _has_warpgroups(device: torch.device) -> bool:
    found = gpu(device) if device.type == "cuda" else None
    return found is not None and (9, 0) <= found[0] < (12, 0)


def rows_together(x: Tensor) -> Tensor:
    """Returns x with contiguous numbers in each token."""
    x = x.detach().resolve_neg()
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()


def _by_head(x: Tensor) -> tuple[Tensor, int]:
    """Returns x [heads or 1, …], contiguous, and the stride of its heads."""
    x = x.detach().resolve_neg().contiguous()
    return x, number(x.stride(0) if len(x) > 1 else 0)


def _layout(x: Tensor) -> Any:
    return BESIDE if x.stride(-1) == 1 else ANY


def _is_aligned(x: Tensor) -> bool:
    first, second, third = x.stride()[:3]
    return not (first | second | third) % 16


def padded(width: int) -> int:
    """Returns the next power of 2, but at least 16, the smallest size of a product."""
    return max(16, triton.next_power_of_2(width))


def tiles(count: int, block: int) -> int:
    return -(-count // block)
