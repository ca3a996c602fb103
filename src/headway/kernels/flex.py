"""The kernel that calls torch's FlexAttention, compiled, with biases as a function of a pair and masks as block lists.

FlexAttention (Dong et al., "Flex Attention: A Programming Model for Generating Optimized Attention Kernels", 2024,
arXiv:2412.05496) generates a Triton program for the function. It adds gradients of the function's tensors with atomic
operations, in a different order in each run, so this kernel refuses calls with learned biases.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from .._torch import up_to_programs
from ..masks import Bounds
from ..terms import Bias, DenseBias, DistanceBias, Linear, QueryScale, Rows, Sink, SoftCap, Stretched, TokenBias
from ..tracing import PLAIN_ALONE, plain_alone, to_onnx, without_autocast
from . import _tuned
from ._base import Deferral, Kernel
from ._problem import Call, Problem, is_older, wants_gradient
from .lowering import LoweredCall, simplified
from .lowering.masks import EVERYTHING, slots
from .triton import _installed
from .triton._choices import DTYPES
from .triton._lowered import REST_LIMIT, added, rest_of, sum_of
from .triton._slots import Slots, distances_of_slots
from .triton._supports import mask_bytes
from .triton._tables import (
    DistanceTable,
    has_one_slope,
    is_of_distances,
    table_by_position,
    table_of_slots,
)

PairWise = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""Maps the numbers of a sequence, a head, a query and a key to a bias, or to whether the query sees the key."""
ScoreOf = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
"""Maps a scaled product, and the numbers of a sequence, a head, a query and a key, to a score."""

BLOCK = 128
"""The numbers of queries and of keys in a block of the lists."""
LEAST_WIDTH = 16
"""The smallest head_dim that FlexAttention takes. A smaller one gets columns of zeros, which change nothing."""
OLDEST_GPU = (7, 0)
"""The oldest compute capability for which torch compiles Triton programs."""
ADDED = (DistanceBias, TokenBias, DenseBias)
TERMS = frozenset({*ADDED, QueryScale, Sink, SoftCap})
MOST_PROGRAMS = 256
"""How many programs torch may keep for different calls. Beyond it a call fails; torch's default is 8."""
STAGES = {"fwd_num_stages": 2, "bwd_num_stages": 2}
"""How many blocks are loaded ahead. torch's choice for Hopper is three. With a table, that needs more shared memory
than there is (247,808 bytes at head_dim 64), since the table's numbers for a block of pairs are loaded ahead too."""
PAIRS_AT_ONCE = 1 << 24
"""The number of pairs whose visibility is computed at once, one byte each."""


class FlexKernel(Kernel):
    """Calls torch's FlexAttention, always compiled."""

    name = "flex"
    devices: ClassVar[frozenset[str]] = frozenset({"cuda"})
    """The types of devices that the kernel supports. Tests add the CPU."""

    def why_not(self, problem: Problem) -> list[str]:
        reason = self._not_here(problem)
        return list(_against(problem)) if reason is None else [reason]

    def defers(self, problem: Problem) -> Deferral | None:
        return _tuned.deferral_if_verified("flex", problem)

    def note(self, problem: Problem) -> str:
        return _tuned.note("flex", problem) if problem.device == "cuda" else ""

    def _not_here(self, problem: Problem) -> str | None:
        """Returns why FlexAttention cannot be compiled for the device; None if it can."""
        if problem.device not in self.devices:
            return f"it runs on a GPU, and q is on {problem.device}"
        if torch.version.hip is not None:
            return "it has not been tried on AMD's GPUs"
        capability = problem.capability
        if capability is not None and is_older(capability, OLDEST_GPU):
            return f"the GPU has compute capability {capability[0]}.{capability[1]}: torch needs 7.0 or later"
        return _installed.missing() if problem.device == "cuda" else None

    def run(self, call: Call) -> tuple[Tensor, Tensor | None]:
        with without_autocast(call.q):
            out, lse = _attend(simplified(self.rotated(call)))
        return self.restored(call, out.to(call.q.dtype)), lse if call.wants_lse else None


