"""Path-integral additive GRAPE: a penalty summed over the tokens between key and query."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from ...coordinates import Coordinates
from ...errors import HeadwayError, need_positive
from ...terms import GatedPath, rotate
from .._base import Input, Pair, PositionEncoding, Terms
from .._content import Contextual, projected
from .alibi import ALiBi

EPSILON = 2.0**-23


class GRAPEAP(Contextual):
    """Adds the logarithms of gates that the query computes for each token between it and the key (GRAPE-AP).

        score[h,i,j] = s·⟨qᵢ, kⱼ⟩ + m_h·Σ_{t=j+1…i} ln σ( ⟨zᵢ, R(−p_t)·ẑ_t⟩ / path_dim )
        z = W_h·x,   ẑ = z/√(mean z² + 2⁻²³),   R(φ) rotates every pair (c, c + path_dim/2) by φ

    m_h are ALiBi's slopes. As in the authors' code, only the token on the path is normalized and rotated, and all pairs
    are rotated by the position itself (rotary base 1): scores depend on more of the positions than their distance. The
    sum includes the query's own token and not the key's.

    Args:
        embed_dim: the width of the layer's input, at least 1.
        num_heads: the number of query heads, at least 1.
        path_dim: the width of z of each head, even; 8 as in the authors' runs.

    Attributes:
        weight: W [num_heads·path_dim, embed_dim], initially N(0, 1/(4·embed_dim)).

    Raises:
        HeadwayError: if a size is below 1, path_dim is odd, or inputs have another embed_dim.

    References:
        Zhang et al. 2026, section 4, and the authors' code.
    """

    name = "grape-ap"
    citation = "zhang2026group"
    year = 2025
    evidence = "authors"
    extrapolates = True
    axes = 1

    def __init__(self, embed_dim: int, num_heads: int, path_dim: int = 8) -> None:
        super().__init__()
        need_positive(embed_dim=embed_dim, num_heads=num_heads, path_dim=path_dim)
        if path_dim % 2:
            raise HeadwayError(f"path_dim is {path_dim}: pairs are turned, give an even number, such as 8")
        self.embed_dim, self.num_heads, self.path_dim = embed_dim, num_heads, path_dim
        self.weight = nn.Parameter(0.5 * embed_dim**-0.5 * torch.randn(num_heads * path_dim, embed_dim))

    def _heads(self, x: Input) -> Tensor:
        """z [batch, num_heads, tokens, path_dim] in float64."""
        return projected(self.read(x), self.weight).unflatten(-1, (self.num_heads, self.path_dim)).transpose(1, 2)

    def terms(self, q_at: Coordinates, k_at: Coordinates, q_input: Input = None, k_input: Input = None) -> Terms:
        """Returns the gates of queries and tokens."""
        z = self._heads(k_input)
        angle = -k_at.axis().double()[:, None, :, None].expand(-1, -1, -1, self.path_dim // 2)
        normed = z * torch.rsqrt(z.square().mean(-1, keepdim=True) + EPSILON)
        onpath = rotate(normed, angle.cos(), angle.sin(), "half") / self.path_dim
        return (GatedPath(self._heads(q_input), onpath, ALiBi(self.num_heads).slopes(z.device)),)

    def oracle(self, pair: Pair) -> float:
        assert pair.x is not None
        w = self.weight.double().view(self.num_heads, self.path_dim, -1)[pair.h]
        half, total, query = self.path_dim // 2, 0.0, w @ pair.x[pair.i]
        for t in range(pair.j + 1, pair.i + 1):
            z, p = w @ pair.x[t], pair.at(t)
            z = z / math.sqrt(float(z @ z) / self.path_dim + EPSILON)
            product = sum(
                (complex(query[c], query[c + half]).conjugate() * complex(z[c], z[c + half]) * _unit(-p)).real
                for c in range(half)
            )
            total += math.log(1 / (1 + math.exp(-product / self.path_dim)))
        return pair.scale * pair.dot + ALiBi(self.num_heads).slopes()[pair.h].item() * total

    @classmethod
    def examples(cls) -> list[PositionEncoding]:
        return [cls(32, 4), cls(48, 6, path_dim=4)]


def _unit(angle: float) -> complex:
    return complex(math.cos(angle), math.sin(angle))
