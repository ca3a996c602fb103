"""Rotary angles at positions that content determines for each head."""

from __future__ import annotations

from torch import Tensor

from ...coordinates import Coordinates
from ...errors import need_positive
from .._base import Input, Pair, PositionEncoding
from .._content_rotary import ContentRotary
from .._formulas import need_base, rates
from .repo import assigned, drawn, literally


class RePoRoPE(ContentRotary):
    """Applies RoPE at positions that each head computes from the token's hidden state.

        score[h,i,j] = s·⟨R(z_h(xᵢ))·qᵢ, R(z_h(xⱼ))·kⱼ⟩,   R(p) rotates the pair c by p·ω_c,   ω_c = base^(−2c/head_dim)
        z_h(x) = w_h·( swish(G·x) ⊙ C·x ),   swish(a) = a/(1 + e^(−a))

    The authors leave plain RoPE in the lower third of the layers: a stack takes one encoding for each layer. Their code
    has as many heads for keys as for queries; with fewer, the queries of a group use the positions of their key head.
    ``RePo`` is the same with one position for all heads, for any encoding.

    Args:
        embed_dim: the width of the layer's input, at least 1.
        num_heads: the number of query heads, at least 1.
        head_dim: the width of each head, even; embed_dim / num_heads if None.
        num_kv_heads: the number of key and value heads, a divisor of num_heads; num_heads if None.
        hidden_dim: the width of G and C, at least 1; embed_dim/8 if None.
        base: the base of the frequencies, above 1; that of their model, OLMo 2, by default.
        layout: as in ``RoPE``; that of OLMo 2 by default.

    Attributes:
        gate: G [hidden_dim, embed_dim], shared by the heads. All are initially N(0, 0.02²) truncated at 3 standard
            deviations, as in the authors' code, so that all tokens start near position 0, as without an encoding.
        content: C [hidden_dim, embed_dim], shared by the heads.
        assign: w [kv_heads, hidden_dim].

    Raises:
        HeadwayError: if a size is below 1, head_dim is odd, base is 1 or less, or num_kv_heads does not divide
            num_heads.

    References:
        Li et al. 2025, section 3.
    """

    name = "repo-rope"
    citation = "li2025repo"
    year = 2025
    evidence = "authors"
    across_shards = True
    causal_only = False

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        head_dim: int | None = None,
        num_kv_heads: int | None = None,
        hidden_dim: int | None = None,
        base: float = 500000.0,
        layout: str = "half",
    ) -> None:
        super().__init__(embed_dim, num_heads, head_dim, num_kv_heads, layout)
        need_base(base)
        hidden_dim = max(1, embed_dim // 8) if hidden_dim is None else hidden_dim
        need_positive(hidden_dim=hidden_dim)
        self.hidden_dim, self.base = hidden_dim, base
        self.gate, self.content = drawn(hidden_dim, embed_dim), drawn(hidden_dim, embed_dim)
        self.assign = drawn(self.num_kv_heads, hidden_dim)

    def relocate(
        self, q_at: Coordinates, k_at: Coordinates, q_input: Input = None, k_input: Input = None
    ) -> tuple[Coordinates, Coordinates]:
        """Returns both sides with the cosines and sines of their own inputs; the order of tokens has no effect."""
        _, keys = super().relocate(k_at, k_at, k_input, k_input)
        queries = keys if q_input is k_input else super().relocate(q_at, q_at, q_input, q_input)[0]
        return q_at.placed_by(self, queries.tables), keys

    def turns(self, x: Tensor, k_at: Coordinates) -> Tensor:
        """Returns z·ω, [batch, kv_heads, m, pairs] in float64."""
        z = assigned(x, self.gate, self.content, self.assign).transpose(1, 2)
        return z[..., None] * rates(self.pairs, self.head_dim, self.base, x.device)

    def oracle_angle(self, pair: Pair, c: int, token: int) -> float:
        assert pair.x is not None
        w = self.assign[self.oracle_head(pair.h)]
        z = literally(pair.x[token], self.gate, self.content, w)
        return z * float(self.base ** (-2 * c / self.head_dim))

    @classmethod
    def examples(cls) -> list[PositionEncoding]:
        return [cls(32, 4), cls(48, 6, hidden_dim=5, base=500.0, layout="interleaved")]
