"""Circulant-STRING: rotations by learned circulant matrices, which a Fourier transform diagonalizes."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ...coordinates import Coordinates
from ...errors import HeadwayError, need_finite, need_positive
from .._base import Pair, PositionEncoding
from .._formulas import need_width
from .._lie import for_heads, need_divisor


class CirculantSTRING(PositionEncoding):
    """Rotates queries and keys by the exponential of learned circulant matrices, one for each axis.

        score[h,i,j] = s·⟨R_h(pᵢ)·qᵢ, R_h(pⱼ)·kⱼ⟩,   R_h(p) = exp(Σ_a p_a·(C_a,h − C_a,hᵀ))
        C[m,n] = c[(m − n) mod head_dim],   R·x = F⁻¹·( e^{2i·Σ_a p_a·Im F c_a}·F x ) with the Fourier transform F

    Queries that share a key head share its matrices. Circulant matrices commute, so that scores depend on relative
    positions only. Of c only the differences c[m] − c[−m] have an effect, and c[0] has none. The transform is computed
    in float64.

    Args:
        num_heads: the number of query heads, at least 1.
        head_dim: the width of each head, at least 3.
        axes: the number of axes of the positions, at least 1.
        num_kv_heads: the number of key and value heads, a divisor of num_heads; num_heads if None.
        initial: the standard deviation of the initial c; the paper gives no value.

    Attributes:
        c: [axes, num_kv_heads, head_dim] of each layer, initially N(0, initial²).

    Shape:
        x: [batch, heads, n, head_dim]
        positions: [batch, n, axes]
        Output: [batch, heads, n, head_dim]

    Raises:
        HeadwayError: if head_dim is below 3, at which nothing is rotated, the numbers of heads do not fit, or initial
            is not finite.

    References:
        Schenck et al. 2025, section 3.2, equation 11 and theorem 3.5.
    """

    name = "circulant-string"
    citation = "schenck2025learning"
    year = 2025
    evidence = "formula"
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
        """Returns e^{iφ}, the rotation of each frequency, [b, num_kv_heads, n, head_dim//2 + 1] in complex128."""
        angles = 2 * torch.fft.rfft(self.c.double()).imag
        phases = torch.einsum("bna,ahm->bhnm", coordinates.position.double(), angles)
        return torch.complex(phases.cos(), phases.sin())

    def prepare(self, x: Tensor, coordinates: Coordinates) -> Tensor:
        """Returns x [batch, num_heads or num_kv_heads, n, head_dim] rotated, in float64."""
        need_width(x, "head_dim", self.head_dim)
        (turn,) = for_heads(x, self.num_heads, self.for_one_forward(coordinates).learned)
        if not x.numel():
            return x  # some FFT libraries do not support empty inputs
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
