"""The gradients of a lowered call. Importing this module imports triton."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .._results import ForwardResults, Gradients
from . import programs
from ._arguments import KeyGradients, Matrix, Parts, QueryGradients, Vectors
from ._launch import Launch, rows_together, tiles
from ._lowered import TritonCall
from ._relative import Relative
from ._start import Starts
from ._tables import BEYOND, DistanceTable, StretchedPieces
from .programs import BY_AXES, BY_DISTANCE, BY_PIECE, RELATIVE_KEYS, RELATIVE_QUERIES, RELATIVE_VALUES

CHUNK = 1024
"""The rows of a table that one program sums."""
PARTIAL = 1 << 24
"""The most numbers in partial sums of a table, unless a single table is larger."""


class Backward(Launch):
    """The programs of the gradients.

    Args:
        call: the call.
        results: the results of its forward pass.
        d_out: the gradient of the output.
        d_lse: the gradient of the log-sum-exp, or None.
        partial_keys: whether the results are those of more keys than the call's.
        starts: as for ``Launch``.
        like: as for ``Launch``.
    """

    def __init__(
        self,
        call: TritonCall,
        results: ForwardResults,
        d_out: Tensor,
        d_lse: Tensor | None,
        partial_keys: bool,
        starts: Starts | None = None,
        like: Launch | None = None,
    ) -> None:
        super().__init__(call, starts, like)
        self.results, self.partial_keys = results, partial_keys
        self.d_out = d_out.to(call.q.dtype)  # the gradient of merged parts is wider
        self.d_lse = None if d_lse is None else d_lse.float().contiguous()
        self.up = self.of_values(rows_together(self.d_out))
        self.found: Gradients = []
        self.far: Tensor | None = None
        """Each key's contribution to the gradients of the first and the last number of a clipped table."""
        values = call.relative_values
        if values is not None and values.q is not None:
            looked_up = self.by_row(values, self.d_out.float() @ values.vectors.detach().mT)
            self.parts = self.parts._replace(of_values=looked_up)
        self.statistics = self.statistics_of(results, self.up, self.d_lse)

    @property
    def shared(self) -> tuple[Any, ...]:
        """The arguments that all gradient programs share."""
        return self._shared(self.parts)

    def _shared(self, parts: Parts) -> tuple[Any, ...]:
        return self.inputs, parts, self.up, self.statistics

    def run(self) -> Gradients:
        """Returns the gradients of the call's tensors that are wanted."""
        scores, values = self.call.scores, self.call.relative_values
        self._of_queries()
        self._of_keys()
        terms = self.parts.terms
        for kind, term, vectors in (
            (RELATIVE_KEYS, scores.relative_keys, terms.relative_keys),
            (RELATIVE_QUERIES, scores.relative_queries, terms.relative_queries),
            (RELATIVE_VALUES, values, self.parts.relative_values),
        ):
            if term is not None:
                self._of_relative(term, kind, vectors)
        if scores.table is not None and scores.table.values.requires_grad:
            self.found.append((scores.table.values, self._table_gradient(scores.table)))
        if scores.grid is not None and scores.grid.values.requires_grad:
            self.found.append((scores.grid.values, self._rows_gradient(scores.grid.values.shape[1], BY_AXES)[0]))
        if scores.stretched is not None:
            self._of_pieces(scores.stretched)
        if scores.dense is not None and scores.dense.requires_grad:
            self.found.append((scores.dense, self._dense_gradient(scores.dense)))
        if scores.sink is not None and scores.sink.requires_grad:
            self.found.append((scores.sink, _sink_gradient(scores.sink, self.results, self.statistics.delta)))
        return self.found

    def _wanted(self, x: Tensor | None, like: Tensor | None = None) -> Tensor | None:
        """Allocates the gradient of x, or takes ``like`` for it, and records it; None if x requires no gradient."""
        if x is None or not x.requires_grad:
            return None
        gradient = _empty_like(x) if like is None else like
        self.found.append((x, gradient))
        return gradient

    def _wanted_tokens(self, term: Relative | None) -> Tensor | None:
        """Allocates the gradient of the tokens that relative vectors are multiplied with in blocks."""
        return None if term is None or term.q is not None else self._wanted(term.tokens)

    # ------------------------------------------------------------ of queries and keys

    def _of_queries(self) -> None:
        """Computes the gradients of queries and of terms by query, and δ from this pass's own products."""
        call, scores = self.call, self.call.scores
        stretched = scores.stretched
        d_q, d_tokens = self._wanted(call.q), self._wanted_tokens(scores.relative_keys)
        numbers = [self._wanted(x, self.statistic(self.n)) for x in (scores.factor, scores.queries)]
        both = (None, None) if stretched is None else (stretched.stretch, stretched.rate)
        sums = [None if x is None or not x.requires_grad else self.statistic(self.n) for x in both]
        found = QueryGradients(None, _if_any(self.of_heads, d_q), _if_any(self.of_relative, d_tokens), *numbers, *sums)
        if self.partial_keys:
            self._start_queries(found)
        elif call.q.dtype == torch.float32:
            # queries and keys must use the same δ: the gradients of learned angles cancel between them
            self._start_queries(QueryGradients(), delta=True)
            self._start_queries(found)
        else:
            self._start_queries(found, delta=True)
        d_stretch, d_rate = sums
        if stretched is not None and d_stretch is not None:
            self.found.append((stretched.stretch, d_stretch.double().sum(1)))
        if stretched is not None and d_rate is not None:
            self.found.append((stretched.rate, d_rate.double().sum()[None]))

    def _start_queries(self, found: QueryGradients, delta: bool = False) -> None:
        """Starts the program that writes ``found``. With ``delta``, later programs use the δ that it computes."""
        if not delta and all(x is None for x in found[:-1]):
            return
        blocks = self.blocks("queries")
        if delta:
            found = found._replace(delta=self.statistic(self.n))
        self.start(
            programs.queries_gradient, tiles(self.n, blocks.rows) * self.batch * self.heads, blocks,
            *self._shared(self.listed(blocks)), self.d_lse, found,
            self.n, self.m, self.heads, self.group, rows=blocks.rows, block=blocks.block,
        )  # fmt: skip
        if delta:
            self.statistics = self.statistics._replace(delta=found.delta)

    def _of_keys(self) -> None:
        """Computes the gradients of keys, values, terms by key, and the parameters of a formula."""
        call, scores = self.call, self.call.scores
        blocks = self.blocks("keys")
        d_k, d_tokens, d_v = self._wanted(call.k), self._wanted_tokens(scores.relative_queries), self._wanted(call.v)
        d_keys = self._wanted(scores.keys, self.statistic(self.m))
        slopes = [self.statistic(self.m) if x.requires_grad else None for x in scores.parameters]
        table = scores.table
        if table is not None and table.ends is not None and table.values.requires_grad:
            self.far = self.buffer(2, self.batch, self.heads, self.m)
        if all(x is None for x in (d_k, d_tokens, d_v, d_keys, *slopes, self.far)):
            return
        matrices = _if_any(self.of_heads, d_k), _if_any(self.of_relative, d_tokens), _if_any(self.of_values, d_v)
        first, second = (*slopes, None, None)[:2]
        self.start(
            programs.keys_gradient, tiles(self.m, blocks.block) * self.batch * self.kv_heads, blocks,
            *self._shared(self.listed(blocks, of_keys=True)),
            KeyGradients(*matrices, d_keys, first, second, self.far),
            self.n, self.m, self.kv_heads, self.group, rows=blocks.rows, block=blocks.block,
        )  # fmt: skip
        for x, by_key in zip(scores.parameters, slopes, strict=True):
            if by_key is not None:
                self.found.append((x, by_key.double().sum(-1)))

    # ------------------------------------------------------------ of tables of biases

    def _table_gradient(self, table: DistanceTable) -> Tensor:
        """Returns the gradient of a table, [batch, heads, rows]."""
        blocks, count = self.blocks("diagonals"), table.values.shape[1]
        if table.q is not None:
            return self._rows_gradient(count, BY_DISTANCE)[0]
        side = blocks.block
        i_tiles, diagonals = tiles(self.n, side), tiles(self.n, side) + tiles(self.m, side) - 1
        length = (diagonals + 1) * side + 2 * BEYOND
        shape = self.batch, self.heads, 2, length
        partial = torch.zeros(shape, dtype=torch.float32, device=self.call.q.device)
        self.start(
            programs.diagonals_gradient, self.batch * self.heads * diagonals, blocks,
            *self.shared, partial, self.n, self.m, self.heads, self.group, length,
            block=side, beyond=BEYOND,
        )  # fmt: skip
        skipped = i_tiles * side - self.n
        total = partial[..., skipped : skipped + count].sum(2)
        if self.far is not None:
            total[..., :: count - 1] += self.far.double().sum(-1).float().movedim(0, -1)
        return total

    def _rows_gradient(self, count: int, by: Any) -> list[Tensor]:
        """Returns the scores' gradients summed by row or piece, and the same times t, [batch, heads, rows]."""
        blocks = self.blocks("table")
        shares = max(1, min(tiles(self.m, blocks.block), PARTIAL // max(1, self.batch * self.heads * count)))
        partial = [self.buffer(self.batch * self.heads, shares, count) for _ in range(2 if by == BY_PIECE else 1)]
        self.start(
            programs.rows_gradient, self.batch * self.heads * shares * tiles(count, CHUNK), blocks,
            *self.shared, partial[0], partial[1] if by == BY_PIECE else None,
            self.n, self.m, self.heads, self.group, shares, count,
            rows=blocks.rows, block=blocks.block, chunk=CHUNK, by=by,
        )  # fmt: skip
        return [x.double().sum(1).unflatten(0, (self.batch, self.heads)) for x in partial]

    def _of_pieces(self, found: StretchedPieces) -> None:
        """Computes the gradients of the intercepts and the slopes of a stretched bias."""
        both = found.intercept, found.slope
        if any(x.requires_grad for x in both):
            of_pieces = self._rows_gradient(found.slope.shape[1], BY_PIECE)
            self.found += [pair for pair in zip(both, of_pieces, strict=True) if pair[0].requires_grad]

    # ------------------------------------------------------------ of relative vectors

    def _of_relative(self, term: Relative, kind: Any, vectors: Vectors | None) -> None:
        """Computes the gradients of the vectors of a relative term, or of its products."""
        x = term.vectors if term.products is None else term.products
        if not x.requires_grad:
            return
        if term.q is None:
            gradient = self._vectors_gradient(term, kind, vectors)
        elif term.products is not None:
            gradient = self.sums_by_row(term, kind, self.statistics, self.up)
        else:
            gradient = self.sums_by_row(term, kind, self.statistics).mT @ self.d_out.float()
        self.found.append((x, gradient))

    def _vectors_gradient(self, term: Relative, kind: Any, vectors: Vectors | None) -> Tensor:
        """Returns the gradient of the vectors of all distances of slots, [heads or 1, n + m − 1, width]."""
        blocks, (heads, count, width) = self.blocks("table"), term.vectors.shape
        side, members = blocks.block, self.batch * self.heads // max(heads, 1)
        i_tiles, diagonals = tiles(self.n, side), tiles(self.n, side) + tiles(self.m, side) - 1
        shares = max(1, min(members, PARTIAL // (heads * diagonals * 2 * side * width)))
        partial = self.buffer(heads, shares, diagonals, 2, side, width)
        self.start(
            programs.vectors_gradient, heads * shares * diagonals, blocks,
            *self.shared, vectors, partial,
            self.n, self.m, self.heads, self.group, heads, members, shares,
            block=side, kind=kind,
        )  # fmt: skip
        near, far = partial.sum(1).unbind(2)
        if kind == RELATIVE_QUERIES:  # nearer distances lie below the corner's, in falling order
            near, far = far.flip(2), near.flip(2)
        total = partial.new_zeros(heads, (diagonals + 1) * side, width)
        total[:, :-side] += far.flatten(1, 2)
        total[:, side:] += near.flatten(1, 2)
        # row 0 belongs to the distance of slots −i_tiles·side, or for relative queries to the next one
        skipped = i_tiles * side - self.n + (0 if kind == RELATIVE_QUERIES else 1)
        return total[:, skipped : skipped + count] * (1.0 if kind == RELATIVE_VALUES else self.call.scale)

    # ------------------------------------------------------------ of pairs

    def _dense_gradient(self, dense: Tensor) -> Tensor:
        """Returns the gradient of the dense bias, in its shape and dtype."""
        blocks = self.blocks("table")
        gradient = torch.empty_like(dense, memory_format=torch.contiguous_format)
        if not self.batch * self.heads:
            return gradient.zero_()
        batch, heads = gradient.shape[:2]
        blocks_of_pairs = tiles(self.n, blocks.rows) * tiles(self.m, blocks.block)
        pairs, layout = self.pairs(gradient)
        self.start(
            programs.dense_gradient, batch * heads * blocks_of_pairs, blocks, *self.shared,
            pairs, self.n, self.m, self.heads, self.group, heads, self.batch // max(batch, 1),
            self.heads // max(heads, 1), rows=blocks.rows, block=blocks.block, layout=layout,
        )  # fmt: skip
        return gradient


def _sink_gradient(sink: Tensor, results: ForwardResults, delta: Tensor) -> Tensor:
    """Returns −δ times the weight of the sink, [batch, heads, n]; 0 where nothing else is in sight."""
    weight = (sink.detach() - results.row_max).exp() / results.row_sum
    return torch.where(delta == 0, 0.0, -delta * weight)


def _if_any(of: Callable[[Tensor], Matrix], x: Tensor | None) -> Matrix | None:
    return None if x is None else of(x)


def _empty_like(x: Tensor) -> Tensor:
    """Allocates a tensor like x in which the numbers of each token are contiguous."""
    found = torch.empty_like(x)
    return found if found.stride(-1) == 1 else torch.empty_like(x, memory_format=torch.contiguous_format)
