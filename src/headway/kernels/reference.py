"""The reference kernel: the equation of ``terms`` in eager torch. It specifies every other kernel.

The functions follow the order scores, mask, softmax, forward, backward. Queries are computed in blocks of rows, and the
backward pass computes each block again, so all n×m scores never exist at once, even in training. Everything is computed
in float32, or in float64 for float64 input.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import conv2d, leaky_relu

from ..biases import distance_bias
from ..constants import writes
from ..coordinates import Coordinates
from ..errors import HeadwayError
from ..records import attributes
from ..terms import (
    SCANS,
    Bucketize,
    ChannelDecay,
    Clip,
    ContentSlope,
    DenseBias,
    DistanceBias,
    HeadNetwork,
    HouseholderPath,
    LimitedRotation,
    Normalizer,
    Part,
    Product,
    QueryScale,
    RelativeKeys,
    RelativeQueries,
    RelativeValues,
    Rows,
    ScoreMap,
    Sink,
    Sinusoids,
    SoftCap,
    StickWeights,
    Term,
    TokenBias,
)
from ..tracing import plain_alone, without_autocast
from . import _ops
from ._native import NativeKernel
from ._problem import Call, Problem, without_tables
from ._purity import try_functions
from ._results import ForwardResults, Gradients

OF_ROWS = (*SCANS, LimitedRotation, HouseholderPath, ChannelDecay, ContentSlope)
"""Terms that this kernel turns into functions."""
BLOCK = 1 << 21
"""The most scores that are computed at once, over all rows of the batch and all heads: 8 MiB in float32."""


class QueryBlock:
    """The queries start … stop − 1 of a call and the keys that they can reach."""

    def __init__(self, call: Call, start: int, stop: int) -> None:
        n, m = call.q.shape[2], call.k.shape[2]
        low, high = 0, m
        if call.aligned and call.mask is not None and not _reads_key_slots(call.terms):
            low, high = call.mask.reach(start, stop, n, m)
        self.start, self.count = start, stop - start
        self.keys = slice(low, high)
        self.slots = torch.arange(start, stop, device=call.q.device)
        self.q_coordinates = call.q_coordinates.rows(start, stop)
        self.k_coordinates = call.k_coordinates
        self.terms = tuple(term.block(start, stop) for term in call.terms)
        self.call = call
        allowed = None
        if call.mask is not None:
            mask = call.mask.block(start, stop, n)
            allowed = mask.allowed(self.q_coordinates, self.k_coordinates)
            allowed = allowed.expand(*allowed.shape[:2], stop - start, m)[..., low:high]
            self.k_coordinates = _columns(call.k_coordinates, low, high)
        self.allowed = allowed
        group = call.q.shape[1] // call.k.shape[1]
        self.q = call.q[:, :, start:stop]
        self.k = call.k[:, :, low:high].repeat_interleave(group, dim=1)
        self.v = call.v[:, :, low:high].repeat_interleave(group, dim=1)
        self.group = group
        # zero keys that no query sees and queries that see no key: NaN in them must not reach the output
        self.q, self.k, self.v = self.seeing(self.q), self.seen(self.k), self.seen(self.v)

    def seen(self, keys: Tensor) -> Tensor:
        """Returns a tensor of the keys with zeros for keys that no query of the block may see."""
        return keys if self.allowed is None else keys.masked_fill(~self.allowed.any(-2)[..., None], 0)

    def seeing(self, queries: Tensor) -> Tensor:
        """Returns a tensor of the queries with zeros for queries that may see no key."""
        return queries if self.allowed is None else queries.masked_fill(~self.allowed.any(-1)[..., None], 0)

    def rows_of(self, x: Tensor) -> Tensor:
        """Returns the part of a tensor [batch, heads, n, …] for the queries of the block."""
        return x.narrow(2, self.start, self.count)  # a slice would fail for batched gradients

    def each(self, *kinds: type) -> list[Any]:
        return [term for term in self.terms if isinstance(term, kinds)]


def _columns(coordinates: Coordinates, low: int, high: int) -> Coordinates:
    whole = low == 0 and high == coordinates.index.shape[1]
    return coordinates if whole else coordinates.rows(low, high)


def _reads_key_slots(terms: tuple[Term, ...]) -> bool:
    """Returns whether a term has a tensor by key slot: blocks must then keep all keys."""
    return any(
        isinstance(term, (DenseBias, TokenBias, Product, HeadNetwork, ScoreMap, Normalizer))
        or (isinstance(term, RelativeQueries) and term.key is not None)
        or _by_class(term)
        for term in terms
    )


def _by_class(term: Term) -> bool:
    """Returns whether a map may depend on more than the distance, like ``Classes`` and a user's maps."""
    rows = getattr(term, "values", getattr(term, "rows", None))
    return isinstance(rows, Rows) and any(type(part) not in (Clip, Bucketize) for part in rows.maps)