def _against(problem: Problem) -> Iterator[str]:
    if problem.dtype not in DTYPES:
        yield f"it computes in float32, and {problem.dtype} would be rounded".replace("torch.", "")
    if plain_alone():
        yield PLAIN_ALONE
    if to_onnx():
        yield "ONNX has no FlexAttention"
    if problem.dropout:
        yield "FlexAttention has no dropout"
    if min(problem.head_dim, problem.v_head_dim) < 1:
        yield "a head_dim is 0"
    if 0 in (problem.batch, problem.n, problem.m):
        yield "there are no queries or no keys"
    if problem.positions_want_gradient:
        yield "it computes no gradient of positions"
    if sum(type(term) is SoftCap for term in problem.terms) > 1:
        yield "it supports at most one SoftCap"
    for kind in {type(term): None for term in problem.terms if type(term) not in TERMS}:
        yield f"FlexAttention has no {kind.__name__}"
    for term in problem.terms:
        if isinstance(term, ADDED) and wants_gradient(term):
            yield f"FlexAttention sums the gradient of {type(term).__name__} in a different order in each run"
        if isinstance(term, DenseBias) and callable(term.values):
            yield "the function of a DenseBias takes rows, not single pairs"
        if isinstance(term, DistanceBias):
            yield from _against_bias(term.values, problem)
    if problem.mask is not None and mask_bytes(problem, problem.mask) > REST_LIMIT:
        yield f"its mask is not an interval, and would be dense and larger than {REST_LIMIT >> 20} MiB"


def _against_bias(values: Any, problem: Problem) -> Iterator[str]:
    rising, whole = problem.positions_rise_by_one, problem.positions_are_whole
    if isinstance(values, Stretched):
        yield "a Stretched bias is not a table of distances"
    elif isinstance(values, Rows):
        if not is_of_distances(values, rising, whole) or not (rising or whole):
            where = "" if rising else " where positions are not known to rise by one"
            yield f"rows by {type(values.map).__name__} are not a table of distances{where}"
    elif not rising and type(values) is not Linear:
        yield f"a bias of {type(values).__name__} needs positions that are known to rise by one"


# ---------------------------------------------------------------- the call


def _attend(call: LoweredCall) -> tuple[Tensor, Tensor | None]:
    """Returns the weighted sums of the values, with the sink, and the log-sum-exp if the call wants it."""
    q, k, v = call.q, call.k, call.v
    for term in call.terms:
        if isinstance(term, QueryScale):
            q = (q * term.factor[..., None]).to(q.dtype)
    blocks = None
    if call.intervals or call.rest is not None:
        sight = Sight.of(call)
        blocks = _block_mask(sight, q.shape[2], k.shape[2])
        seeing, seen = _tokens_in_sight(call, sight)
        # a weight of 0 times NaN is NaN
        q = q.masked_fill(~seeing[..., None], 0)
        k, v = (x.masked_fill(~seen[..., None], 0) for x in (k, v))
    q, k, v = (pad(x, (0, max(0, LEAST_WIDTH - x.shape[-1]))) for x in (q, k, v))
    sink = next((term.by_query for term in call.terms if isinstance(term, Sink)), None)
    wants_lse = call.wants_lse or sink is not None
    out, lse = _flex_attention(
        *(q, k, v), score_mod=_score_of(call), block_mask=blocks, scale=call.scale, wants_lse=wants_lse
    )
    out = out[..., : call.v.shape[-1]]
    if sink is None:
        return out, lse
    assert lse is not None
    whole_lse = torch.logaddexp(lse, sink.to(lse.dtype).expand_as(lse))
    return out * (lse - whole_lse).exp()[..., None].to(out.dtype), whole_lse


