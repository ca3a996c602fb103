"""Rotary angles at positions that content decides, head by head."""

from __future__ import annotations

from torch import Tensor

from ..coordinates import Coordinates
from ..errors import need_positive
from ._base import Input, Pair, PositionEncoding, need_base, rates
from ._content_rotary import ContentRotary
from .repo import assigned, drawn, literally


class RePoRoPE(ContentRotary):
    """RoPE in which each head reads from the hidden state of a token where it stands, whatever its order.

        score[h,i,j] = s·⟨R(z_h(xᵢ))·qᵢ, R(z_h(xⱼ))·kⱼ⟩,   R(p) turns the pair c by p·ω_c,   ω_c = base^(−2c/head_dim)
        z_h(x) = w_h·( swish(G·x) ⊙ C·x ),   swish(a) = a/(1 + e^(−a))

    Shapes: G ``gate`` and C ``content`` [hidden_dim, embed_dim] are shared by the heads, w ``assign`` [kv_heads,
    hidden_dim] is their own; all from N(0, 0.02²) cut off at 3 standard deviations, as in the authors' code: all tokens
    start near position 0, as without an encoding. The authors leave the lower third of the layers with plain RoPE: a
    stack takes one encoding for each layer. Their code has as many heads for keys as for queries; with fewer, the
    queries of a group stand where their keys' head says.
    hidden_dim is embed_dim/8 if None; base and layout are those of their model, OLMo 2. ``RePo`` is the same with one
    position for all heads, for any encoding to read.
    Raises HeadwayError for sizes below 1, an odd head_dim, a base of 1 or less, kv_heads that do not divide num_heads.
    Cite: Li et al. 2025, section 3.
    """

    name = "repo-rope"
    citation = "li2025repo"
    year = 2025
    evidence = "authors"
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
        """Both sides with the cosines and sines of their own inputs, which no order ties to each other."""
        _, keys = super().relocate(k_at, k_at, k_input, k_input)
        queries = keys if q_input is k_input else super().relocate(q_at, q_at, q_input, q_input)[0]
        return q_at.placed_by(self, queries.tables), keys

    def turns(self, x: Tensor, k_at: Coordinates) -> Tensor:
        """z·ω in float64, [batch, kv_heads, m, pairs]"""
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