# ---------------------------------------------------------------- scores


def products(block: QueryBlock) -> Tensor:
    """Returns ⟨q, k⟩ plus the relative products, before scaling, [batch, heads, rows, m]."""
    replaced = block.each(Product)
    if replaced:
        score = replaced[0].function(block.q, block.k, block.slots, *replaced[0].tensors)
    else:
        score = block.q @ block.k.transpose(-1, -2)
    for term in block.each(RelativeKeys):
        if term.scaled:
            score = score + relative_keys(block, term)
    for term in block.each(RelativeQueries):
        score = score + relative_queries(block, term)
    return score


def scores(block: QueryBlock) -> Tensor:
    """Returns the scores before masking, [batch, heads, rows, m]."""
    score = block.call.scale * products(block)
    for term in block.each(QueryScale):
        score = score * term.factor[..., None]
    for term in block.each(RelativeKeys):
        if not term.scaled:
            score = score + relative_keys(block, term)
    for term in block.each(DistanceBias):
        score = score + distance_bias(term.values, block.q_coordinates, block.k_coordinates, block.q.dtype)
    for term in block.each(TokenBias):
        if term.queries is not None:
            score = score + term.queries[..., :, None]
        if term.keys is not None:
            score = score + block.seen(term.keys[..., None])[..., None, :, 0]
    for term in block.each(DenseBias):
        score = score + dense_bias_of(term, block.slots)
    for term in block.each(SoftCap):
        score = term.cap * torch.tanh(score / term.cap)
    for term in block.each(HeadNetwork, ScoreMap):
        allowed = torch.ones_like(score, dtype=torch.bool) if block.allowed is None else block.allowed
        if isinstance(term, HeadNetwork):
            score = through_network(block, term, score, allowed.expand_as(score))
        else:
            score = term.function(score, allowed.expand_as(score), block.q, block.slots, *term.tensors)
    return score


def through_network(block: QueryBlock, term: HeadNetwork, score: Tensor, allowed: Tensor) -> Tensor:
    """Returns z + B + f([z; B]), [batch, heads, rows, m], with B computed in float64."""
    if not score.numel():
        return score
    sides = block.q_coordinates, block.k_coordinates
    each = [distance_bias(one.values, *sides, torch.float64) for one in term.biases]
    bias = sum(each[1:], each[0]).to(score.dtype).expand_as(score)
    seen = allowed & (score.detach() != -math.inf)
    heard = torch.cat([score, bias], dim=1).masked_fill(~seen.repeat(1, 2, 1, 1), 0)
    hidden = leaky_relu(_along_keys(heard, term.into, term.into_bias), term.SLOPE)
    hidden = hidden.masked_fill(~seen.any(1, keepdim=True), 0)
    return score + bias + _along_keys(hidden, term.out, term.out_bias)


