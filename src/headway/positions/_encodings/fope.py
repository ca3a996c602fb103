"""Fourier position embedding: rotations whose cosines and sines are sums over frequencies."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...coordinates import Coordinates
from ...errors import HeadwayError, need_finite
from .._base import Pair, PositionEncoding
from .._formulas import need_base, rates
from .._rotary import HeadwiseRotary


class FoPE(HeadwiseRotary):
    """Replaces the cosine and the sine of each pair of RoPE by Fourier series, and does not rotate the slow pairs.

        C_{h,d}(p) = Σ_e a[h,e,d]·cos(p·θ_e),   S_{h,d}(p) = Σ_e b[h,e,d]·sin(p·θ_e),   θ_e = base^(−2e/head_dim)
        score[h,i,j] = s·Σ_d Re( (q_d·z_d(pᵢ))^*·(k_d·z_d(pⱼ)) ),   z = C + i·S; z = 1 + i for the slow pairs

    The sums run over the frequencies that complete a rotation within the trained length, 2π/θ_e ≤ L; the other pairs
    are slow. a and b start as random numbers around the identity matrix: they stand for the other frequencies that
    linear maps and activations mix into each dimension. The paper keeps them fixed; ``requires_grad_(False)`` does so.
    Scores depend on relative positions only approximately. With z = 1 + i, as the paper's listing has it, the products
    of slow pairs count twice. The authors' code rotates at most head_dim/4 pairs, however many frequencies there are.

    Args:
        num_heads: the number of query heads, at least 1.
        head_dim: the width of each head, even.
        max_length: L, the length of training sequences, at least 7.
        num_kv_heads: the number of key and value heads, a divisor of num_heads; num_heads if None. Queries that share
            a key head share its coefficients.
        gain: the gain of the Xavier normal distribution of the coefficients, not below 0: 0.3 for the paper's models of
            60 million parameters, more for larger ones. 0 is RoPE whose slow pairs do not turn and count twice.
        normalize: whether the coefficients of each sum are divided by their sum, as in the paper's listing. This is far
            from stable if they are learned; other implementations do not do it.
        base: the base of the frequencies, above 1.
        layout: which dimensions form the pair c: (2c, 2c+1) for "interleaved", (c, c + head_dim/2) for "half".

    Attributes:
        cos_coefficients: a, [num_kv_heads, fast pairs, fast pairs].
        sin_coefficients: b, likewise.

    Shape:
        x: [batch, heads, n, head_dim]
        positions: [batch, n]
        Output: [batch, heads, n, head_dim]

    Raises:
        HeadwayError: if max_length is below 7, gain is below 0 or not finite, or the numbers of heads do not fit.

    References:
        Hua et al. 2025, section 4 and appendix.
    """

    name = "fope"
    citation = "hua2025fourier"
    year = 2024
    kind = "encoding"
    evidence = "independent"

    cos_coefficients: nn.Parameter
    sin_coefficients: nn.Parameter

    def __init__(
        self,
        num_heads: int,
        head_dim: int,
        max_length: int = 512,
        num_kv_heads: int | None = None,
        gain: float = 0.3,
        normalize: bool = False,
        base: float = 10000.0,
        layout: str = "half",
    ) -> None:
        super().__init__(num_heads, head_dim, num_kv_heads, layout)
        need_base(base)
        need_finite(gain=gain)
        if max_length < 2 * math.pi:
            raise HeadwayError(f"max_length is {max_length}: no pair completes a rotation within it, give at least 7")
        if gain < 0:
            raise HeadwayError(f"gain is {gain}: give 0 or more, such as 0.3")
        self.max_length, self.gain, self.normalize, self.base = max_length, gain, normalize, base
        self.fast = sum(max_length * base ** (-2 * c / head_dim) >= 2 * math.pi for c in range(self.pairs))
        for name in ("cos_coefficients", "sin_coefficients"):
            noise = nn.init.xavier_normal_(torch.empty(num_kv_heads or num_heads, self.fast, self.fast), gain)
            setattr(self, name, nn.Parameter(noise + torch.eye(self.fast)))

    def _series(self, waves: Tensor, coefficients: Tensor) -> Tensor:
        """The sums over the fast pairs [b, n, fast], and 1 for the others: [b, num_kv_heads, n, pairs]."""
        found = torch.einsum("bne,hed->bhnd", waves, self._scaled(coefficients))
        return F.pad(found, (0, self.pairs - self.fast), value=1.0)

    def _scaled(self, coefficients: Tensor) -> Tensor:
        wide = coefficients.double()
        return wide / wide.sum(1, keepdim=True) if self.normalize else wide

    def waves(self, coordinates: Coordinates) -> tuple[Tensor, ...]:
        """Returns C and S, each [b, num_kv_heads, n, pairs] in float64."""
        theta = rates(self.pairs, self.head_dim, self.base, coordinates.position.device)[: self.fast]
        phases = coordinates.axis().double()[..., None] * theta
        return self._series(phases.cos(), self.cos_coefficients), self._series(phases.sin(), self.sin_coefficients)

    def _oracle_wave(self, pair: Pair, d: int, token: int) -> complex:
        """z_d of a token."""
        if d >= self.fast:
            return 1 + 1j
        h = pair.h * (self.num_kv_heads or self.num_heads) // self.num_heads
        a, b = (self._scaled(x)[h, :, d].tolist() for x in (self.cos_coefficients, self.sin_coefficients))
        angles = [pair.at(token) * self.base ** (-2 * e / self.head_dim) for e in range(self.fast)]
        cos = sum(a[e] * math.cos(angles[e]) for e in range(self.fast))
        return complex(cos, sum(b[e] * math.sin(angles[e]) for e in range(self.fast)))

    def oracle(self, pair: Pair) -> float:
        total = 0.0
        for d, (first, second) in enumerate(self.dimensions()):
            q, k = complex(pair.query[first], pair.query[second]), complex(pair.key[first], pair.key[second])
            turned = (q * self._oracle_wave(pair, d, pair.i)).conjugate() * (k * self._oracle_wave(pair, d, pair.j))
            total += turned.real
        return pair.scale * total

    @classmethod
    def examples(cls) -> list[PositionEncoding]:
        return [cls(4, 8, 1000), cls(6, 8, 40, num_kv_heads=3, base=500.0, layout="interleaved")]
