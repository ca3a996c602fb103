"""Rotations by learned circulant matrices, which commute and which a Fourier transform makes diagonal."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..coordinates import Coordinates
from ..errors import HeadwayError, need_finite, need_positive
from ._base import Pair, PositionEncoding, need_width
from ._lie import for_heads, need_divisor


class CirculantSTRING(PositionEncoding):
    """Each axis has a learned circulant matrix, and a position is the rotation that their weighted sum generates.

        score[h,i,j] = s·⟨R_h(pᵢ)·qᵢ, R_h(pⱼ)·kⱼ⟩,   R_h(p) = exp(Σ_a p_a·(C_a,h − C_a,hᵀ))
        C[m,n] = c[(m − n) mod head_dim],   R·x = F⁻¹·( e^{2i·Σ_a p_a·Im F c_a}·F x ) with the Fourier transform F

    Shapes: x [batch, heads, n, head_dim] → the same; positions [batch, n, axes]; c [axes, num_kv_heads, head_dim]
    of each layer, N(0, initial²) at first: the paper gives no value. Queries that share a key head share them.
    Circulant matrices commute, so scores know differences of positions alone. Of c, the differences c[m] − c[−m] alone
    count, and c[0] not at all. The transform is done in float64.
    Raises HeadwayError for a head_dim below 3, which leaves nothing to turn, heads that do not fit, and an initial
    that is not finite.
    Cite: Schenck et al. 2025, section 3.2, equation 11 and theorem 3.5.
    """

    name = "circulant-string"
    citation = "schenck2025learning"
    year = 2025
    axes: int | None = 2

    def __init__(
        self, num_heads: int, head_dim: int, axes: int = 2, num_kv_heads: int | None = None, initial: float = 0.02
    ) -> None:
        super().__init__()
        need_positive(num_heads=num_heads, axes=axes)
        need_divisor(num_heads, num_kv_heads)
        if head_dim < 3:
            raise HeadwayError(f"head_dim is {head_dim}: a circulant matrix turns nothing there, give at least 3")
        self.num_heads, self.head_dim, self.axes, self.num_kv_heads = num_heads, head_dim, axes, num_kv_heads
        need_finite(initial=initial)
        self.initial = initial
        self.c = nn.Parameter(initial * torch.randn(axes, num_kv_heads or num_heads, head_dim))

    def learned_tables(self, coordinates: Coordinates) -> Tensor:
        """e^{iφ} [b, num_kv_heads, n, head_dim//2 + 1] in complex128: the turn of each wave of the transform."""
        angles = 2 * torch.fft.rfft(self.c.double()).imag
        phases = torch.einsum("bna,ahm->bhnm", coordinates.position.double(), angles)
        return torch.complex(phases.cos(), phases.sin())

    def prepare(self, x: Tensor, coordinates: Coordinates) -> Tensor:
        """x [batch, num_heads or num_kv_heads, n, head_dim] turned, in float64."""
        need_width(x, "head_dim", self.head_dim)
        (turn,) = for_heads(x, self.num_heads, self.for_one_forward(coordinates).learned)
        if not x.numel():
            return x  # of no token, some of torch's libraries know no transform
        return torch.fft.irfft(torch.fft.rfft(x.double()) * turn, n=self.head_dim).to(x.dtype)

    def oracle(self, pair: Pair) -> float:
        q, k = (self._oracle_turn(pair, token) @ x for token, x in ((pair.i, pair.query), (pair.j, pair.key)))
        return pair.scale * float(q @ k)

    def _oracle_turn(self, pair: Pair, token: int) -> Tensor:
        d, h = self.head_dim, pair.h * self.c.shape[1] // self.num_heads
        generator = torch.zeros(d, d, dtype=torch.float64)
        for axis in range(self.c.shape[0]):
            c, p = self.c[axis, h].tolist(), pair.at(token, axis)
            for m in range(d):
                for n in range(d):
                    generator[m, n] += p * (c[(m - n) % d] - c[(n - m) % d])
        return torch.linalg.matrix_exp(generator)

    @classmethod
    def examples(cls) -> list[PositionEncoding]:
        return [cls(4, 8), cls(6, 8, axes=3, num_kv_heads=2, initial=0.1)]