def _flex_attention(
    q: Tensor, k: Tensor, v: Tensor, *, wants_lse: bool, **arguments: Any
) -> tuple[Tensor, Tensor | None]:
    """Calls FlexAttention, compiled."""
    from torch.nn.attention.flex_attention import AuxRequest

    arguments |= {"enable_gqa": k.shape[1] != q.shape[1], "return_aux": AuxRequest(lse=wants_lse)}
    options: dict[str, Any] = dict(STAGES) if arguments["score_mod"] is not None else {}
    if q.shape[2] * (q.shape[1] // k.shape[1]) > BLOCK:  # torch's program for under 128 queries takes only one block
        options["FORCE_USE_FLEX_ATTENTION"] = True
    arguments |= {"kernel_options": options or None}
    if torch.compiler.is_compiling():
        out, aux = _function()(q, k, v, **arguments)
    else:
        with up_to_programs(MOST_PROGRAMS):
            out, aux = _compiled()(q, k, v, **arguments)
    return out, aux.lse


def _function() -> Callable[..., Any]:
    from torch.nn.attention.flex_attention import flex_attention

    return flex_attention


@cache
def _compiled() -> Callable[..., Any]:
    # with fullgraph torch raises an error instead of computing all scores, uncompiled
    return torch.compile(_function(), fullgraph=True)


# ---------------------------------------------------------------- scores


def _score_of(call: LoweredCall) -> ScoreOf | None:
    """Returns the ``score_mod`` of FlexAttention, which adds biases to a scaled product and caps it, or None."""
    batch, heads, n, _ = call.q.shape
    m = call.k.shape[2]
    by_distance = [_bias_of(values, call) for values in _merged(call)]
    queries, keys, dense = added(call.terms, [])
    of_query, of_key = sum_of(queries), sum_of(keys)
    of_query = None if of_query is None else _for_all(of_query, batch, heads, n)
    of_key = None if of_key is None else _for_all(of_key, batch, heads, m)
    of_pair = None if dense is None else dense.expand(batch, heads, n, m)
    cap = next((float(term.cap) for term in call.terms if isinstance(term, SoftCap)), None)
    if not by_distance and of_query is None and of_key is None and of_pair is None and cap is None:
        return None

    def score_of(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        for bias in by_distance:
            score = score + bias(b, h, i, j)
        if of_query is not None:
            score = score + of_query[b, h, i]
        if of_key is not None:
            score = score + of_key[b, h, j]
        if of_pair is not None:
            score = score + of_pair[b, h, i, j].float()
        return score if cap is None else cap * torch.tanh(score / cap)

    return score_of


def _merged(call: LoweredCall) -> list[Bias | DistanceTable]:
    """Returns the distance biases of a call. If positions rise by one, all except single slopes become one table."""
    biases = [term.values for term in call.terms if isinstance(term, DistanceBias)]
    if not Problem(call).positions_rise_by_one:
        return [
            table_by_position(x, call.q_coordinates, call.k_coordinates) if isinstance(x, Rows) else x for x in biases
        ]
    sloped = [values for values in biases if has_one_slope(values)]
    others = [values for values in biases if not has_one_slope(values)]
    return [*sloped, *([table_of_slots(others, Slots(call.q_coordinates, call.k_coordinates))] if others else ())]


def _bias_of(values: Bias | DistanceTable, call: LoweredCall) -> PairWise:
    """Returns a distance bias as a function of the numbers of a sequence, a head, a query and a key."""
    heads, rising = call.q.shape[1], Problem(call).positions_rise_by_one
    if isinstance(values, DistanceTable):
        table, origin, last = (
            _for_all(values.values, heads, values.values.shape[1]),
            values.origin,
            values.values.shape[1] - 1,
        )
        if values.q is None or values.k is None:
            return lambda b, h, i, j: table[h, j - i + origin]
        q, k = _without_ones(values.q), _without_ones(values.k)
        return lambda b, h, i, j: table[h, (_picked(k, b, j) - _picked(q, b, i) + origin).clamp(0, last)]
    assert isinstance(values, Linear)
    past, future = (_for_all(slope.float(), heads) for slope in (values.past, values.future))
    if rising:
        first = distances_of_slots(call.q_coordinates, call.k_coordinates, values.axis)[call.q.shape[2] - 1].float()
        return lambda b, h, i, j: -past[h] * (first + (j - i)).abs()
    q, k = (_without_ones(side.axis(values.axis)) for side in (call.q_coordinates, call.k_coordinates))

    def bias(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        distance = _picked(k, b, j) - _picked(q, b, i)
        return -distance.abs() * torch.where(distance > 0, future[h], past[h])

    return bias


def _for_all(x: Tensor, *shape: int) -> Tensor:
    return x.detach().expand(*shape).contiguous()


# ---------------------------------------------------------------- masks


class Sight(NamedTuple):
    """The visible pairs: those in any of the intervals, in the same document, and allowed by the tensor.

    Attributes:
        intervals: one or two pairs of the first key of each query and the one after its last, int32 [b, n].
        documents: the document of each query, [b, n], and of each key, [b, m].
        allowed: bool [b, h, n, m].
    """

    intervals: tuple[tuple[Tensor, Tensor], ...]
    documents: tuple[Tensor, Tensor] | None
    allowed: Tensor | None

    @staticmethod
    def of(call: LoweredCall) -> Sight:
        """Returns the parts of the mask of a ``call``."""
        documents, allowed = rest_of(call.rest, call.q_coordinates, call.k_coordinates)
        if allowed is not None:
            allowed = allowed.expand(-1, -1, call.q.shape[2], call.k.shape[2])
        return Sight(tuple([_ends(bounds, call) for bounds in call.intervals or (EVERYTHING,)]), documents, allowed)


def _ends(bounds: Bounds, call: LoweredCall) -> tuple[Tensor, Tensor]:
    """Returns the first key of each query and the one after its last, int32 [b, n]."""
    q_at, k_at = call.q_coordinates, call.k_coordinates
    n, m = call.q.shape[2], call.k.shape[2]
    start, stop = bounds
    low, high = slots(0 if start is None else start, q_at, k_at), slots(m if stop is None else stop, q_at, k_at)
    low, high = (x.clamp(0, m).to(torch.int32) for x in (low, high))
    rows = max(low.shape[0], high.shape[0])
    return low.expand(rows, n).contiguous(), high.expand(rows, n).contiguous()


def _visible(sight: Sight) -> PairWise:
    """Returns the ``mask_mod`` of FlexAttention: whether a query of a sequence and a head sees a key."""
    low, high = map(_without_ones, sight.intervals[0])
    low_2, high_2 = map(_without_ones, sight.intervals[-1])
    two, of_one_document = len(sight.intervals) > 1, sight.documents is not None
    q_ids, k_ids = map(_without_ones, sight.documents or sight.intervals[0])
    by_batch, by_head = (size > 1 for size in ((1, 1) if sight.allowed is None else sight.allowed.shape[:2]))
    allowed = None if sight.allowed is None else _without_ones(sight.allowed)

    def visible(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        seen = (j >= _picked(low, b, i)) & (j < _picked(high, b, i))
        if two:
            seen = seen | ((j >= _picked(low_2, b, i)) & (j < _picked(high_2, b, i)))
        if of_one_document:
            seen = seen & (_picked(q_ids, b, i) == _picked(k_ids, b, j))
        if allowed is not None:
            rows = ((b,) if by_batch else ()) + ((h,) if by_head else ())
            pair = (*rows, i, j)
            seen = seen & allowed[pair]
        return seen

    return visible


def _without_ones(x: Tensor) -> Tensor:
    """Removes a batch of 1 and heads of 1 from [b, n] or [b, h, n, m], since a program's index is a tensor."""
    return x.squeeze(0) if x.ndim == 2 else x.squeeze((0, 1))


def _picked(numbers: Tensor, b: Tensor, token: Tensor) -> Tensor:
    return numbers[token] if numbers.ndim == 1 else numbers[b, token]


def _block_mask(sight: Sight, n: int, m: int) -> Any:
    """Returns the lists of blocks that may have visible pairs, and of blocks in which all pairs are visible.

    Listing a block without visible pairs costs only time.
    """
    from torch.nn.attention.flex_attention import BlockMask

    device = sight.intervals[0][0].device
    filled = (torch.arange(_blocks(n), device=device) + 1) * BLOCK <= n
    blocks = [_blocks_within(*ends, m) for ends in sight.intervals]
    some, every = _any([x for x, _ in blocks]), _any([x for _, x in blocks])
    every = every & filled[:, None]  # the last query block may be partial; no interval covers a partial key block
    if sight.documents is not None:
        some_here, every_here = _blocks_of_same(*sight.documents)
        some, every = some & some_here, every & every_here
    if sight.allowed is not None:
        some_here, every_here = _blocks_of_tensor(sight.allowed)
        some, every = some & some_here, every & every_here
    lists = *_listed(some & ~every), *_listed(every)
    return BlockMask.from_kv_blocks(*lists, BLOCK_SIZE=BLOCK, mask_mod=_visible(sight), seq_lengths=(n, m))


def _listed(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the number of key blocks for each block of queries, and their indices before all others, int32."""
    order = blocks.to(torch.int8).argsort(dim=-1, descending=True, stable=True)
    return blocks.sum(-1, dtype=torch.int32), order.to(torch.int32).contiguous()


def _blocks(tokens: int) -> int:
    return -(-tokens // BLOCK)


def _any(masks: list[Tensor]) -> Tensor:
    return masks[0] if len(masks) == 1 else masks[0] | masks[1]


def _of_blocks(x: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the smallest and the largest number in each block of tokens, [b, blocks], from [b, tokens]."""
    beyond = -x.shape[1] % BLOCK
    whole = torch.cat([x, x[:, -1:].expand(-1, beyond)], 1).unflatten(1, (-1, BLOCK))
    return whole.amin(-1), whole.amax(-1)


def _blocks_within(low: Tensor, high: Tensor, m: int) -> tuple[Tensor, Tensor]:
    """Returns which blocks the queries' intervals may reach and which they cover, [b, 1, blocks, blocks]."""
    (first, last_first), (first_end, end) = _of_blocks(low), _of_blocks(high)
    begin = torch.arange(_blocks(m), device=low.device) * BLOCK
    reached = (first[..., None] < begin + BLOCK) & (end[..., None] > begin)
    covered = (last_first[..., None] <= begin) & (first_end[..., None] >= begin + BLOCK)
    return reached[:, None], covered[:, None]


def _blocks_of_same(q_ids: Tensor, k_ids: Tensor) -> tuple[Tensor, Tensor]:
    """Returns which blocks may have a query and a key of the same document, and which have only one document."""
    q_least, q_most = (x[:, None, :, None] for x in _of_blocks(q_ids))
    k_least, k_most = (x[:, None, None] for x in _of_blocks(k_ids))
    one = (q_least == q_most) & (k_least == k_most) & (q_least == k_least)
    return (q_least <= k_most) & (k_least <= q_most), one


def _blocks_of_tensor(allowed: Tensor) -> tuple[Tensor, Tensor]:
    """Returns which blocks of a mask [b, h, n, m] have a visible pair, and which have only visible pairs."""
    n, m = allowed.shape[2:]
    padded = pad(allowed, (0, -m % BLOCK, 0, -n % BLOCK))
    counts = padded.unflatten(3, (-1, BLOCK)).sum(-1, dtype=torch.int32).unflatten(2, (-1, BLOCK)).sum(3)
    return counts > 0, counts == BLOCK * BLOCK


def _tokens_in_sight(call: LoweredCall, sight: Sight) -> tuple[Tensor, Tensor]:
    """Returns which queries see any key, [b, h, n], and which keys any query sees, [b, kv_heads or 1, m]."""
    n, m, device = call.q.shape[2], call.k.shape[2], call.q.device
    if sight.allowed is None:
        tokens = [_tokens_within(*one, sight.documents, m) for one in sight.intervals]
        return _any([x for x, _ in tokens])[:, None], _any([x for _, x in tokens])[:, None]
    b = torch.arange(call.q.shape[0], device=device)[:, None, None, None]
    h = torch.arange(call.q.shape[1], device=device)[:, None, None]
    visible, keys, seeing, seen = _visible(sight), torch.arange(m, device=device), [], None
    for queries in torch.arange(n, device=device).split(max(1, PAIRS_AT_ONCE // m)):
        pairs = visible(b, h, queries[:, None], keys)
        pairs = pairs[(None,) * (4 - pairs.ndim)]
        seeing.append(pairs.any(-1))
        seen = pairs.any(-2) if seen is None else seen | pairs.any(-2)
    assert seen is not None
    if seen.shape[1] > 1 and call.k.shape[1] != seen.shape[1]:
        seen = seen.unflatten(1, (call.k.shape[1], -1)).any(2)
    return torch.cat(seeing, -1), seen


def _tokens_within(low: Tensor, high: Tensor, documents: tuple[Tensor, Tensor] | None, m: int) -> tuple[Tensor, Tensor]:
    """Returns which queries see any key, [b, n], and which keys any query sees, [b, m], without visiting each pair.

    With keys sorted by document, the keys that a query sees are an interval. A key is seen if, up to it, more
    intervals have begun than ended.
    """
    order = None
    if documents is not None:
        q_ids, k_ids = (ids.expand(max(x.shape[0] for x in (low, *documents)), -1) for ids in documents)
        ids, order = k_ids.sort(stable=True)
        rank = pad((ids[:, 1:] != ids[:, :-1]).long().cumsum(1), (1, 0))
        at = torch.searchsorted(ids, q_ids.contiguous()).clamp(max=m - 1)
        here, line = ids.gather(1, at) == q_ids, rank * (m + 1) + order
        begin = rank.gather(1, at) * (m + 1)
        low, high = (torch.searchsorted(line, (begin + x).contiguous()) for x in (low, high))
        low, high = low * here, high * here
    seeing = low < high
    low, high = (torch.where(seeing, x, 0).sort(-1)[0] for x in (low, high))
    keys = torch.arange(m, device=low.device, dtype=low.dtype).expand(low.shape[0], m).contiguous()
    begun, ended = (torch.searchsorted(x, keys, right=True) for x in (low, high))
    seen = begun > ended
    return seeing, seen if order is None else torch.empty_like(seen).scatter_(1, order, seen)
