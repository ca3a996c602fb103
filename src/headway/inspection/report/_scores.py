"""Scores that a reader can compute: products of vectors plus a bias by distance, and the keys that each query sees.

score[h,i,j] = cap( ⟨q[h,i], k[h,j]⟩ + bias_h[j − i] + e[h,i] + g[h,j] ),   j in the ranges of i
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ...biases import distance_bias
from ...coordinates import Coordinates
from ...kernels import Call
from ...kernels import reference as spec
from ...kernels._masks import evaluated
from ...kernels.lowering.masks import lower_mask, slots
from ...masks import Bound
from ...terms import DistanceBias, QueryScale, RelativeValues, Rows, Sink, SoftCap, Stretched, TokenBias
from ...tracing import without_autocast

REASONS = {
    "RelativeKeys": "its scores have products with relative keys",
    "RelativeQueries": "its scores have products with relative queries",
    "DenseBias": "its scores have a bias of each pair of tokens",
    "Product": "its scores are not products of queries and keys",
    "LimitedRotation": "its scores are products of other vectors for near keys than for far ones",
    "HouseholderPath": "its scores are products along the path between two tokens",
    "ChannelDecay": "its scores are products whose channels decay between two tokens",
    "ContentSlope": "its scores have a bias whose slope content gives",
    "ContextualPositions": "its scores depend on all scores of a query",
    "GatedPath": "its scores have a bias whose gates content gives",
    "HeadNetwork": "its scores depend on those of all heads",
    "ScoreMap": "its scores are a function of all scores of a query",
    "Normalizer": "its weights are not a softmax of scores",
    "StickWeights": "its weights are not a softmax of scores",
}
"""Why a term cannot be computed from vectors and a bias by distance."""
WIDEST = 512
"""The most components of a vector whose products a reader adds in 32 bits: 512·2047² is below 2³¹."""


@dataclass(frozen=True, eq=False)
class Scores:
    """The scores of a call with one row of the batch.

    Attributes:
        q: queries with scale and rotation applied, [heads, n, width] in float32.
        k: keys, likewise, [kv_heads, n, width].
        bias: by key − query from 1 − n to n − 1, [heads or 1, 2n − 1]; None without one.
        of_tokens: e and g, [heads or 1, 2, n]; None without them.
        cap: the soft cap.
        sinks: whether sinks take part.
    """

    q: Tensor
    k: Tensor
    bias: Tensor | None
    of_tokens: Tensor | None
    cap: float | None
    sinks: bool


@dataclass(frozen=True, eq=False)
class Sight:
    """The keys that the queries of a call see, or may see.

    Attributes:
        ranges: begin and end of one or two ranges of keys, [1 or 2, 2, n] in int64; an empty one has begin = end.
        whole: whether all keys of the ranges are seen.
    """

    ranges: Tensor
    whole: bool

    @property
    def causal(self) -> bool:
        """Whether no query sees a later key."""
        begin, end = self.ranges.unbind(1)
        return bool(((end <= torch.arange(1, end.shape[1] + 1)) | (begin == end)).all())

    def cells(self, count: int) -> Tensor:
        """Which cells of a map of ``count`` rows and columns have a pair in sight, [count, count] bool."""
        n = self.ranges.shape[2]
        row = torch.arange(n) * count // n
        edges = torch.zeros(count, count + 1, dtype=torch.int64)
        for begin, end in self.ranges:
            some = end > begin
            edges.index_put_((row[some], begin[some] * count // n), torch.ones(()).long(), accumulate=True)
            edges.index_put_((row[some], (end[some] - 1) * count // n + 1), -torch.ones(()).long(), accumulate=True)
        return edges.cumsum(1)[:, :-1] > 0


def sight(call: Call) -> Sight:
    """Returns the keys in sight of a call of one row."""
    n = call.q.shape[2]
    call = evaluated(call)
    q, k = call.q_coordinates, call.k_coordinates
    intervals, rest = lower_mask(call.mask, q, k)
    if any(len(bound) > 1 for pair in intervals for bound in pair if isinstance(bound, Tensor)):
        return Sight(torch.tensor([0, n])[None, :, None].expand(1, 2, n), whole=False)

    def bounds(bound: Bound, default: int) -> Tensor:
        at = torch.tensor([[default]]) if bound is None else slots(bound, q, k).cpu()
        return at.expand(1, n)[0].clamp(0, n)

    pairs = [torch.stack([bounds(start, 0), bounds(stop, n)]) for start, stop in intervals or ((None, None),)]
    ranges = [torch.stack([begin, torch.maximum(begin, end)]) for begin, end in pairs]
    if len(ranges) == 2:
        ranges = _disjoint(*ranges)
    return Sight(torch.stack(ranges), whole=rest is None)


def _disjoint(one: Tensor, other: Tensor) -> list[Tensor]:
    """Two ranges of each query that do not overlap, the lower one first."""
    empty = [part[0] == part[1] for part in (one, other)]
    swap = (one[0] > other[0]) & ~empty[1] | empty[0]
    low, high = torch.where(swap, other, one), torch.where(swap, one, other)
    overlap = (high[0] <= low[1]) & (high[0] < high[1]) & (low[0] < low[1])
    stop = torch.maximum(low[1], high[1])
    low = torch.stack([low[0], torch.where(overlap, stop, low[1])])
    high = torch.where(overlap, stop.expand(2, -1), high)
    return [low, high] if bool((high[0] < high[1]).any()) else [low]


def why_not_exact(call: Call, seen: Sight) -> str | None:
    """Returns why the scores of a call cannot be computed from vectors and a bias by distance; None if they can."""
    if call.q.shape[-1] > WIDEST:
        return f"its queries and keys have more than {WIDEST} components"
    terms_alone = call._with(q=call.q[..., :0], k=call.k[..., :0], q_rotation=None, k_rotation=None)
    found = scores_of(terms_alone, seen)
    return found if isinstance(found, str) else None


def scores_of(call: Call, seen: Sight) -> Scores | str:
    """Returns the scores of a call, or why they cannot be computed from vectors and a bias by distance."""
    for term in call.terms:
        reason = REASONS.get(type(term).__name__)
        if reason is not None:
            return reason
        if not isinstance(term, (DistanceBias, TokenBias, QueryScale, SoftCap, Sink, RelativeValues)):
            return f"its scores have {type(term).__name__}"
    if sum(isinstance(term, SoftCap) for term in call.terms) > 1:
        return "its scores are bounded twice"
    if not seen.whole:
        return "its mask is not a range of keys"
    with torch.no_grad(), without_autocast(call.q):
        call = spec.computed(call)
        n = call.q.shape[2]
        biases: list[Tensor] = []
        of_tokens: list[Tensor] = []
        q, k, cap = call.q[0].float().cpu() * call.scale, call.k[0].float().cpu(), None
        for term in call.terms:
            if isinstance(term, QueryScale):
                q = q * term.factor[0].float().cpu()[..., None]
            elif isinstance(term, SoftCap):
                cap = float(term.cap)
            elif isinstance(term, TokenBias):
                sides = [x if x is None else x[0].float().cpu() for x in (term.queries, term.keys)]
                heads = max(1 if side is None else side.shape[0] for side in sides)
                parts = [torch.zeros(heads, n) if x is None else x.expand(heads, n) for x in sides]
                of_tokens.append(torch.stack(parts, dim=1))
            elif isinstance(term, DistanceBias):
                bias = _by_distance(term, call, seen)
                if isinstance(bias, str):
                    return bias
                biases.append(bias)
        return Scores(q, k, _sum(biases), _sum(of_tokens), cap, any(isinstance(term, Sink) for term in call.terms))


def _sum(parts: list[Tensor]) -> Tensor | None:
    total = None
    for part in parts:
        total = part if total is None else total + part
    return total


def _by_distance(term: DistanceBias, call: Call, seen: Sight) -> Tensor | str:
    """The bias by key slot − query slot, [heads or 1, 2n − 1], or why it is not a function of that."""
    values = term.values
    n = call.q.shape[2]
    parts = values.map.maps if isinstance(values, Rows) and hasattr(values.map, "maps") else None
    maps = parts or ((values.map,) if isinstance(values, Rows) else (values,))
    axes = {getattr(part, "axis", -1) for part in maps}
    if len(axes) != 1 or -1 in axes:
        return "its bias depends on more than the distance"
    if isinstance(values, Stretched):
        stretch = values.stretch[0]
        if not bool((stretch == stretch[0]).all()):
            return "its bias depends on the query as well as on the distance"
        values = values._with(stretch=stretch[None, :1])
    (axis,) = axes
    q_at, k_at = (side.axis(axis)[0] for side in (call.q_coordinates, call.k_coordinates))
    slot = torch.arange(n, device=q_at.device)
    if not _moves_with_slots(q_at - slot, k_at - slot, seen):
        return "its positions do not follow the tokens, so its bias is not one by the distance between them"
    distances = torch.arange(1 - n, n, device=q_at.device)
    here = Coordinates(k_at.new_zeros(1, 1, axis + 1), distances.new_zeros(1, 1))
    there = Coordinates(distances.to(k_at.dtype)[None, :, None].expand(1, -1, axis + 1), distances[None])
    return distance_bias(values, here, there, torch.float32)[0, :, 0].float().cpu()


def _moves_with_slots(of_queries: Tensor, of_keys: Tensor, seen: Sight) -> bool:
    """Whether each query has the same position − slot as all keys that it sees."""
    of_queries, of_keys = of_queries.cpu(), of_keys.cpu()
    changes = torch.nn.functional.pad((of_keys[1:] != of_keys[:-1]).long().cumsum(0), (1, 0))
    for begin, end in seen.ranges:
        some = end > begin
        first, last = begin[some], end[some] - 1
        if bool((changes[first] != changes[last]).any() | (of_keys[first] != of_queries[some]).any()):
            return False
    return True
