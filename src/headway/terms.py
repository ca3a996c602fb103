"""Terms: the parts of attention scores, which encodings return and kernels implement.

    score[h,i,j] = cap( s·τ[h,i]·( ⟨qᵢ, kⱼ⟩ + Σᵣ ⟨q'ᵢ + uᵣ_h, aᵣ_h[ρᵣ(i,j)]⟩ + Σᵣ ⟨k'ⱼ, cᵣ_h[ρᵣ(i,j)]⟩ )
                     + Σᵣ bᵣ_h[ρᵣ(i,j)] + e[h,i] + g[h,j] + D[h,i,j] )
    out[h,i]     = Σⱼ A[h,i,j]·(vⱼ + Σᵣ rᵣ_h[ρᵣ(i,j)]),   A = softmax over the allowed j and a sink logit z[h,i]

An encoding returns a tuple of terms, in which one class may occur several times. Kernels read terms and know no
encoding. When they do, q and k are already prepared. The distance of a pair is δ = key position − query position, on
one axis.

A function in a term must be pure: its result depends only on its arguments, it draws no random numbers, keeps no state
and writes into none of its arguments. Kernels call it for blocks of rows, and again in the backward pass. Draw random
numbers outside and pass them in ``tensors``, with every tensor that requires a gradient.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, get_args

import torch
from torch import Tensor
from torch.nn import functional as F
from typing_extensions import Self

from . import decay, householder
from .coordinates import FAR, Coordinates
from .errors import HeadwayError
from .records import Divisible, Sizes, named
from .tracing import searchsorted

__all__ = [
    "Term",
    "TERMS",
    "DistanceBias",
    "Bias",
    "BIASES",
    "Rows",
    "Linear",
    "Log",
    "Power",
    "Piecewise",
    "Sinusoids",
    "Cosines",
    "Stretched",
    "Map",
    "Clip",
    "Bucketize",
    "Classes",
    "Grid",
    "distance",
    "RelativeKeys",
    "RelativeQueries",
    "RelativeValues",
    "TokenBias",
    "DenseBias",
    "QueryScale",
    "Sink",
    "SoftCap",
    "Product",
    "ScoreMap",
    "Normalizer",
    "StickWeights",
    "ContextualPositions",
    "GatedPath",
    "HeadNetwork",
    "LimitedRotation",
    "HouseholderPath",
    "ChannelDecay",
    "ContentSlope",
    "NORMALIZERS",
    "PRODUCTS",
    "Rotation",
    "LAYOUTS",
    "rotate",
    "Part",
    "check",
]


def __dir__() -> list[str]:
    return __all__


# ---------------------------------------------------------------- from a pair of tokens to a row of a table


class Part(Divisible):
    """The base class of terms and of the parts that they hold. ``axes`` names the dimensions of its tensors."""

    exact: ClassVar[tuple[str, ...]] = ()
    """Fields whose tensors keep their dtype when a kernel casts the others."""

    def block(self, start: int, stop: int) -> Self:
        """The part for the queries ``start`` … ``stop`` − 1."""
        return self.cut("queries", start, stop)

    def _cut_one(self, name: str, value: Any, axis: str, start: int, stop: int) -> Any:
        if axis == "queries" and isinstance(value, Part):
            return value.block(start, stop)  # a user's class may override it
        return super()._cut_one(name, value, axis, start, stop)


@dataclass(frozen=True, eq=False)
class Clip(Part):
    """Maps a distance to a row, one for each whole distance: row = clamp(⌊δ⌋, low, high) − low.

    Args:
        low: the distance of the first row, which all smaller distances share.
        high: the distance of the last row, which all larger distances share.
        axis: the axis of the positions.

    Raises:
        HeadwayError: if low exceeds high, or either is beyond ±2⁶⁰.
    """

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
        """The number of rows."""
        return self.high - self.low + 1

    def rows(self, q: Coordinates, k: Coordinates) -> Tensor:
        """The row of each pair, int64 [b, n, m], for queries at ``q`` and keys at ``k``."""
        return _floored(distance(q, k, self.axis)).clamp(self.low, self.high) - self.low


@dataclass(frozen=True, eq=False)
class Bucketize(Part):
    """Maps a distance to a row by boundaries, as ``torch.bucketize``: row = the number of boundaries ≤ δ.

    Args:
        boundaries: rising, [buckets − 1]. A bucket that begins just above b has the boundary torch.nextafter(b, ∞).
        axis: the axis of the positions.
        reach: a number that no boundary exceeds in size, or None. It tells kernels on a GPU, which do not read the
            boundaries, beyond which distance all pairs share a row. It is not compared with the boundaries.

    Raises:
        HeadwayError: if ``reach`` is negative.
    """

    axes = named(boundaries="steps")

    exact: ClassVar[tuple[str, ...]] = ("boundaries",)

    boundaries: Tensor
    axis: int = 0
    reach: int | None = None

    def __post_init__(self) -> None:
        if self.reach is not None and self.reach < 0:
            raise HeadwayError(f"Bucketize has a reach of {self.reach}: give the largest size of a boundary, or None")

    @property
    def count(self) -> int:
        """The number of rows."""
        return self.boundaries.numel() + 1

    def rows(self, q: Coordinates, k: Coordinates) -> Tensor:
        """The row of each pair, int64 [b, n, m], for queries at ``q`` and keys at ``k``."""
        delta, boundaries = distance(q, k, self.axis), self.boundaries
        if boundaries.is_floating_point():
            boundaries = boundaries.float() if boundaries.dtype.itemsize < 4 else boundaries
            delta = delta.to(boundaries.dtype)
        else:  # a narrow integer could not represent every distance
            boundaries = boundaries.long()
            delta = _floored(delta)  # a whole boundary ≤ δ is a boundary ≤ ⌊δ⌋; a cast would round towards 0
        return searchsorted(boundaries, delta, right=True)


@dataclass(frozen=True, eq=False)
class Classes(Part):
    """Maps a pair of token classes, such as segments, to a row: row = class of the query · classes + class of the key.

    Args:
        q_class: the class of each query, integers [b, n].
        k_class: the class of each key, integers [b, m].
        classes: the number of classes.
    """

    axes = named(q_class="1|batch queries", k_class="1|batch keys")

    whole: ClassVar[tuple[str, ...]] = ("q_class", "k_class")

    q_class: Tensor
    k_class: Tensor
    classes: int

    @property
    def count(self) -> int:
        """The number of rows."""
        return self.classes**2

    def rows(self, q: Coordinates, k: Coordinates) -> Tensor:
        """The row of each pair, int64 [b, n, m], for queries at ``q`` and keys at ``k``."""
        return self.q_class.long()[..., :, None] * self.classes + self.k_class.long()[..., None, :]


@dataclass(frozen=True, eq=False)
class Grid(Part):
    """Maps a pair to a row by several maps.

        row = (row of the first)·(count of the second) + (row of the second), and so on

    Args:
        maps: the maps, such as one for each axis.
    """

    maps: tuple[Clip | Bucketize | Classes, ...]

    @property
    def count(self) -> int:
        """The number of rows."""
        total = 1
        for part in self.maps:
            total *= part.count
        return total

    def rows(self, q: Coordinates, k: Coordinates) -> Tensor:
        """The row of each pair, int64 [b, n, m], for queries at ``q`` and keys at ``k``."""
        row = self.maps[0].rows(q, k)
        for part in self.maps[1:]:
            row = row * part.count + part.rows(q, k)
        return row


Map = Clip | Bucketize | Classes | Grid
"""A user-defined map is a ``Part`` with ``count``, ``rows`` and ``axes``; the kernel ``reference`` runs it."""


def distance(q: Coordinates, k: Coordinates, axis: int = 0) -> Tensor:
    """Computes δ = key position − query position, [b, n, m].

    Args:
        q: coordinates of the queries.
        k: coordinates of the keys.
        axis: the axis of the positions.
    """
    return k.axis(axis)[:, None, :] - q.axis(axis)[:, :, None]


def _floored(delta: Tensor) -> Tensor:
    """Returns ⌊δ⌋ in int64, within ±2⁶², and −2⁶² for NaN; float32 cannot represent all bounds beyond ±2²⁴."""
    if not delta.is_floating_point():
        return delta
    far = 2.0**62
    return delta.floor().nan_to_num(nan=-far, posinf=far, neginf=-far).clamp(-far, far).long()


# ---------------------------------------------------------------- tables and closed forms of the distance


@dataclass(frozen=True, eq=False)
class Rows(Part):
    """A table with a row for each value of a map.

    Its size does not depend on n or on the positions.

    Args:
        table: [heads or 1, rows] for a bias, [heads or 1, rows, head_dim] for relative keys, queries and values.
        map: finds the row of each pair.

    Raises:
        HeadwayError: if the table has another number of rows than the map.
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
        count, width = self.map.count, around.get("width")  # a row of a bias is one number, so it has no width
        return {"rows": count, "width": width, "numbers": count if width is None else None}

    @property
    def maps(self) -> tuple[Clip | Bucketize | Classes, ...]:
        """The maps of a grid, or the one map."""
        return self.map.maps if isinstance(self.map, Grid) else (self.map,)


