"""DeBERTa's disentangled attention: products of content with relative positions in both directions."""

from __future__ import annotations

import bisect
import math

import torch
from torch import Tensor, nn

from ...coordinates import Coordinates
from ...errors import HeadwayError, need_positive
from ...terms import Bucketize, Clip, RelativeKeys, RelativeQueries, Rows
from .._base import Input, Pair, PositionEncoding, Terms
from .._formulas import normal
from .._layers import linear, linear_by_hand, normed, normed_by_hand

PARTS = ("c2p", "p2c")


class DeBERTa(PositionEncoding):
    """Adds products of queries with relative-position keys ("c2p") and of keys with relative-position queries ("p2c").

        score[h,i,j] = s·( ⟨qᵢ, kⱼ⟩ + ⟨qᵢ, K_h[row(δ)]⟩ + ⟨kⱼ, Q_h[row(δ)]⟩ ),   δ = pᵢ − pⱼ
        s = 1/√(head_dim·(1 + the number of parts))
        K = P·W_K,   Q = P·W_Q + b_Q,   P = norm(table), or the table itself with norm=False
        row(δ) = max(0, min(2S − 1, bucket(δ) + S))
        buckets="clip" (v1):     S = max_distance,  bucket(δ) = δ
        buckets="log" (v2, v3):  S = num_buckets,  m = S/2,  t = min(|δ|, M),  M = max_distance − 1
                                 bucket(δ) = δ for t ≤ m, else sign(δ)·(m + ⌈ln(t/m)/ln(M/m)·(m − 1)⌉)

    W_K has no bias: one, as in v2, would add the same number to the scores of all keys. Where released models share the
    layer's own projections, assign them: ``encoding.key, encoding.query = key, query``. v1 as released is
    buckets="clip" with norm=False. A distance that is not a whole number is rounded up.

    Hugging Face does not bound |δ|, so keys far ahead of the query get row 0, which no training has used. The absolute
    positions that the paper adds at the decoder's last layers are another encoding.

    Args:
        embed_dim: the width of the embeddings, at least 1.
        num_heads: the number of query heads, at least 1.
        head_dim: the width of each head, at least 1.
        max_distance: the distance from which on all distances share a row, at least 1.
        num_buckets: S for buckets="log": even, from 4 to 2·max_distance − 4.
        parts: the products added: "c2p", "p2c" or both.
        buckets: "log" or "clip", as above.
        norm: whether a layer norm is applied to the table.
        index: "paper" to use row(−δ) for p2c, as the paper writes; "code" for row(δ), with which released models were
            trained.

    Attributes:
        table: [2S, embed_dim], drawn from N(0, 0.02²).
        table_norm: the layer norm of the table, or None.
        key: the linear layer W_K, embed_dim → num_heads·head_dim, without a bias.
        query: the linear layer W_Q with the bias b_Q, embed_dim → num_heads·head_dim.

    Raises:
        HeadwayError: if a size is below 1, num_buckets does not fit, or a part, ``buckets`` or ``index`` is unknown.

    References:
        He et al. 2021, section 3.1; He et al. 2023 for the buckets.
    """

    name = "deberta"
    citation = "he2021deberta he2023debertav3"
    year = 2020
    evidence = "authors"
    extrapolates = True

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        head_dim: int,
        max_distance: int = 512,
        num_buckets: int = 256,
        parts: tuple[str, ...] = PARTS,
        buckets: str = "log",
        norm: bool = True,
        index: str = "code",
    ) -> None:
        super().__init__()
        need_positive(embed_dim=embed_dim, num_heads=num_heads, head_dim=head_dim, max_distance=max_distance)
        for name, given, known in (("buckets", buckets, ("log", "clip")), ("index", index, ("code", "paper"))):
            if given not in known:
                raise HeadwayError(f"{name} is {given!r}: give {' or '.join(map(repr, known))}")
        if not parts or len(set(parts)) < len(parts) or not set(parts) <= set(PARTS):
            raise HeadwayError(f"parts are {parts!r}: give ('c2p', 'p2c'), or only one of them")
        if buckets == "log" and (num_buckets % 2 or not 4 <= num_buckets <= 2 * max_distance - 4):
            raise HeadwayError(
                f"num_buckets is {num_buckets} for a max_distance of {max_distance}: give an even number from 4 to "
                f"{2 * max_distance - 4}, or buckets='clip'"
            )
        self.embed_dim, self.num_heads, self.head_dim, self.max_distance = embed_dim, num_heads, head_dim, max_distance
        self.num_buckets, self.parts, self.buckets, self.index = num_buckets, tuple(parts), buckets, index
        self.span = num_buckets if buckets == "log" else max_distance
        self.table = normal(2 * self.span, embed_dim)
        self.norm, self.table_norm = norm, nn.LayerNorm(embed_dim, eps=1e-7) if norm else None
        if "c2p" in parts:
            self.key = nn.Linear(embed_dim, num_heads * head_dim, bias=False)
        if "p2c" in parts:
            self.query = nn.Linear(embed_dim, num_heads * head_dim)
        for layer in (m for m in self.children() if isinstance(m, nn.Linear)):
            nn.init.normal_(layer.weight, std=0.02)
        if "p2c" in parts:
            nn.init.zeros_(self.query.bias)
        farthest = self.span if buckets == "log" else 1  # without logarithms no bucket is wider than one
        self._first = [bisect.bisect_left(range(max_distance), b, key=self._bucket) for b in range(1, farthest)]

    def _bucket(self, delta: int) -> int:
        """The bucket of a whole distance, before it is limited to the table."""
        middle, far = self.num_buckets // 2, min(abs(delta), self.max_distance - 1)
        if self.buckets == "clip" or far <= middle:
            return delta
        steps = math.log(far / middle) / math.log((self.max_distance - 1) / middle) * (middle - 1)
        return int(math.copysign(middle + math.ceil(steps), delta))

    def default_scale(self, head_dim: int) -> float:
        """Returns 1/√((1 + parts)·head_dim), since a score is a sum of 1 + parts products."""
        return float((1 + len(self.parts)) * head_dim) ** -0.5

    def tables(self, coordinates: Coordinates) -> Tensor:
        """Returns the distances pⱼ − pᵢ at which the next bucket begins."""
        edges = [1 - first for first in reversed(self._first)] + self._first
        return torch.tensor(edges, device=coordinates.position.device)

    def terms(self, q_at: Coordinates, k_at: Coordinates, q_input: Input = None, k_input: Input = None) -> Terms:
        """Returns the terms of relative keys and relative queries."""
        terms: Terms = ()
        edges = self.place(q_at).tables
        if "c2p" in self.parts:
            terms = (RelativeKeys(self._rows(self.key, edges, backwards=True)),)
        if "p2c" in self.parts:
            terms += (RelativeQueries(self._rows(self.query, edges, backwards=self.index == "code")),)
        return terms

    def _rows(self, layer: nn.Linear, edges: Tensor, backwards: bool) -> Rows:
        """The vectors by pⱼ − pᵢ, [num_heads, rows, head_dim]: row(pᵢ − pⱼ) if ``backwards``, else row(pⱼ − pᵢ)."""
        table = linear(layer, normed(self.table_norm, self.table)).unflatten(1, (-1, self.head_dim)).transpose(0, 1)
        if self.buckets == "clip":
            reach: Clip | Bucketize = Clip(1 - self.span, self.span) if backwards else Clip(-self.span, self.span - 1)
        else:
            # no distance is in bucket −S
            table, reach = table[:, 1:], Bucketize(edges, reach=self.max_distance)
        return Rows(table.flip(1) if backwards else table, reach)

    def oracle(self, pair: Pair) -> float:
        def vector(layer: nn.Linear, delta: int) -> Tensor:
            row = self.table[max(0, min(2 * self.span - 1, self._bucket(delta) + self.span))].tolist()
            heads = linear_by_hand(layer, normed_by_hand(self.table_norm, row))
            return pair.queries.new_tensor(heads[pair.h * self.head_dim : (pair.h + 1) * self.head_dim])

        total, delta = pair.dot, -math.floor(pair.distance)
        if "c2p" in self.parts:
            total += float(pair.query @ vector(self.key, delta))
        if "p2c" in self.parts:
            total += float(pair.key @ vector(self.query, -delta if self.index == "paper" else delta))
        return pair.scale * total

    @classmethod
    def examples(cls) -> list[PositionEncoding]:
        return [
            cls(32, 4, 8, max_distance=16, num_buckets=8),
            cls(48, 6, 8, max_distance=4, buckets="clip", norm=False, index="paper"),
        ]