def _along_keys(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return conv2d(x, weight[:, :, None], bias, padding=(0, weight.shape[-1] // 2))


def dense_bias_of(term: DenseBias, slots: Tensor) -> Tensor:
    """Returns D for these query slots, [b, heads or 1, rows, m]. A tensor was cut to them before."""
    return term.values if isinstance(term.values, Tensor) else term.values(slots, *term.tensors)


def relative_keys(block: QueryBlock, term: RelativeKeys) -> Tensor:
    """Returns ⟨q'ᵢ + u, a[ρ(i,j)]⟩, [batch, heads, rows, m]."""
    query = block.q if term.query is None else block.seeing(term.query)
    if term.query_bias is not None:
        query = query + term.query_bias[:, None, :]
    if isinstance(term.rows, Sinusoids):
        return by_sinusoids(block, query, term.rows)
    by_row = query @ term.rows.table.transpose(-1, -2)
    return by_row.gather(-1, _rows_of(block, term.rows, by_row.shape[:2]))


def by_sinusoids(block: QueryBlock, query: Tensor, rows: Sinusoids) -> Tensor:
    """Returns ⟨query, W·[sin((pᵢ−pⱼ)ω), cos((pᵢ−pⱼ)ω)]⟩ by angle addition, which is exact at any positions."""
    rates = rows.frequencies.double()
    into_sin, into_cos = (query @ rows.weight).chunk(2, dim=-1)
    q_angle = block.q_coordinates.axis(rows.axis).double()[..., None] * rates
    k_angle = block.k_coordinates.axis(rows.axis).double()[..., None] * rates
    q_sin, q_cos = q_angle.sin().to(query)[:, None], q_angle.cos().to(query)[:, None]
    k_sin, k_cos = k_angle.sin().to(query)[:, None], k_angle.cos().to(query)[:, None]
    turned = torch.cat([into_cos * q_sin - into_sin * q_cos, into_sin * q_sin + into_cos * q_cos], dim=-1)
    return turned @ torch.cat([k_sin, k_cos], dim=-1).transpose(-1, -2)


def relative_queries(block: QueryBlock, term: RelativeQueries) -> Tensor:
    """Returns ⟨k'ⱼ, c[ρ(i,j)]⟩, [batch, heads, rows, m]."""
    key = block.k if term.key is None else block.seen(term.key.repeat_interleave(block.group, dim=1))
    by_row = (key @ term.rows.table.transpose(-1, -2)).transpose(-1, -2)
    return by_row.gather(-2, _rows_of(block, term.rows, by_row.shape[:2]))


def _rows_of(block: QueryBlock, rows: Rows, batch_and_heads: torch.Size) -> Tensor:
    index = rows.map.rows(block.q_coordinates, block.k_coordinates)[:, None]
    return index.expand(*batch_and_heads, *index.shape[2:])


# ---------------------------------------------------------------- mask


def masked(block: QueryBlock, score: Tensor) -> Tensor:
    """Returns the scores with −∞ for keys that the mask hides."""
    return score if block.allowed is None else score.masked_fill(~block.allowed, -math.inf)


# ---------------------------------------------------------------- softmax


def softmax(block: QueryBlock, score: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the weights [batch, heads, rows, m], row_max, and row_sum = Σ exp(score − row_max).

    A row that sees no key has 0, −∞ and 0.
    """
    own = block.each(Normalizer)
    if own:
        allowed = torch.ones_like(score, dtype=torch.bool) if block.allowed is None else block.allowed
        weights = own[0].function(score, allowed.expand_as(score), *own[0].tensors)
        none = score.new_full(score.shape[:-1], math.nan)
        return weights.masked_fill(~allowed, 0), none, none
    of_keys, score = score, with_sinks(block, score)
    if score.shape[-1] == 0:
        return score, score.new_full(score.shape[:-1], -math.inf), score.new_zeros(score.shape[:-1])
    row_max = score.detach().amax(-1)
    nothing = without_keys(block, of_keys, row_max, row_max == -math.inf)
    share = (score - row_max.masked_fill(nothing, 0)[..., None]).exp()
    row_sum = share.sum(-1)
    weights = share / row_sum.masked_fill(nothing, 1)[..., None]
    return weights[..., : of_keys.shape[-1]], row_max, row_sum


def without_keys(block: QueryBlock, score: Tensor, row_max: Tensor, nothing: Tensor) -> Tensor:
    """Returns which rows have only keys of weight 0: ``nothing`` is visible, or only a sink that is NaN or +∞."""
    if not block.each(Sink) or not score.shape[-1]:
        return nothing
    return nothing | (~(row_max < math.inf) & (score.detach().amax(-1) == -math.inf))


def with_sinks(block: QueryBlock, score: Tensor) -> Tensor:
    """Returns the scores with a column for each sink that takes part."""
    sinks = block.each(Sink) if block.call.include_sink else []
    columns = [term.by_query[..., None].expand(*score.shape[:-1], 1) for term in sinks]
    return torch.cat([score, *columns], dim=-1) if columns else score


def dropped(block: QueryBlock, weights: Tensor) -> Tensor:
    """Applies dropout to the weights, keyed by batch, head and the indices of query and key."""
    call = block.call
    if not call.dropout or call.seed is None:
        return weights
    batch, heads = weights.shape[:2]
    q_index, k_index = block.q_coordinates.index, block.k_coordinates.index
    row = torch.arange(batch, device=weights.device)[:, None, None, None] + call.batch_offset
    head = torch.arange(heads, device=weights.device)[:, None, None] + call.head_offset
    key = scramble(call.seed + scramble((call.seed >> 32) + scramble(scramble(row) + head)))
    drawn = scramble(scramble(key + q_index[:, None, :, None]) + k_index[:, None, None, :])
    return weights * (drawn >= int(call.dropout * 2**32)) / (1 - call.dropout)


def scramble(x: Tensor) -> Tensor:
    """Returns a 32-bit hash with good avalanche (two multiplications with xor-shifts), in int64."""
    x = x & 0xFFFFFFFF
    x = ((x ^ (x >> 16)) * 0x21F0AAAD) & 0xFFFFFFFF
    x = ((x ^ (x >> 15)) * 0x735A2D97) & 0xFFFFFFFF
    return x ^ (x >> 15)


# ---------------------------------------------------------------- forward


def weighted_sum(block: QueryBlock, weights: Tensor) -> Tensor:
    """Returns Σⱼ A[i,j]·(vⱼ + r[ρ(i,j)]), [batch, heads, rows, v's head_dim]."""
    out = weights @ block.v
    for term in block.each(RelativeValues):
        table = term.rows.table
        by_row = weights.new_zeros(*weights.shape[:-1], table.shape[1])
        by_row = by_row.scatter_add(-1, _rows_of(block, term.rows, weights.shape[:2]), weights)
        out = out + by_row @ table
    return out


def block_rows(call: Call) -> int:
    """Returns the number of queries in a block of at most ``BLOCK`` scores."""
    batch, heads = call.q.shape[:2]
    return max(1, BLOCK // max(1, batch * heads * call.k.shape[2]))


def blocks(call: Call) -> Iterator[QueryBlock]:
    """Yields the queries of a call in blocks of rows; one block if there are none.

    Symbolic lengths also give one block, since comparisons would fix the example's lengths in an exported program.
    """
    n = call.q.shape[2]
    if any(isinstance(size, torch.SymInt) for size in (*call.q.shape, *call.k.shape)):
        yield QueryBlock(call._with(aligned=False), 0, n)
        return
    rows = block_rows(call)
    if n <= rows:  # range() would specialize a compiler on symbolic lengths
        yield QueryBlock(call, 0, n)
        return
    for start in range(0, n, rows):
        yield QueryBlock(call, start, min(start + rows, n))


def run_block(block: QueryBlock) -> ForwardResults:
    """Computes the output and statistics of the queries of a block."""
    weights, row_max, row_sum = softmax(block, masked(block, scores(block)))
    return ForwardResults(weighted_sum(block, dropped(block, weights)), row_max, row_sum)


def forward(call: Call) -> ForwardResults:
    """Computes the results of a call block by block, without in-place operations."""
    parts_by_block = list(zip(*map(run_block, blocks(call)), strict=True))
    return ForwardResults(*(parts[0] if len(parts) == 1 else torch.cat(parts, dim=2) for parts in parts_by_block))


# ---------------------------------------------------------------- backward


def backward(
    call: Call, results: ForwardResults, d_out: Tensor, d_lse: Tensor | None, partial_keys: bool = False
) -> Gradients:
    """Computes the gradients of a call's tensors, one block at a time."""
    tensors: list[Tensor] = []
    _ops.flatten(call, tensors)
    inputs = [x for x in tensors if x.requires_grad]
    sums: list[Tensor | None] = [None] * len(inputs)
    for block in blocks(call):
        held = ForwardResults(*map(block.rows_of, results))
        d_rows = None if d_lse is None else block.rows_of(d_lse)
        pairs = block_gradients(block, held, block.rows_of(d_out), d_rows, partial_keys)
        reached = [(target, gradient) for target, gradient in pairs if target.requires_grad]
        if not reached:
            continue
        targets, upstream = zip(*reached, strict=True)
        gradients = torch.autograd.grad(targets, inputs, upstream, allow_unused=True)
        sums = [b if a is None else a if b is None else a + b for a, b in zip(sums, gradients, strict=True)]
        del gradients, pairs, reached, targets, upstream, block  # free this block before the next one
    return [(x, gradient) for x, gradient in zip(inputs, sums, strict=True) if gradient is not None]


def block_gradients(
    block: QueryBlock, results: ForwardResults, d_out: Tensor, d_lse: Tensor | None, partial_keys: bool
) -> Gradients:
    """Returns the scores and the output of a block, where differentiation begins, with their gradients.

    P = exp(score − row_max)/row_sum,  d_score = P·(dP − δ),  δ = Σ P·dP − d_lse

    Σ P·dP = Σ d_out·out. The first form is rounded like the products from which it is subtracted, so the gradients of a
    row's scores cancel. The second form is needed for results of more keys than the call has (``partial_keys``).
    """
    d_out = d_out.to(block.q.dtype)
    if block.each(Normalizer):
        return [(run_block(block).out, d_out)]
    of_keys = masked(block, scores(block))
    score = with_sinks(block, of_keys)
    out, row_max, row_sum = results
    nothing = row_sum == 0
    unweighed = without_keys(block, of_keys, row_max, nothing)[..., None]
    share = (score.detach() - row_max[..., None].masked_fill(unweighed, 0)).exp()
    weights = share / row_sum[..., None].masked_fill(unweighed, 1)
    keys = block.k.shape[2]
    kept = weights[..., :keys].detach().requires_grad_()
    summed = weighted_sum(block, dropped(block, kept))
    (d_kept,) = torch.autograd.grad(summed, kept, d_out, retain_graph=True)
    d_weights = d_kept if score.shape[-1] == keys else torch.nn.functional.pad(d_kept, (0, score.shape[-1] - keys))
    delta = (d_out * out).sum(-1) if partial_keys else (kept.detach() * d_kept).sum(-1)
    if d_lse is not None:
        delta = delta - d_lse.masked_fill(nothing, 0)
    return [(score, weights * (d_weights - delta[..., None])), (summed, d_out)]


# ---------------------------------------------------------------- the kernel


def cast(part: Any, dtype: torch.dtype) -> Any:
    """Returns a term with its floating-point tensors in another dtype, except its ``exact`` ones."""
    if isinstance(part, Tensor):
        return part.to(dtype) if part.is_floating_point() else part
    if isinstance(part, tuple):
        return tuple(cast(item, dtype) for item in part)
    if type(part) in _ops.FIELDS:
        names = [name for name in _ops.FIELDS[type(part)] if name not in part.exact]
        return replace(part, **{name: cast(getattr(part, name), dtype) for name in names})
    if isinstance(part, Part):
        held = {name: value for name, value in attributes(part).items() if name not in part.exact}
        return _ops.Foreign(part, tuple(held)).with_values([cast(value, dtype) for value in held.values()])
    return part


def _last_row(call: Call) -> Tensor:
    n = call.q.shape[2]
    return run_block(QueryBlock(call, n - 1, n)).out


def computed(call: Call) -> Call:
    """Returns the call rotated, in the dtype of the computation, without tables, with terms as functions."""
    call = call.rotated(lambda x, rotation: rotation.of(x))
    dtype = torch.float64 if call.q.dtype == torch.float64 else torch.float32
    return without_tables(call)._with(
        q=call.q.to(dtype), k=call.k.to(dtype), v=call.v.to(dtype), terms=cast(with_functions(call), dtype)
    )


def with_functions(call: Call) -> tuple[Term, ...]:
    """Returns the terms of a call, where terms that read all keys of a row have become functions.

    Stick-breaking comes last, since it replaces the softmax after all other terms have been added.
    """
    return tuple(
        part
        for term in sorted(call.terms, key=lambda term: isinstance(term, StickWeights))
        for part in (term.functions(call.q_coordinates, call.k_coordinates) if isinstance(term, OF_ROWS) else (term,))
    )


class ReferenceKernel(NativeKernel[Call]):
    """Eager torch in blocks of rows, for every term, mask and dtype; memory grows linearly with n."""

    name = "reference"
    opaque = False
    differentiable = True

    def why_not(self, problem: Problem) -> list[str]:
        return []

    def lower(self, call: Call) -> Call:
        return computed(call)

    def result_dtype(self, dtype: torch.dtype) -> torch.dtype:
        return torch.float64 if dtype == torch.float64 else torch.float32

    def runs_in_plain_operations(self, call: Call) -> bool:
        """Returns whether ``call`` is traced: under transforms of plain operations, or with functions in a compiler."""
        return plain_alone() or (
            torch.compiler.is_compiling() and not _ops.is_plain(_ops.flatten(with_functions(call), []))
        )

    def forward(self, call: Call, keep: bool) -> ForwardResults:
        return forward(call)

    def backward(
        self, call: Call, results: ForwardResults, d_out: Tensor, d_lse: Tensor | None, partial_keys: bool = False
    ) -> Gradients:
        return backward(call, results, d_out, d_lse, partial_keys)

    def run(self, call: Call) -> tuple[Tensor, Tensor | None]:
        """Computes attention, and checks that functions in terms are pure.

        Raises:
            HeadwayError: if a function draws random numbers, returns another result the second time, or captures a
                tensor that requires a gradient.
        """
        if torch.compiler.is_compiling() or plain_alone() or _ops.is_plain(_ops.flatten(call.terms, [])):
            return super().run(call)
        if torch.is_grad_enabled():
            with without_autocast(call.q):
                try_functions(computed(call), _last_row)
        tensors: list[Tensor] = []
        _ops.flatten(call, tensors)
        before = writes(tensors)
        results = super().run(call)
        if writes(tensors) != before:
            raise HeadwayError(
                "a function in terms writes into q, k or its tensors, which now hold other numbers: write into a clone "
                "there"
            )
        return results


# ---------------------------------------------------------------- dense intermediate results


def weights(call: Call) -> Tensor:
    """Returns all weights of a ``computed`` call, [batch, heads, n, m]."""
    return steps(call)[3]


def steps(call: Call) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Returns products, scores, masked scores, weights and output of a ``computed`` call."""
    with without_autocast(call.q):
        block = QueryBlock(call._with(aligned=False, terms=with_functions(call)), 0, call.q.shape[2])
        score = scores(block)
        hidden = masked(block, score)
        weights, *_ = softmax(block, hidden)
        return products(block), score, hidden, weights, weighted_sum(block, weights)