@dataclass(frozen=True, eq=False)
class Linear(Part):
    """A linear bias (ALiBi): b_h(δ) = −past_h·|δ| for δ ≤ 0, −future_h·|δ| for δ > 0.

    Args:
        past: slopes towards earlier keys, [heads or 1].
        future: slopes towards later keys, [heads or 1].
        axis: the axis of the positions.
    """

    axes = named(past="1|heads", future="1|heads")

    past: Tensor
    future: Tensor
    axis: int = 0


@dataclass(frozen=True, eq=False)
class Log(Part):
    """A logarithmic bias (KERPLE): b_h(δ) = −weight_h·ln(1 + rate_h·|δ|).

    Args:
        weight: [heads or 1].
        rate: [heads or 1].
        axis: the axis of the positions.
    """

    axes = named(weight="1|heads", rate="1|heads")

    weight: Tensor
    rate: Tensor
    axis: int = 0


@dataclass(frozen=True, eq=False)
class Power(Part):
    """A power of the distance as bias (KERPLE): b_h(δ) = −weight_h·|δ|^exponent_h.

    Args:
        weight: [heads or 1].
        exponent: [heads or 1].
        axis: the axis of the positions.
    """

    axes = named(weight="1|heads", exponent="1|heads")

    weight: Tensor
    exponent: Tensor
    axis: int = 0


