"""TUPE: untied position encoding, with separate projections of positions."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...coordinates import Coordinates
from ...errors import HeadwayError, need_positive
from ...terms import Classes, DistanceBias, Rows
from .._base import Input, Pair, PositionEncoding, Terms
from .._formulas import normal, readable
from .._layers import normed, normed_by_hand


class TUPE(PositionEncoding):
    """Adds products of projected positions to those of content, and separates [CLS] from positions.

        score[h,i,j] = s·( ⟨qᵢ, kⱼ⟩ + ⟨p(i)·U_Q,h, p(j)·U_K,h⟩ ),   s = 1/√(2·head_dim),   p = norm(table)
        where i is [CLS], the token at position 0:  s·⟨qᵢ, kⱼ⟩;   where only j is:  s·⟨qᵢ, kⱼ⟩ + to_cls_h

    ``prepare_query`` and ``prepare_key`` double the width of queries and keys. The paper's other scalar is the same for
    all scores of [CLS], so that the softmax cancels it: it is left out. The authors' code computes the scalars as
    products of two further positions and has biases in the projections. TUPE-R is ``Compose(TUPE(…), T5(…))`` at the
    scale of this class. There the authors also untie [CLS] from T5's buckets. Here [CLS] keeps them, so the result is
    exact only with untie_cls=False.

    Args:
        embed_dim: the width of the embeddings, at least 1.
        num_heads: the number of query heads, at least 1.
        head_dim: the width of each head, at least 1.
        max_length: the number of positions in the table, at least 1.
        num_kv_heads: the number of key and value heads, a divisor of num_heads; num_heads if None.
        untie_cls: whether position 0 is [CLS]; if not, it is treated like any other.

    Shape:
        table: [max_length, embed_dim], with a layer norm
        U_Q: [num_heads, embed_dim, head_dim]
        U_K: [num_kv_heads, embed_dim, head_dim]
        to_cls: [num_heads]; all but the norm are drawn from N(0, 0.02²) and shared by the layers of a stack

    Raises:
        HeadwayError: if a size is below 1, q or k has other sizes, or, in eager mode only, a position is outside of the
            table.

    References:
        Ke et al. 2021, section 3.
    """

    name = "tupe"
    citation = "ke2021rethinking"
    year = 2020
    evidence = "authors"
    ends = True

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        head_dim: int,
        max_length: int = 512,
        num_kv_heads: int | None = None,
        untie_cls: bool = True,
    ) -> None:
        super().__init__()
        kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        need_positive(
            embed_dim=embed_dim, num_heads=num_heads, head_dim=head_dim, max_length=max_length, num_kv_heads=kv_heads
        )
        self.embed_dim, self.num_heads, self.head_dim, self.max_length = embed_dim, num_heads, head_dim, max_length
        self.num_kv_heads, self.untie_cls = num_kv_heads, untie_cls
        self.table = normal(max_length, embed_dim)
        self.norm = nn.LayerNorm(embed_dim)
        self.U_Q = normal(num_heads, embed_dim, head_dim)
        self.U_K = normal(kv_heads, embed_dim, head_dim)
        if untie_cls:
            self.to_cls = normal(num_heads)

    def default_scale(self, head_dim: int) -> float:
        """Returns 1/√(2·head_dim), since a score is a sum of two products."""
        return float(2 * head_dim) ** -0.5

    def tables(self, coordinates: Coordinates) -> tuple[Tensor, Tensor]:
        """Returns the rows of the table, and whether each counts (not the row of [CLS]), both [b, n].

        Raises:
            HeadwayError: if, in eager mode, a position is outside of the table.
        """
        position = coordinates.axis()
        if position.numel() and readable(position):
            low, high = (value.item() for value in position.aminmax())
            if low < 0 or high >= self.max_length:
                raise HeadwayError(
                    f"positions run from {low} to {high} but the table from 0 to {self.max_length - 1}: build it with "
                    f"max_length={int(high) + 1}"
                )
        return position.long(), (position != 0) | (not self.untie_cls)

    def learned_tables(self, coordinates: Coordinates) -> tuple[Tensor, Tensor]:
        """Returns p·U_Q and p·U_K, each [b, heads, n, head_dim] in float64, once for all layers as in the paper."""
        rows, counts = coordinates.tables
        p = (normed(self.norm, F.embedding(rows, self.table)) * counts[..., None])[:, None]
        return p @ self.U_Q.double(), p @ self.U_K.double()

    def _joined(self, x: Tensor, code: Tensor) -> Tensor:
        if x.shape[1] != code.shape[1] or x.shape[-1] != self.head_dim:
            raise HeadwayError(
                f"x has {x.shape[1]} heads of {x.shape[-1]} but the encoding {code.shape[1]} of {self.head_dim}: build "
                "it with the layer's num_heads, num_kv_heads and head_dim"
            )
        return torch.cat([x, code.to(x.dtype).expand(x.shape[0], -1, -1, -1)], dim=-1)

    def prepare_query(self, q: Tensor, coordinates: Coordinates) -> Tensor:
        """Returns [q | p·U_Q], [batch, num_heads, n, 2·head_dim]."""
        return self._joined(q, self.for_one_forward(coordinates).learned[0])

    def prepare_key(self, k: Tensor, coordinates: Coordinates) -> Tensor:
        """Returns [k | p·U_K], [batch, kv_heads, m, 2·head_dim]."""
        return self._joined(k, self.for_one_forward(coordinates).learned[1])

    def terms(self, q_at: Coordinates, k_at: Coordinates, q_input: Input = None, k_input: Input = None) -> Terms:
        """Returns the bias of pairs in which one token is [CLS]."""
        if not self.untie_cls:
            return ()
        table = F.pad(self.to_cls[:, None], (1, 2))  # rows for the classes of query and key: 00, 01, 10, 11
        q_class, k_class = ((side.axis() == 0).long() for side in (q_at, k_at))
        return (DistanceBias(Rows(table, Classes(q_class, k_class, 2))),)

    def oracle(self, pair: Pair) -> float:
        i, j = int(pair.at(pair.i)), int(pair.at(pair.j))
        if self.untie_cls and (i == 0 or j == 0):
            return pair.scale * pair.dot + (0 if i == 0 else self.to_cls[pair.h].item())
        p_i, p_j = (pair.queries.new_tensor(normed_by_hand(self.norm, self.table[p].tolist())) for p in (i, j))
        positional = float((p_i @ self.U_Q[pair.h].double()) @ (p_j @ self.U_K[pair.h].double()))
        return pair.scale * (pair.dot + positional)

    @classmethod
    def examples(cls) -> list[PositionEncoding]:
        return [cls(32, 4, 8, max_length=128), cls(48, 6, 8, max_length=64, untie_cls=False)]
