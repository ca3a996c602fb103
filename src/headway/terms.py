"""The contract between encodings and kernels: what a score may be made of.

    score[h,i,j] = cap( s·τ[h,i]·( ⟨qᵢ, kⱼ⟩ + Σᵣ ⟨q'ᵢ + uᵣ_h, aᵣ_h[ρᵣ(i,j)]⟩ + Σᵣ ⟨k'ⱼ, cᵣ_h[ρᵣ(i,j)]⟩ )
                     + Σᵣ bᵣ_h[ρᵣ(i,j)] + e[h,i] + g[h,j] + D[h,i,j] )
    out[h,i]     = Σⱼ A[h,i,j]·(vⱼ + Σᵣ rᵣ_h[ρᵣ(i,j)]),   A = softmax over the allowed j and a sink logit z[h,i]

A function in a term is pure: what it gives depends on its arguments alone, it draws no random numbers, keeps no count
and writes into nothing that it is given. Kernels call it for blocks of rows, and again in the backward pass. Random
numbers are drawn outside and handed over in ``tensors``.

An encoding speaks a list of terms, in which one kind may occur more than once; a kernel implements terms and never
hears of an encoding. ``attention`` has prepared q and k by then. The distance of a pair is δ = key position − query
position, on one axis of the positions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, get_args

import torch
from torch import Tensor
from typing_extensions import Self

from .coordinates import FAR, Coordinates
from .deprecated import deprecated_names
from .errors import HeadwayError
from .records import Divisible, Sizes, named

# ---------------------------------------------------------------- from a pair of tokens to a row of a table


class Part(Divisible):
    """A part of the scores. Its tensors name their dimensions in ``axes``, by which they are checked and cut."""

    exact: ClassVar[tuple[str, ...]] = ()
    """Fields whose tensors keep their dtype, whatever the kernel computes in."""

    def block(self, start: int, stop: int) -> Self:
        """The same part for the queries start … stop − 1 alone."""
        return self.cut("queries", start, stop)

    def _cut_one(self, name: str, value: Any, axis: str, start: int, stop: int) -> Any:
        if axis == "queries" and isinstance(value, Part):
            return value.block(start, stop)  # which a user's own part may have defined
        return super()._cut_one(name, value, axis, start, stop)


@dataclass(frozen=True, eq=False)
class Clip(Part):
    """row = clamp(⌊δ⌋, low, high) − low: one row for each whole distance, the last ones for all beyond."""

    low: int
    high: int
    axis: int = 0

    def __post_init__(self) -> None:
        if -FAR <= self.low <= self.high <= FAR:
            return
        if self.low > self.high:
            raise HeadwayError(f"Clip runs from {self.low} to {self.high}: low must not exceed high")
        name = "low" if self.low < -FAR else "high"
        raise HeadwayError(f"Clip has {name} of {getattr(self, name)}: give one within ±2⁶⁰")

    @property
    def count(self) -> int:
        return self.high - self.low + 1

    def rows(self, q: Coordinates, k: Coordinates) -> Tensor:
        """int64 [b, n, m]"""
        delta = distance(q, k, self.axis)
        if delta.is_floating_point():
            delta = delta.floor()
        return delta.clamp(self.low, self.high).long() - self.low


@dataclass(frozen=True, eq=False)
class Bucketize(Part):
    """row = the number of boundaries that δ has reached (boundary ≤ δ): any monotone map from distance to row.

    ``boundaries`` is a rising tensor; a step just above b is written torch.nextafter(b, ∞).
    """

    axes = named(boundaries="steps")

    exact: ClassVar[tuple[str, ...]] = ("boundaries",)

    boundaries: Tensor
    axis: int = 0

    @property
    def count(self) -> int:
        return self.boundaries.numel() + 1

    def rows(self, q: Coordinates, k: Coordinates) -> Tensor:
        """int64 [b, n, m]"""
        delta = distance(q, k, self.axis)
        if delta.is_floating_point() and not self.boundaries.is_floating_point():
            delta = delta.floor()  # a whole boundary ≤ δ is a boundary ≤ ⌊δ⌋; a cast would round towards 0
        delta = delta.to(self.boundaries.dtype)
        return torch.searchsorted(self.boundaries, delta.contiguous(), right=True)


@dataclass(frozen=True, eq=False)
class Classes(Part):
    """row = class of the query · classes + class of the key: a table over pairs of token classes ([CLS], segments)."""

    axes = named(q_class="1|batch queries", k_class="1|batch keys")

    whole: ClassVar[tuple[str, ...]] = ("q_class", "k_class")

    q_class: Tensor  # integers [b, n]
    k_class: Tensor  # integers [b, m]
    classes: int

    @property
    def count(self) -> int:
        return self.classes**2

    def rows(self, q: Coordinates, k: Coordinates) -> Tensor:
        """int64 [b, n, m]"""
        return self.q_class.long()[..., :, None] * self.classes + self.k_class.long()[..., None, :]


@dataclass(frozen=True, eq=False)
class Grid(Part):
    """row = (row of the first map)·count of the second + row of the second …: a table over several axes, or classes."""

    maps: tuple[Clip | Bucketize | Classes, ...]

    @property
    def count(self) -> int:
        total = 1
        for part in self.maps:
            total *= part.count
        return total

    def rows(self, q: Coordinates, k: Coordinates) -> Tensor:
        """int64 [b, n, m]"""
        row = self.maps[0].rows(q, k)
        for part in self.maps[1:]:
            row = row * part.count + part.rows(q, k)
        return row


Map = Clip | Bucketize | Classes | Grid
"""One of your own is a ``Part`` with ``count`` and ``rows``, and with ``block`` where it holds something for each
query; its tensors are attributes, which ``axes`` checks and cuts. Kernels that know only these leave it to
``reference``."""


def distance(q: Coordinates, k: Coordinates, axis: int = 0) -> Tensor:
    """δ = key position − query position, [b, n, m]."""
    return k.axis(axis)[:, None, :] - q.axis(axis)[:, :, None]


# ---------------------------------------------------------------- what stands in a row, or the closed form of it


@dataclass(frozen=True, eq=False)
class Rows(Part):
    """A learned or given table, one row for each value of ``map``; its size grows neither with n nor with positions.

    table: [heads or 1, rows] for a bias, [heads or 1, rows, head_dim] for relative keys, queries and values.
    """

    axes = named(table=("1|heads numbers", "1|heads rows width"))

    table: Tensor
    map: Map

    def __post_init__(self) -> None:
        if self.table.ndim not in (2, 3) or self.table.shape[1] != self.map.count:
            raise HeadwayError(
                f"table has shape {tuple(self.table.shape)} but {type(self.map).__name__} maps to {self.map.count} "
                "rows: give [heads, rows] or [heads, rows, head_dim]"
            )

    def own_sizes(self, sizes: Sizes, around: Sizes) -> dict[str, int | None]:
        count, width = self.map.count, around.get("width")  # a bias has numbers in its rows
        return {"rows": count, "width": width, "numbers": count if width is None else None}

    @property
    def maps(self) -> tuple[Clip | Bucketize | Classes, ...]:
        """The maps of a grid, or the one map."""
        return self.map.maps if isinstance(self.map, Grid) else (self.map,)


@dataclass(frozen=True, eq=False)
class Linear(Part):
    """b_h(δ) = −past_h·|δ| for δ ≤ 0, −future_h·|δ| for δ > 0 (ALiBi)."""

    axes = named(past="1|heads", future="1|heads")

    past: Tensor  # [heads]
    future: Tensor  # [heads]
    axis: int = 0


@dataclass(frozen=True, eq=False)
class Log(Part):
    """b_h(δ) = −weight_h·ln(1 + rate_h·|δ|) (KERPLE, logarithmic)."""

    axes = named(weight="1|heads", rate="1|heads")

    weight: Tensor  # [heads]
    rate: Tensor  # [heads]
    axis: int = 0


@dataclass(frozen=True, eq=False)
class Power(Part):
    """b_h(δ) = −weight_h·|δ|^exponent_h (KERPLE, power)."""

    axes = named(weight="1|heads", exponent="1|heads")

    weight: Tensor  # [heads]
    exponent: Tensor  # [heads]
    axis: int = 0


@dataclass(frozen=True, eq=False)
class Piecewise(Part):
    """b_h(δ) = values_h interpolated linearly between rising knots, and constant beyond the first and the last."""

    axes = named(knots="knots", values="1|heads knots")

    exact: ClassVar[tuple[str, ...]] = ("knots",)

    knots: Tensor  # [knots]
    values: Tensor  # [heads, knots]
    axis: int = 0

    def __post_init__(self) -> None:
        count = self.knots.shape[0] if self.knots.ndim == 1 else 0
        if count < 2 or self.values.ndim != 2 or self.values.shape[1] != count:
            raise HeadwayError(
                f"knots have shape {tuple(self.knots.shape)} and values {tuple(self.values.shape)}: give [knots] and "
                "[heads, knots], with at least 2 knots"
            )


@dataclass(frozen=True, eq=False)
class Sinusoids(Part):
    """a_h(δ) = weight_h·[sin(−δω), cos(−δω)]: relative keys as a linear map of sinusoids (Transformer-XL).

    −δ is the query's position minus the key's. weight: [heads, head_dim, 2·frequencies]; frequencies: [frequencies].
    """

    axes = named(frequencies="frequencies", weight="1|heads width waves")

    exact: ClassVar[tuple[str, ...]] = ("frequencies",)

    weight: Tensor
    frequencies: Tensor
    axis: int = 0

    def own_sizes(self, sizes: Sizes, around: Sizes) -> dict[str, int | None]:
        return {"waves": 2 * self.frequencies.numel(), "width": around.get("width")}


@dataclass(frozen=True, eq=False)
class Cosines(Part):
    """b_h(δ) = Σ_c weight[h,c]·cos(δ·ω_c): a bias that is a sum of waves (Sandwich)."""

    axes = named(frequencies="waves", weight="1|heads waves")

    exact: ClassVar[tuple[str, ...]] = ("frequencies",)

    weight: Tensor  # [heads, frequencies]
    frequencies: Tensor  # [frequencies]
    axis: int = 0


@dataclass(frozen=True, eq=False)
class Stretched(Part):
    """b_h(i,δ) = intercept[h,s] + slope[h,s]·t,  t = ln(1 + rate·|δ|)·stretch_i,  s = how many edges are ≤ t (FIRE).

    A function of straight pieces of a distance that each query measures on a scale of its own. The pieces are to meet
    at the edges, so that these have no gradient of their own.
    """

    axes = named(
        edges="edges", intercept="1|heads pieces", slope="1|heads pieces", rate="one", stretch="1|batch queries"
    )

    exact: ClassVar[tuple[str, ...]] = ("stretch",)

    edges: Tensor  # [pieces − 1], rising, without a gradient
    intercept: Tensor  # [heads, pieces]
    slope: Tensor  # [heads, pieces]
    rate: Tensor  # [1]
    stretch: Tensor  # [b, n]
    axis: int = 0

    def own_sizes(self, sizes: Sizes, around: Sizes) -> dict[str, int | None]:
        return {"pieces": self.edges.numel() + 1, "one": 1}


Bias = Rows | Linear | Log | Power | Piecewise | Cosines | Stretched
BIASES = get_args(Bias)

# ---------------------------------------------------------------- the terms


@dataclass(frozen=True, eq=False)
class QueryScale(Part):
    """τ[h,i], which multiplies the content and relative parts of the scores; factor: [b, heads or 1, n or 1]."""

    axes = named(factor="1|batch 1|heads 1|queries")

    factor: Tensor


@dataclass(frozen=True, eq=False)
class DistanceBias(Part):
    """b_h[ρ(i,j)] added to the scores, by a table or in closed form."""

    values: Bias

    def __post_init__(self) -> None:
        if not isinstance(self.values, BIASES):
            raise HeadwayError(
                f"DistanceBias holds a {type(self.values).__name__}: give a bias of headway.terms, such as "
                "Rows(table, map) with a map of your own"
            )


@dataclass(frozen=True, eq=False)
class RelativeKeys(Part):
    """⟨q'ᵢ + u_h, a_h[ρ(i,j)]⟩, scaled like the scores.

    q' is the query before ``prepare``; ``attention`` fills it in as ``query`` where that differs from the prepared one.
    """

    axes = named(query="batch heads queries width", query_bias="1|heads width")

    rows: Rows | Sinusoids
    query_bias: Tensor | None = None  # u: [heads, head_dim]
    query: Tensor | None = None  # q': [batch, heads, n, head_dim]

    def __post_init__(self) -> None:
        _hold_rows(self.rows, Rows, Sinusoids)

    def own_sizes(self, sizes: Sizes, around: Sizes) -> dict[str, int | None]:
        return {"width": sizes["head_dim"] if self.query is None else self.query.shape[-1]}


@dataclass(frozen=True, eq=False)
class RelativeQueries(Part):
    """⟨k'ⱼ, c_h[ρ(i,j)]⟩, scaled like the scores; k' is the key before ``prepare``."""

    axes = named(key="batch kv_heads keys width")

    rows: Rows
    key: Tensor | None = None  # k': [batch, kv_heads, m, head_dim]

    def __post_init__(self) -> None:
        _hold_rows(self.rows, Rows)

    def own_sizes(self, sizes: Sizes, around: Sizes) -> dict[str, int | None]:
        return {"width": sizes["head_dim"] if self.key is None else self.key.shape[-1]}


@dataclass(frozen=True, eq=False)
class RelativeValues(Part):
    """r_h[ρ(i,j)] added to the value that query i takes from key j."""

    rows: Rows

    def __post_init__(self) -> None:
        _hold_rows(self.rows, Rows)

    def own_sizes(self, sizes: Sizes, around: Sizes) -> dict[str, int | None]:
        return {"width": sizes["v_dim"]}


def _hold_rows(rows: object, *kinds: type[Part]) -> None:
    if not isinstance(rows, kinds):
        raise HeadwayError(f"a term holds rows of the class {type(rows).__name__}: give headway.terms.Rows(table, map)")


@dataclass(frozen=True, eq=False)
class TokenBias(Part):
    """e[h,i] for queries and g[h,j] for keys, added to the scores; each [b, heads or 1, tokens] or None."""

    axes = named(queries="1|batch 1|heads queries", keys="1|batch 1|heads keys")

    queries: Tensor | None = None
    keys: Tensor | None = None


@dataclass(frozen=True, eq=False)
class DenseBias(Part):
    """D[h,i,j]: a tensor that broadcasts to [batch, heads, n, m], or a function of a block of rows.

    A function is called as ``values(rows, *tensors)`` with rows an int64 tensor of query slots, and gives
    [b, heads or 1, len(rows), m]. It is pure, and every tensor that wants a gradient stands in ``tensors``.
    """

    axes = named(
        values=("1|batch 1|heads 1|queries 1|keys", "1|heads 1|queries 1|keys", "1|queries 1|keys", "1|keys", ""),
        tensors=(),
    )

    values: Tensor | Callable[..., Tensor]
    tensors: tuple[Tensor, ...] = ()


@dataclass(frozen=True, eq=False)
class Sink(Part):
    """z[h,i]: a logit that takes part in the softmax and carries no value.

    logits: [heads], or [b, heads or 1, n or 1] for one of each query.
    """

    axes = named(logits=("1|batch 1|heads 1|queries", "heads"))

    logits: Tensor

    @property
    def by_query(self) -> Tensor:
        """The logits as [b, heads or 1, n or 1]."""
        return self.logits if self.logits.ndim == 3 else self.logits[None, :, None]


@dataclass(frozen=True, eq=False)
class SoftCap(Part):
    """score ← cap·tanh(score / cap)."""

    cap: float

    def __post_init__(self) -> None:
        if not isinstance(self.cap, (int, float)) or not 0 < self.cap <= torch.finfo(torch.float32).max:
            raise HeadwayError(f"soft_cap is {self.cap!r}: give a number above 0, or None")


@dataclass(frozen=True, eq=False)
class Product(Part):
    """Replaces ⟨qᵢ, kⱼ⟩: ``function(q, k, rows, *tensors)`` gives [batch, heads, len(rows), m], not yet scaled.

    q holds the queries of the block, k all keys with as many heads as q; rows: int64 slots of the block's queries. The
    function is pure, and every tensor that wants a gradient stands in ``tensors``.
    """

    axes = named(tensors=())

    function: Callable[..., Tensor]
    tensors: tuple[Tensor, ...] = ()


@dataclass(frozen=True, eq=False)
class ScoreMap(Part):
    """Replaces the finished scores: ``function(scores, allowed, q, rows, *tensors)`` gives scores of the same shape.

    The function is pure, and every tensor that wants a gradient stands in ``tensors``.
    """

    axes = named(tensors=())

    function: Callable[..., Tensor]
    tensors: tuple[Tensor, ...] = ()


@dataclass(frozen=True, eq=False)
class Normalizer(Part):
    """Replaces the softmax: ``function(scores, allowed, *tensors)`` gives the weights; there is no log-sum-exp then.

    The function is pure, and every tensor that wants a gradient stands in ``tensors``.
    """

    axes = named(tensors=())

    function: Callable[..., Tensor]
    tensors: tuple[Tensor, ...] = ()


# ---------------------------------------------------------------- what is done to q and k before they meet


@dataclass(frozen=True, eq=False)
class Rotation(Part):
    """Pairs of dimensions of each token turned by angles: μ·(a·cos φ − b·sin φ, a·sin φ + b·cos φ).

    The token is a query, a key, a value or a row of the output. layout: which of the 2·pairs dimensions that begin at
    start are the pair c, (2c, 2c+1) "interleaved" or (c, c + pairs) "half"; the other dimensions stay. A kernel turns
    q, k and v as it reads them and the output as it writes it, or has that done before and after.
    """

    axes = named(cos="1|batch 1|heads tokens pairs", sin="1|batch 1|heads tokens pairs")

    exact: ClassVar[tuple[str, ...]] = ("cos", "sin")

    cos: Tensor  # [b, heads or 1, n, pairs] in float64, times μ
    sin: Tensor
    layout: str = "interleaved"
    start: int = 0

    def of(self, x: Tensor) -> Tensor:
        """x [batch, heads, n, head_dim] turned, in float32 or wider and rounded once."""
        return rotate(x, self.cos, self.sin, self.layout, self.start)


def rotate(x: Tensor, cos: Tensor, sin: Tensor, layout: str, start: int = 0) -> Tensor:
    """x [batch, heads, n, head_dim] with the 2·pairs dimensions from start on turned.

    cos and sin are [b, heads or 1, n, pairs].
    """
    wide = torch.promote_types(x.dtype, torch.float32)
    cos, sin = cos.to(wide), sin.to(wide)
    width = 2 * cos.shape[-1]
    whole = width == x.shape[-1] and start == 0
    part = (x if whole else x[..., start : start + width]).to(wide)
    if layout == "interleaved":
        # views, because a batch of gradients (is_grads_batched) can be neither flattened nor unflattened
        a, b = part.view(*part.shape[:-1], width // 2, 2).unbind(-1)
        pairs = torch.stack([a * cos - b * sin, a * sin + b * cos], dim=-1)
        out = pairs.view(*pairs.shape[:-2], width)
    else:
        a, b = part.chunk(2, dim=-1)
        out = torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)
    if whole:
        return out.to(x.dtype)
    return torch.cat([x[..., :start], out.to(x.dtype), x[..., start + width :]], dim=-1)


Term = (
    QueryScale
    | DistanceBias
    | RelativeKeys
    | RelativeQueries
    | RelativeValues
    | TokenBias
    | DenseBias
    | Sink
    | SoftCap
    | Product
    | ScoreMap
    | Normalizer
)


TERMS = get_args(Term)


def check(terms: tuple[Term, ...], sizes: Sizes) -> None:
    """Raises HeadwayError for what is no term, and for a term whose tensors do not fit the call.

    sizes: batch, heads, kv_heads, queries, keys, head_dim and v_dim.
    """
    for term in terms:
        if not isinstance(term, TERMS):
            raise HeadwayError(
                f"terms hold a {type(term).__name__}: give objects of headway.terms, such as Sink(logits)"
            )
        term.check_tensors(sizes)


if not TYPE_CHECKING:
    __getattr__ = deprecated_names(__name__, {"Steps": "Bucketize", "Temperature": "QueryScale"})