@dataclass(frozen=True, eq=False)
class Piecewise(Part):
    """A piecewise linear bias: b_h(δ) interpolates values_h between knots, and is constant beyond the outermost ones.

    Args:
        knots: rising distances, [knots], at least 2.
        values: the bias at each knot, [heads or 1, knots].
        axis: the axis of the positions.

    Raises:
        HeadwayError: for other shapes.
    """

    axes = named(knots="knots", values="1|heads knots")

    exact: ClassVar[tuple[str, ...]] = ("knots",)

    knots: Tensor
    values: Tensor
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
    """Relative keys as a linear map of sinusoids (Transformer-XL): a_h(δ) = weight_h·[sin(−δω), cos(−δω)].

    −δ is the query's position minus the key's.

    Args:
        weight: [heads or 1, head_dim, 2·frequencies].
        frequencies: ω, [frequencies].
        axis: the axis of the positions.
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
    """A sum of cosines as bias (Sandwich): b_h(δ) = Σ_c weight[h,c]·cos(δ·ω_c).

    Args:
        weight: [heads or 1, frequencies].
        frequencies: ω, [frequencies].
        axis: the axis of the positions.
    """

    axes = named(frequencies="waves", weight="1|heads waves")

    exact: ClassVar[tuple[str, ...]] = ("frequencies",)

    weight: Tensor
    frequencies: Tensor
    axis: int = 0


@dataclass(frozen=True, eq=False)
class Stretched(Part):
    """A piecewise linear function of a log-distance that each query scales (FIRE).

        b_h(i,δ) = intercept[h,s] + slope[h,s]·t,   t = ln(1 + rate·|δ|)·stretch_i,   s = the number of edges ≤ t

    The pieces must meet at the edges, which get no gradient.

    Args:
        edges: rising, [pieces − 1].
        intercept: [heads or 1, pieces].
        slope: [heads or 1, pieces].
        rate: [1].
        stretch: the scale of each query, [b, n].
        axis: the axis of the positions.
    """

    axes = named(
        edges="edges", intercept="1|heads pieces", slope="1|heads pieces", rate="one", stretch="1|batch queries"
    )

    exact: ClassVar[tuple[str, ...]] = ("stretch",)

    edges: Tensor
    intercept: Tensor
    slope: Tensor
    rate: Tensor
    stretch: Tensor
    axis: int = 0

    def own_sizes(self, sizes: Sizes, around: Sizes) -> dict[str, int | None]:
        return {"pieces": self.edges.numel() + 1, "one": 1}


Bias = Rows | Linear | Log | Power | Piecewise | Cosines | Stretched
"""What gives a number to each distance, for ``DistanceBias``."""
BIASES = get_args(Bias)
"""The classes of ``Bias``."""

# ---------------------------------------------------------------- the terms


@dataclass(frozen=True, eq=False)
class QueryScale(Part):
    """A factor τ[h,i] of each query, which multiplies the content and relative parts of its scores.

    Args:
        factor: [b, heads or 1, n or 1].
    """

    axes = named(factor="1|batch 1|heads 1|queries")

    factor: Tensor


@dataclass(frozen=True, eq=False)
class DistanceBias(Part):
    """A bias b_h[ρ(i,j)] that is added to the scores.

    Args:
        values: the bias, as a table (``Rows``) or in closed form.

    Raises:
        HeadwayError: for another class.
    """

    values: Bias

    def __post_init__(self) -> None:
        if not isinstance(self.values, BIASES):
            raise HeadwayError(
                f"DistanceBias holds a {type(self.values).__name__}: give a bias of headway.terms, such as "
                "Rows(table, map) with a map of your own; a bias of each pair of tokens is DenseBias(tensor)"
            )

    def gated(self, gate: Tensor, scale: float) -> RelativeKeys:
        """Returns this bias times a factor of each query, g[h,i]·b_h[ρ(i,j)]: a bias by distance gated by content.

        It is a product with relative keys that are one number wide: s·⟨gᵢ/s, b_h[ρ(i,j)]⟩. Every kernel that supports
        relative keys therefore runs it, stores no n² numbers for it, and gives gradients to the gate too.

        Args:
            gate: g, [batch, heads, n], computed from the queries or from the layer's input.
            scale: the scale s of the scores; head_dim ** -0.5 unless the call has another. Beside a ``QueryScale``,
                which multiplies relative keys, divide the gate by it.

        Returns:
            The term to give in place of this one.

        Raises:
            HeadwayError: for a bias in closed form, a gate of another shape, and a scale of 0.
        """
        if not isinstance(self.values, Rows):
            raise HeadwayError(
                f"gated takes a bias of Rows, and this one is a {type(self.values).__name__}: write its values into "
                "Rows(table, Clip(low, high))"
            )
        if gate.ndim != 3:
            raise HeadwayError(f"gate has shape {tuple(gate.shape)}: give [batch, heads, n]")
        if scale == 0:
            raise HeadwayError("scale is 0, by which the gate would be divided: give RelativeKeys with scaled=False")
        keys = Rows(self.values.table.unsqueeze(-1), self.values.map)
        return RelativeKeys(keys, query=(gate / scale).unsqueeze(-1))


@dataclass(frozen=True, eq=False)
class RelativeKeys(Part):
    """Products of queries with relative keys, ⟨q'ᵢ + u_h, a_h[ρ(i,j)]⟩, which are scaled like the scores.

    Args:
        rows: the relative keys a.
        query_bias: u, [heads or 1, head_dim].
        query: q', the queries before ``prepare``, [batch, heads, n, head_dim]. ``attention`` sets it if an encoding
            prepares queries. It may also be another vector of each query, as wide as the relative keys.
        scaled: whether the products are scaled. Products that are not scaled are added to the scores, as a bias is.

    Raises:
        HeadwayError: if rows are of another class.
    """

    axes = named(query="batch heads queries width", query_bias="1|heads width")

    rows: Rows | Sinusoids
    query_bias: Tensor | None = None
    query: Tensor | None = None
    scaled: bool = True

    def __post_init__(self) -> None:
        _check_rows(self.rows, Rows, Sinusoids)

    def own_sizes(self, sizes: Sizes, around: Sizes) -> dict[str, int | None]:
        return {"width": sizes["head_dim"] if self.query is None else self.query.shape[-1]}


@dataclass(frozen=True, eq=False)
class RelativeQueries(Part):
    """Products of keys with relative queries, ⟨k'ⱼ, c_h[ρ(i,j)]⟩, which are scaled like the scores.

    Args:
        rows: the relative queries c.
        key: k', the keys before ``prepare``, [batch, kv_heads, m, head_dim]. ``attention`` sets it if an encoding
            prepares keys.

    Raises:
        HeadwayError: if rows are of another class.
    """

    axes = named(key="batch kv_heads keys width")

    rows: Rows
    key: Tensor | None = None

    def __post_init__(self) -> None:
        _check_rows(self.rows, Rows)

    def own_sizes(self, sizes: Sizes, around: Sizes) -> dict[str, int | None]:
        return {"width": sizes["head_dim"] if self.key is None else self.key.shape[-1]}


@dataclass(frozen=True, eq=False)
class RelativeValues(Part):
    """Relative values r_h[ρ(i,j)], which are added to the value that query i takes from key j.

    Args:
        rows: the relative values r.

    Raises:
        HeadwayError: if rows are of another class.
    """

    rows: Rows

    def __post_init__(self) -> None:
        _check_rows(self.rows, Rows)

    def own_sizes(self, sizes: Sizes, around: Sizes) -> dict[str, int | None]:
        return {"width": sizes["v_dim"]}


def _check_rows(rows: object, *kinds: type[Part]) -> None:
    if not isinstance(rows, kinds):
        raise HeadwayError(f"a term holds rows of the class {type(rows).__name__}: give headway.terms.Rows(table, map)")


@dataclass(frozen=True, eq=False)
class TokenBias(Part):
    """Biases e[h,i] of queries and g[h,j] of keys, which are added to the scores.

    Args:
        queries: e, [b, heads or 1, n], or None.
        keys: g, [b, heads or 1, m], or None.
    """

    axes = named(queries="1|batch 1|heads queries", keys="1|batch 1|heads keys")

    queries: Tensor | None = None
    keys: Tensor | None = None


@dataclass(frozen=True, eq=False)
class DenseBias(Part):
    """A dense bias D[h,i,j], which is added to the scores.

    Args:
        values: a tensor that broadcasts to [batch, heads, n, m], or a pure function ``values(rows, *tensors)`` of an
            int64 tensor of query slots, which returns [b, heads or 1, len(rows), m].
        tensors: the arguments of the function that require a gradient or are random.
    """

    axes = named(
        values=("1|batch 1|heads 1|queries 1|keys", "1|heads 1|queries 1|keys", "1|queries 1|keys", "1|keys", ""),
        tensors=(),
    )

    values: Tensor | Callable[..., Tensor]
    tensors: tuple[Tensor, ...] = ()


@dataclass(frozen=True, eq=False)
class Sink(Part):
    """A logit z[h,i] that takes part in the softmax and has no value.

    Args:
        logits: [heads], or [b, heads or 1, n or 1] for one logit of each query.
    """

    axes = named(logits=("1|batch 1|heads 1|queries", "heads"))

    logits: Tensor

    @property
    def by_query(self) -> Tensor:
        """The logits as [b, heads or 1, n or 1]."""
        return self.logits if self.logits.ndim == 3 else self.logits[None, :, None]


@dataclass(frozen=True, eq=False)
class SoftCap(Part):
    """Bounds the scores: score ← cap·tanh(score / cap).

    Args:
        cap: above 0.

    Raises:
        HeadwayError: for another number.
    """

    cap: float

    def __post_init__(self) -> None:
        if not isinstance(self.cap, (int, float)) or not 0 < self.cap <= torch.finfo(torch.float32).max:
            raise HeadwayError(f"soft_cap is {self.cap!r}: give a number above 0, or None")


@dataclass(frozen=True, eq=False)
class Product(Part):
    """Replaces the products ⟨qᵢ, kⱼ⟩ by a pure function.

    Args:
        function: ``function(q, k, rows, *tensors)`` returns [batch, heads, len(rows), m], before scaling. It computes
            each head from q and k of that head. q holds the queries of a block, and k all keys, with as many heads as
            q; rows are the int64 slots of the queries.
        tensors: the arguments that require a gradient or are random.
    """

    axes = named(tensors=())

    function: Callable[..., Tensor]
    tensors: tuple[Tensor, ...] = ()


@dataclass(frozen=True, eq=False)
class ScoreMap(Part):
    """Replaces the scores by a pure function of them.

    Args:
        function: ``function(scores, allowed, q, rows, *tensors)`` returns scores of the same shape.
        tensors: the arguments that require a gradient or are random.
    """

    axes = named(tensors=())

    function: Callable[..., Tensor]
    tensors: tuple[Tensor, ...] = ()


@dataclass(frozen=True, eq=False)
class Normalizer(Part):
    """Replaces the softmax by a pure function, so that there is no log-sum-exp.

    Args:
        function: ``function(scores, allowed, *tensors)`` returns the weights.
        tensors: the arguments that require a gradient or are random.
    """

    axes = named(tensors=())

    function: Callable[..., Tensor]
    tensors: tuple[Tensor, ...] = ()


@dataclass(frozen=True, eq=False)
class StickWeights(Part):
    """Replaces the softmax by stick-breaking: from the last key to the first, each takes its share of what is left.

        A[h,i,j] = σ(z_ij)·Π_{t>j} (1 − σ(z_it)) over the allowed keys t but the query's own token, z the scores

    Keys are in the order of their slots. There is no log-sum-exp and no sink.

    Args:
        attend_current: whether the query's own token, which has its index, takes a share too.
        remainder: whether the query's own token gets the weight that is left, Π over all keys of (1 − σ).
    """

    NOTHING: ClassVar[float] = -1000.0
    """The logarithm of a weight that is 0 in every dtype."""

    attend_current: bool = False
    remainder: bool = False

    def functions(self, q: Coordinates, k: Coordinates) -> tuple[ScoreMap, Normalizer]:
        """Returns the same for kernels that compute a row at once: the logarithms of the weights, and exp.

        Args:
            q: coordinates of the queries.
            k: coordinates of the keys.
        """
        return ScoreMap(self._log_weights, (q.index, k.index)), Normalizer(_exponential)

    def _log_weights(
        self, z: Tensor, allowed: Tensor, q: Tensor, rows: Tensor, q_index: Tensor, k_index: Tensor
    ) -> Tensor:
        own = allowed & (q_index[:, rows, None] == k_index[:, None])[:, None]
        takes = allowed if self.attend_current else allowed & ~own
        left = F.logsigmoid(-z).masked_fill(~takes, 0)
        nearer = sums_from_last(left) - left
        share = (F.logsigmoid(z) + nearer).masked_fill(~takes, self.NOTHING)
        if not self.remainder:
            return share
        rest = left.sum(-1, keepdim=True)
        if self.attend_current:  # only its own pairs, since elsewhere second derivatives would be ∞/∞
            rest = torch.logaddexp(torch.where(own, share, rest), rest)
        return torch.where(own, rest, share)


def _exponential(scores: Tensor, allowed: Tensor) -> Tensor:
    return scores.exp()


@dataclass(frozen=True, eq=False)
class ContextualPositions(Part):
    """Adds the product of a query with the vector of a position that counts gates from the last key on (CoPE).

        z_ij + (1 − r)·⟨qᵢ, e_h[⌊p_ij⌋]⟩ + r·⟨qᵢ, e_h[⌈p_ij⌉]⟩,   r = p_ij − ⌊p_ij⌋
        p_ij = min( Σ_{t≥j} σ(z_it), positions − 1 ), z the scores with all other terms and soft caps

    Keys are in the order of their slots, and those that the mask hides have a gate of 0. ⟨q, e⟩ is not scaled.

    Args:
        vectors: e, [heads or 1, positions, head_dim].

    Raises:
        HeadwayError: if there are no positions.
    """

    axes = named(vectors="1|heads positions head_dim")

    vectors: Tensor

    def __post_init__(self) -> None:
        if self.vectors.ndim == 3 and not self.vectors.shape[1]:
            raise HeadwayError("ContextualPositions has no vectors: give at least 1 position")

    def functions(self, q: Coordinates, k: Coordinates) -> tuple[ScoreMap]:
        """Returns the term as functions, for kernels that compute a whole row at once.

        Args:
            q: coordinates of the queries.
            k: coordinates of the keys.
        """
        return (ScoreMap(_at_counted, (self.vectors,)),)


def sums_from_last(x: Tensor) -> Tensor:
    """Returns the sums from the last entry of each row to each one, [..., m].

    Args:
        x: [..., m].
    """
    return x.flip(-1).cumsum(-1).flip(-1)


def _at_counted(scores: Tensor, allowed: Tensor, q: Tensor, rows: Tensor, vectors: Tensor) -> Tensor:
    gates = scores.sigmoid().masked_fill(~allowed, 0)
    position = sums_from_last(gates).clamp(max=vectors.shape[1] - 1)
    by_position, slot = q @ vectors.mT, position.detach().nan_to_num(0)
    low, high = (by_position.gather(-1, whole.long()) for whole in (slot.floor(), slot.ceil()))
    return scores + torch.lerp(low, high, position - position.detach().floor())


@dataclass(frozen=True, eq=False)
class GatedPath(Part):
    """Adds the logarithms of gates that the query computes for each token between it and the key (GRAPE-AP).

        slope_h·Σ ln σ(⟨zᵢ, w_t⟩) over the keys t > j whose index is at most the query's, masked ones too

    Args:
        query: z, [batch, heads, n, width].
        path: w, [batch, heads, m, width].
        slope: [heads].
    """

    axes = named(query="1|batch heads queries width", path="1|batch heads keys width", slope="heads")

    query: Tensor
    path: Tensor
    slope: Tensor

    def functions(self, q: Coordinates, k: Coordinates) -> tuple[DenseBias]:
        """Returns the term as functions, for kernels that compute a whole row at once.

        Args:
            q: coordinates of the queries.
            k: coordinates of the keys.
        """
        tensors = self.query, self.path, self.slope[:, None, None], q.index, k.index
        return (DenseBias(_summed_along, tensors),)


def _summed_along(rows: Tensor, query: Tensor, path: Tensor, slope: Tensor, q_at: Tensor, k_at: Tensor) -> Tensor:
    gates = F.logsigmoid(query[:, :, rows].double() @ path.mT.double())
    gates = gates.masked_fill((k_at[:, None] > q_at[:, rows, None])[:, None], 0)
    behind = torch.cat([gates[..., 1:], torch.zeros_like(gates[..., :1])], dim=-1)  # no difference: sums may be −∞
    return (slope.double() * sums_from_last(behind)).to(query.dtype)


@dataclass(frozen=True, eq=False)
class HeadNetwork(Part):
    """Corrects the scores and biases of all heads by a network that reads both (DAPE).

        z + B + b₂ + Σ_s W₂[·,·,s]·g(j + s),   s = −⌊width/2⌋ … ⌊width/2⌋
        g(t) = leaky( b₁ + Σ_s W₁[·,·,s]·[z; B](t + s) ),   leaky(x) = max(x, 0.01·x)

    z are the scores with all other terms and soft caps, B the sum of the biases. Keys are in the order of their slots.
    [z; B] is 0 where a head does not see a key, and g where no head does. A score of −∞ counts as a key that is not
    seen, and stays −∞.

    Args:
        biases: the addends of B, at least one.
        into: W₁, [hidden, 2·heads, width].
        into_bias: b₁, [hidden].
        out: W₂, [heads, hidden, width].
        out_bias: b₂, [heads].

    Raises:
        HeadwayError: if there is no bias, a bias is another term, or width is even.
    """

    axes = named(into="hidden inputs width", into_bias="hidden", out="outputs hidden width", out_bias="outputs")

    SLOPE: ClassVar[float] = 0.01
    """The slope of the leaky ReLU below 0."""

    biases: tuple[DistanceBias, ...]
    into: Tensor
    into_bias: Tensor
    out: Tensor
    out_bias: Tensor

    def __post_init__(self) -> None:
        if not self.biases or not all(isinstance(bias, DistanceBias) for bias in self.biases):
            said = ", ".join(type(bias).__name__ for bias in self.biases) or "nothing"
            raise HeadwayError(
                f"HeadNetwork has biases that hold {said}: give at least one DistanceBias, and no other term"
            )
        if self.into.ndim == 3 and self.into.shape[2] % 2 == 0:
            raise HeadwayError(
                f"HeadNetwork has into of shape {tuple(self.into.shape)}: give [hidden, 2·heads, width] "
                "with an odd width, such as 3"
            )

    def own_sizes(self, sizes: Sizes, around: Sizes) -> dict[str, int | None]:
        """Returns the sizes of dimensions that the call does not have.

        Args:
            sizes: those of the call.
            around: those of the term.

        Raises:
            HeadwayError: if the network is for another number of heads.
        """
        heads = sizes["heads"]
        if heads is not None and self.out.shape[:1] != (heads,):
            raise HeadwayError(
                f"HeadNetwork has out of shape {tuple(self.out.shape)}: give [{heads}, hidden, width], since q has "
                f"{heads} heads; build the encoding with num_heads={heads}"
            )
        own = {"inputs": None if heads is None else 2 * heads, "outputs": heads}
        return own | ({"width": self.out.shape[2]} if self.out.ndim == 3 else {})


@dataclass(frozen=True, eq=False)
class LimitedRotation(Part):
    """Replaces ⟨qᵢ, kⱼ⟩ by products of queries and keys whose rotation differs for near and far keys (ReRoPE).

        ⟨Rₙqᵢ, Rₙkⱼ⟩ for |δ| < window,   ⟨Rₚqᵢ, R_f kⱼ⟩ for δ ≤ −window,   ⟨R_a qᵢ, R_f kⱼ⟩ for δ ≥ window

    Args:
        window: the distance from which on keys are far.
        q_cos: cosines for Rₙ, Rₚ and R_a, in float64, [3, b, 1, n, pairs].
        q_sin: sines, likewise.
        k_cos: cosines for Rₙ and R_f, in float64, [2, b, 1, m, pairs].
        k_sin: sines, likewise.
        layout: as in ``Rotation``.
        axis: the axis of the positions.

    Raises:
        HeadwayError: if the window is 0 or less, or the layout is unknown.
    """

    axes = named(
        q_cos="of_queries 1|batch one queries pairs",
        q_sin="of_queries 1|batch one queries pairs",
        k_cos="of_keys 1|batch one keys pairs",
        k_sin="of_keys 1|batch one keys pairs",
    )

    window: float
    q_cos: Tensor
    q_sin: Tensor
    k_cos: Tensor
    k_sin: Tensor
    layout: str = "interleaved"
    axis: int = 0

    def __post_init__(self) -> None:
        if not self.window > 0:
            raise HeadwayError(f"LimitedRotation has window {self.window}: give a distance above 0")
        _check_layout(self)

    def own_sizes(self, sizes: Sizes, around: Sizes) -> dict[str, int | None]:
        """Returns the sizes of dimensions that the call does not have.

        Args:
            sizes: those of the call.
            around: those of the term.

        Raises:
            HeadwayError: if the head_dim is odd.
        """
        width = sizes["head_dim"]
        if width is not None and width % 2:
            raise HeadwayError(f"LimitedRotation turns pairs of dimensions and head_dim is {width}: give an even one")
        return {"of_queries": 3, "of_keys": 2, "one": 1, "pairs": None if width is None else width // 2}

    def functions(self, q: Coordinates, k: Coordinates) -> tuple[Product]:
        """Returns the term as functions, for kernels that compute a whole row at once.

        Args:
            q: coordinates of the queries.
            k: coordinates of the keys.
        """
        tables = self.q_cos, self.q_sin, self.k_cos, self.k_sin
        return (Product(self._product, (*_positions(q, k, self.axis), *tables)),)

    def _product(
        self, q: Tensor, k: Tensor, rows: Tensor, q_position: Tensor, k_position: Tensor, *tables: Tensor
    ) -> Tensor:
        q_cos, q_sin, k_cos, k_sin = tables
        near_k, far_k = (rotate(k, k_cos[i], k_sin[i], self.layout).mT for i in range(2))
        near, past, future = (rotate(q, q_cos[i][..., rows, :], q_sin[i][..., rows, :], self.layout) for i in range(3))
        delta = (k_position[:, None] - q_position[:, rows, None])[:, None]
        far = torch.where(delta < 0, past @ far_k, future @ far_k)
        return torch.where(delta.abs() < self.window, near @ near_k, far)


@dataclass(frozen=True, eq=False)
class HouseholderPath(Part):
    """Replaces ⟨qᵢ, kⱼ⟩ by the product along the path between both tokens (PaTH).

        qᵢᵀ·Hᵢ·Hᵢ₋₁ ⋯ Hⱼ₊₁·kⱼ + e[h,i] − e[h,j],   H_t = I − β_t·w_t·w_tᵀ

    Keys after the query have the product ⟨qᵢ, kⱼ⟩.

    Args:
        w: [batch, kv_heads, m, head_dim].
        beta: β, [batch, kv_heads, m].
        q_sums: e of the queries, [batch, heads, n], or None.
        k_sums: e of the keys, [batch, heads, m], or None.

    Raises:
        HeadwayError: if only one of the two sums is given.
    """

    axes = named(
        w="1|batch kv_heads keys head_dim",
        beta="1|batch kv_heads keys",
        q_sums="1|batch heads queries",
        k_sums="1|batch heads keys",
    )

    w: Tensor
    beta: Tensor
    q_sums: Tensor | None = None
    k_sums: Tensor | None = None

    def __post_init__(self) -> None:
        if (self.q_sums is None) != (self.k_sums is None):
            raise HeadwayError("HouseholderPath has only one of q_sums and k_sums: give both, or neither")

    def functions(self, q: Coordinates, k: Coordinates) -> tuple[Product]:
        """Returns the term as functions, for kernels that compute a whole row at once.

        Args:
            q: coordinates of the queries.
            k: coordinates of the keys.
        """
        path = self.w, self.beta, q.index, k.index
        if self.q_sums is None or self.k_sums is None:
            return (Product(householder.along, path),)
        return (Product(_along_and_faded, (self.q_sums, self.k_sums, *path)),)


def _along_and_faded(q: Tensor, k: Tensor, rows: Tensor, queries: Tensor, keys: Tensor, *path: Tensor) -> Tensor:
    return householder.along(q, k, rows, *path) + (queries[..., rows, None] - keys[..., None, :]).to(q.dtype)


@dataclass(frozen=True, eq=False)
class ChannelDecay(Part):
    """Replaces ⟨qᵢ, kⱼ⟩ by a product whose channels decay along the tokens between both (Wall attention).

        Σ_c q_ic·k_jc·exp(Σ_{t=j+1…i} min(g[h,t,c], 0))

    Tokens are in the order of their slots. Keys after the query have the product ⟨qᵢ, kⱼ⟩.

    Args:
        log_gates: g, [batch, heads, m, head_dim]; numbers above 0 count as 0.
    """

    axes = named(log_gates="1|batch heads keys head_dim")

    log_gates: Tensor

    def functions(self, q: Coordinates, k: Coordinates) -> tuple[Product]:
        """Returns the term as functions, for kernels that compute a whole row at once.

        Args:
            q: coordinates of the queries.
            k: coordinates of the keys.
        """
        return (Product(decay.along, (self.log_gates, q.index, k.index)),)


@dataclass(frozen=True, eq=False)
class ContentSlope(Part):
    """Adds to ⟨qᵢ, kⱼ⟩ a penalty linear in the distance to past keys; content gives its slope (GRAPE-A).

        ⟨qᵢ, kⱼ⟩ − √head_dim·max(−δ, 0)·slope_h·( softplus(⟨u_h, kⱼ⟩) + softplus(⟨v_h, qᵢ⟩) )

    Args:
        slope: [heads].
        key_weight: u, [heads, head_dim], or None if only queries give slopes.
        query_weight: v, [heads, head_dim], or None if only keys give slopes.
        axis: the axis of the positions.
    """

    axes = named(slope="heads", key_weight="heads head_dim", query_weight="heads head_dim")

    slope: Tensor
    key_weight: Tensor | None = None
    query_weight: Tensor | None = None
    axis: int = 0

    def functions(self, q: Coordinates, k: Coordinates) -> tuple[Product]:
        """Returns the term as functions, for kernels that compute a whole row at once.

        Args:
            q: coordinates of the queries.
            k: coordinates of the keys.
        """
        nothing = self.slope.new_zeros(0)
        weights = [nothing if weight is None else weight for weight in (self.key_weight, self.query_weight)]
        return (Product(_with_penalty, (*_positions(q, k, self.axis), self.slope, *weights)),)


def _positions(q: Coordinates, k: Coordinates, axis: int) -> tuple[Tensor, Tensor]:
    """Returns positions on an axis; float64 ones count from the first key, since a function gets them in float32."""
    at, to = q.axis(axis), k.axis(axis)
    if torch.float64 not in (at.dtype, to.dtype):
        return at, to
    first = to[:, :1].double().sum(1, keepdim=True)  # 0 if there is no key
    return at - first, to - first


def _with_penalty(
    q: Tensor, k: Tensor, rows: Tensor, q_position: Tensor, k_position: Tensor, slope: Tensor, *weights: Tensor
) -> Tensor:
    gate: Tensor | float = 0.0
    for weight, content, along in ((weights[0], k, -2), (weights[1], q, -1)):
        if weight.numel():
            gate = gate + F.softplus((content * weight[:, None]).sum(-1)).unsqueeze(along)
    back = (q_position[:, rows, None] - k_position[:, None]).clamp(min=0)[:, None].to(q.dtype)
    return q @ k.mT - math.sqrt(q.shape[-1]) * back * slope[:, None, None] * gate


PRODUCTS = (Product, LimitedRotation, HouseholderPath, ChannelDecay, ContentSlope)
"""The terms that replace ⟨qᵢ, kⱼ⟩. A call has at most one of them."""

NORMALIZERS = (Normalizer, StickWeights)
"""The terms that replace the softmax. A call with one has no log-sum-exp."""

SCANS = (StickWeights, ContextualPositions, GatedPath)
"""The terms in which each key depends on those behind it, in the order of their slots."""

# ---------------------------------------------------------------- rotations


LAYOUTS = ("interleaved", "half")
"""The layouts of pairs of dimensions, as ``Rotation`` describes them."""


@dataclass(frozen=True, eq=False)
class Rotation(Part):
    """A rotation of pairs of dimensions by an angle for each token: (a, b) → μ·(a·cos φ − b·sin φ, a·sin φ + b·cos φ).

    Kernels rotate q, k and v before, or while they load them, and the output afterwards.

    Args:
        cos: μ·cos φ in float64, [b, heads or 1, n, pairs].
        sin: μ·sin φ likewise.
        layout: which of the 2·pairs dimensions are pair c: (2c, 2c+1) "interleaved", or (c, c + pairs) "half".
        start: the first of these dimensions. The others do not change.
    """

    axes = named(cos="1|batch 1|heads tokens pairs", sin="1|batch 1|heads tokens pairs")

    exact: ClassVar[tuple[str, ...]] = ("cos", "sin")

    cos: Tensor
    sin: Tensor
    layout: str = "interleaved"
    start: int = 0

    def of(self, x: Tensor) -> Tensor:
        """Rotates ``x`` [batch, heads, n, head_dim], in float32 or wider, and rounds once.

        Raises:
            HeadwayError: as ``check``.
        """
        self.check(x)
        return self._of(x)

    def check(self, x: Tensor) -> None:
        """Checks that the rotation fits ``x`` [batch, heads, n, head_dim].

        Raises:
            HeadwayError: if cos or sin has another shape, the layout is unknown, or the dimensions are not those of x.
        """
        batch, heads, n, width = x.shape
        self.check_tensors({"batch": batch, "heads": heads, "tokens": n})
        _check_layout(self)
        pairs = self.cos.shape[3]
        if not 0 <= self.start <= width - 2 * pairs:
            raise HeadwayError(
                f"Rotation has start {self.start} and cos of shape {tuple(self.cos.shape)}, so {pairs} pairs, but "
                f"head_dim is {width}: give start ≥ 0 and at most (head_dim − start)/2 pairs"
            )

    def _of(self, x: Tensor) -> Tensor:
        """Rotates ``x`` without ``check``, which must have been called unless headway made the rotation."""
        return rotate(x, self.cos, self.sin, self.layout, self.start)


def _check_layout(part: Rotation | LimitedRotation) -> None:
    if part.layout not in LAYOUTS:
        choice = " or ".join(map(repr, LAYOUTS))
        raise HeadwayError(f"{type(part).__name__} has layout {part.layout!r}: give {choice}")


def rotate(x: Tensor, cos: Tensor, sin: Tensor, layout: str, start: int = 0) -> Tensor:
    """Rotates dimensions of x, in float32 or wider, and rounds once.

    Args:
        x: [batch, heads, n, head_dim].
        cos: as in ``Rotation``.
        sin: as in ``Rotation``.
        layout: as in ``Rotation``.
        start: as in ``Rotation``.
    """
    wide = torch.promote_types(x.dtype, torch.float32)
    cos, sin = cos.to(wide), sin.to(wide)
    width = 2 * cos.shape[-1]
    whole = width == x.shape[-1] and start == 0
    part = (x if whole else x[..., start : start + width]).to(wide)
    if layout == "interleaved":
        # view, since under is_grads_batched tensors can be neither flattened nor unflattened
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
    | StickWeights
    | ContextualPositions
    | GatedPath
    | HeadNetwork
    | LimitedRotation
    | HouseholderPath
    | ChannelDecay
    | ContentSlope
)
"""A part of the equation of attention, as an encoding returns it."""
TERMS = get_args(Term)
"""The classes of ``Term``."""


def check(terms: tuple[Term, ...], sizes: Sizes) -> None:
    """Checks that terms are terms and that their tensors fit a call.

    Args:
        terms: the terms.
        sizes: batch, heads, kv_heads, queries, keys, head_dim and v_dim of the call.

    Raises:
        HeadwayError: if one is not a term, or does not fit.
    """
    for term in terms:
        if not isinstance(term, TERMS):
            raise HeadwayError(f"terms hold a {type(term).__name__}: {_remedy(term)}")
        term.check_tensors(sizes)


def _remedy(part: object) -> str:
    """Returns advice on what to give in place of a part that is not a term."""
    if isinstance(part, Tensor):
        return "wrap it: DenseBias(tensor), a bias [batch, heads, queries, keys]"
    if isinstance(part, BIASES):
        return f"wrap it: DistanceBias({type(part).__name__}(…))"
    return "give objects of headway.terms, such as Sink(logits)"
