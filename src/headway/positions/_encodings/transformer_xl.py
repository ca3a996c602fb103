"""The relative positions of Transformer-XL: projected sinusoids and two learned query biases."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ...coordinates import Coordinates
from ...errors import HeadwayError, need_positive
from ...terms import RelativeKeys, Sinusoids
from .._base import Input, Pair, PositionEncoding, Terms
from .._formulas import need_base, normal, rates


class TransformerXL(PositionEncoding):
    """Adds the product of the query with a projected sinusoid of the distance, with learned query biases.

        score[h,i,j] = s·( ⟨qᵢ + u_h, kⱼ⟩ + ⟨qᵢ + v_h, W_R,h·R(pᵢ − pⱼ)⟩ )
        R(t) = [sin(t·ω) | cos(t·ω)],   ω_c = base^(−2c/D)

    It holds for distances of either sign, so it needs no causal mask. The states of earlier segments, which the paper
    adds, are ``headway.nn.SegmentMemory``.

    Args:
        embed_dim: D, the width of the embeddings, even.
        num_heads: the number of heads, at least 1.
        head_dim: the width of each head, at least 1.
        base: the base of the frequencies, above 1.

    Shape:
        W_R: [num_heads, head_dim, embed_dim]
        u, v: [num_heads, head_dim]
        q, k: as projected, [batch, num_heads, n, head_dim]

    Raises:
        HeadwayError: if embed_dim is odd, a size is below 1, base is 1 or less, or queries have other sizes.

    References:
        Dai et al. 2019, section 3.3.
    """

    name = "transformer-xl"
    citation = "dai2019transformer"
    year = 2019
    evidence = "independent"

    def __init__(self, embed_dim: int, num_heads: int, head_dim: int, base: float = 10000.0) -> None:
        super().__init__()
        need_positive(embed_dim=embed_dim, num_heads=num_heads, head_dim=head_dim)
        if embed_dim % 2:
            raise HeadwayError(f"embed_dim is {embed_dim}: sines and cosines need an even one, such as {embed_dim + 1}")
        need_base(base)
        self.embed_dim, self.num_heads, self.head_dim, self.base = embed_dim, num_heads, head_dim, base
        self.W_R = normal(num_heads, head_dim, embed_dim)
        self.u = normal(num_heads, head_dim)
        self.v = normal(num_heads, head_dim)

    def prepare_query(self, q: Tensor, coordinates: Coordinates) -> Tensor:
        """Returns q + u, for q [batch, num_heads, n, head_dim].

        Raises:
            HeadwayError: if q has another number of heads or another head_dim.
        """
        if q.shape[1] != self.num_heads or q.shape[-1] != self.head_dim:
            raise HeadwayError(
                f"q has {q.shape[1]} heads of {q.shape[-1]} but the encoding {self.num_heads} of {self.head_dim}: "
                f"build it with num_heads={q.shape[1]}, head_dim={q.shape[-1]}"
            )
        return (q + self.u[:, None]).to(q.dtype)

    def terms(self, q_at: Coordinates, k_at: Coordinates, q_input: Input = None, k_input: Input = None) -> Terms:
        """Returns the term ⟨q + v, W_R·R⟩, with frequencies in float64."""
        frequencies = rates(self.embed_dim // 2, self.embed_dim, self.base, q_at.position.device)
        return (RelativeKeys(Sinusoids(self.W_R, frequencies), query_bias=self.v),)

    def oracle(self, pair: Pair) -> float:
        t, D = -pair.distance, self.embed_dim
        turns = [t / self.base ** (2 * c / D) for c in range(D // 2)]
        R = torch.tensor([math.sin(a) for a in turns] + [math.cos(a) for a in turns], dtype=torch.float64)
        u, v, W_R = (part[pair.h].double() for part in (self.u, self.v, self.W_R))
        return pair.scale * ((pair.query + u) @ pair.key + (pair.query + v) @ (W_R @ R)).item()

    @classmethod
    def examples(cls) -> list[PositionEncoding]:
        return [cls(32, 4, 8), cls(48, 6, 8)]
