"""Relative positions of images by buckets of both axes (iRPE)."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from ...constants import constant
from ...coordinates import Coordinates
from ...errors import HeadwayError, need_finite, need_positive
from ...terms import Bucketize, DistanceBias, Grid, RelativeKeys, RelativeQueries, RelativeValues, Rows
from .._base import Input, Pair, PositionEncoding, Terms

METHODS = ("product", "cross")
PLACES = ("k", "q", "v", "qk", "kv", "qv", "qkv", "bias")


class IRPE(PositionEncoding):
    """Adds learned vectors for buckets of the distances in height and width to keys, queries and values (iRPE).

        score[h,i,j] = s·( ⟨qᵢ, kⱼ⟩ + ⟨qᵢ, a^K[ρ(Δ)]⟩ + ⟨kⱼ, a^Q[ρ(−Δ)]⟩ ),   Δ = pᵢ − pⱼ on each axis
        out[h,i] = Σⱼ A[h,i,j]·(vⱼ + a^V[ρ(Δ)])
        g(x) = round(x) if |x| ≤ α, else sign(x)·min(β, round(α + (β − α)·ln(|x|/α)/ln(γ/α))), rounded towards 0

    With "product" there is a vector for each pair of buckets, ρ(Δ) = (g(Δ_y), g(Δ_x)); with "cross" one for each axis,
    whose products are added. ``on`` says which of a^K, a^Q and a^V there are; with "bias" a number b[ρ(Δ)] is added to
    the scores instead. As in the authors' code, α, β, γ are 1, 2 and 8 times ``ratio``. Distances that are not whole
    numbers are rounded up. The Euclidean and quantized methods, and the bucket of class tokens, are not included.

    Args:
        num_heads: the number of query heads, at least 1.
        head_dim: the width of each head, at least 1.
        method: "product" or "cross".
        on: "k", "q" and "v" in any combination, such as "qkv", or "bias".
        ratio: the factor of α, β and γ, at least 0.5; 1.9 gives the buckets −3 … 3.
        shared: whether all heads share their vectors, as by default in the authors' code.

    Attributes:
        keys: a^K [tables, 1 or num_heads, buckets, head_dim], initially 0, or None. "product" has one table, "cross"
            one for each axis; the buckets rise with Δ, those of "product" with Δ_x first.
        queries: a^Q, likewise.
        values: a^V, likewise.
        bias: b [tables, 1 or num_heads, buckets], likewise.

    Shape:
        positions: [batch, n, 2] as (y, x)

    Raises:
        HeadwayError: if a size is below 1, ratio is below 0.5 or not finite, or method or on is unknown.

    References:
        Wu et al. 2021, section 3.
    """

    name = "irpe"
    citation = "wu2021rethinking"
    year = 2021
    evidence = "authors"
    extrapolates = True
    axes = 2

    keys: nn.Parameter | None
    queries: nn.Parameter | None
    values: nn.Parameter | None
    bias: nn.Parameter | None

    def __init__(
        self,
        num_heads: int,
        head_dim: int,
        method: str = "product",
        on: str = "k",
        ratio: float = 1.9,
        shared: bool = True,
    ) -> None:
        super().__init__()
        need_positive(num_heads=num_heads, head_dim=head_dim)
        need_finite(ratio=ratio)
        if ratio < 0.5:
            raise HeadwayError(f"ratio is {ratio}: all distances would share a bucket, give at least 0.5, such as 1.9")
        for name, given, known in (("method", method, METHODS), ("on", on, PLACES)):
            if given not in known:
                raise HeadwayError(f"{name} is {given!r}: give one of {', '.join(map(repr, known))}")
        self.num_heads, self.head_dim, self.method, self.on = num_heads, head_dim, method, on
        self.ratio, self.shared = ratio, shared
        far = math.ceil(8 * ratio) + 1
        self.last = self._bucket(far)
        self._first = tuple(next(x for x in range(1, far + 1) if self._bucket(x) >= b) for b in range(1, self.last + 1))
        side = 2 * self.last + 1
        tables, buckets = (1, side * side) if method == "product" else (2, side)
        for name, letter in (("keys", "k"), ("queries", "q"), ("values", "v"), ("bias", "bias")):
            width = [] if letter == "bias" else [head_dim]
            there = letter == on if "bias" in (letter, on) else letter in on
            table = torch.zeros(tables, 1 if shared else num_heads, buckets, *width)
            self.register_parameter(name, nn.Parameter(table) if there else None)

    def _bucket(self, x: float) -> int:
        """g(x) of a whole number."""
        alpha, beta, gamma = self.ratio, 2 * self.ratio, 8 * self.ratio
        if abs(x) <= alpha:
            return round(x)
        step = round(alpha + (beta - alpha) * math.log(abs(x) / alpha) / math.log(gamma / alpha))
        return int(math.copysign(min(beta, step), x))

    def _maps(self, device: torch.device) -> list[Bucketize | Grid]:
        """Returns the maps of a pair to a row, of key − query."""
        boundaries = constant(_boundaries, self._first, device=device)
        each = [Bucketize(boundaries, axis, reach=self._first[-1]) for axis in range(2)]
        return [Grid(tuple(each))] if self.method == "product" else [*each]

    def terms(self, q_at: Coordinates, k_at: Coordinates, q_input: Input = None, k_input: Input = None) -> Terms:
        """Returns the terms of relative keys, queries, values and of the bias; their rows rise with key − query."""
        maps = self._maps(q_at.position.device)

        def rows(table: Tensor | None, of_queries: bool = False) -> list[Rows]:
            """The authors' rows rise with query − key, and those of queries with key − query."""
            each = () if table is None else table if of_queries else table.flip(2)
            return [Rows(one, at) for one, at in zip(each, maps, strict=table is not None)]

        return (
            *map(RelativeKeys, rows(self.keys)),
            *map(RelativeQueries, rows(self.queries, of_queries=True)),
            *map(RelativeValues, rows(self.values)),
            *map(DistanceBias, rows(self.bias)),
        )

    # ------------------------------------------------------------ for the checks

    def _oracle_rows(self, pair: Pair, sign: int) -> list[int]:
        """ρ(sign·Δ) in each table."""
        y, x = (
            self._bucket(sign * -math.floor(pair.at(pair.j, axis) - pair.at(pair.i, axis))) + self.last
            for axis in range(2)
        )
        return [y * (2 * self.last + 1) + x] if self.method == "product" else [y, x]

    def _oracle_vectors(self, tables: Tensor, pair: Pair, sign: int = 1) -> Tensor:
        h = 0 if self.shared else pair.h
        rows = zip(tables, self._oracle_rows(pair, sign), strict=True)
        return sum((table[h, row].double() for table, row in rows), torch.zeros(()))

    def oracle(self, pair: Pair) -> float:
        score = pair.dot
        if self.keys is not None:
            score += float(pair.query @ self._oracle_vectors(self.keys, pair))
        if self.queries is not None:
            score += float(pair.key @ self._oracle_vectors(self.queries, pair, -1))
        return pair.scale * score + (0.0 if self.bias is None else float(self._oracle_vectors(self.bias, pair)))

    def oracle_value(self, pair: Pair, v: Tensor) -> Tensor:
        own = v[pair.h, pair.j]
        return own if self.values is None else own + self._oracle_vectors(self.values, pair)

    @classmethod
    def examples(cls) -> list[PositionEncoding]:
        return [cls(4, 8), cls(6, 8, method="cross", on="qkv", shared=False), cls(4, 8, on="bias", ratio=3.0)]


def _boundaries(first: tuple[int, ...], device: torch.device) -> Tensor:
    """The distances δ at which the next bucket begins: −x + 1 for the past, x for the future."""
    return torch.tensor([*(1 - x for x in reversed(first)), *first], device=device, dtype=torch.int64)
