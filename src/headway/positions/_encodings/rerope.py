"""ReRoPE: rotary position embedding whose distances stop growing, or grow slowly, from a window on."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ...coordinates import Coordinates
from ...errors import HeadwayError
from ...terms import LimitedRotation
from .._base import Input, Pair, PositionEncoding, Terms
from .._formulas import need_base, rates
from .._rotary import Rotary


class ReRoPE(Rotary):
    """Limits the distances of RoPE to a window w, or lets them grow slowly beyond it.

        score[i,j] = s·⟨qᵢ, R(f(pⱼ − pᵢ))·kⱼ⟩,   R as in RoPE
        f(δ) = δ for |δ| < w, else ±(w + leak·(|δ| − w)) with the sign of δ

    Both directions are treated alike; the authors' code is for a causal mask. Near, past and future keys are rotated
    separately, and each pair of tokens uses one of these products. Keys are cached unrotated. The authors' code also
    multiplies queries by max(1, ln(p + 1)/ln(L)): compose this with that temperature.

    Args:
        head_dim: the width of each head, even.
        window: w, above 0; 512 in the authors' code, of 4096 trained tokens.
        leak: 0 for ReRoPE, which has no distance above w in any sequence; above 0 and below 1 for Leaky ReRoPE, whose k
            is 1/leak.
        base: the base of the frequencies, above 1.
        layout: which dimensions form the pair c: (2c, 2c+1) for "interleaved", (c, c + head_dim/2) for "half".

    Raises:
        HeadwayError: if head_dim is odd, base is 1 or less, window is 0 or less, or leak is out of range.

    References:
        Su 2023.
    """

    name = "rerope"
    citation = "su2023rerope"
    year = 2023
    kind = "scaling"
    evidence = "authors"
    extrapolates = True

    prepare = PositionEncoding.prepare

    def __init__(
        self,
        head_dim: int,
        window: float = 512,
        leak: float = 0.0,
        base: float = 10000.0,
        layout: str = "interleaved",
    ) -> None:
        super().__init__(head_dim, layout)
        need_base(base)
        if not 0 < window < math.inf:
            raise HeadwayError(f"window is {window}: give a distance above 0, such as 512")
        if not 0 <= leak < 1:
            raise HeadwayError(f"leak is {leak}: give 0, or a number below 1 such as 0.0625")
        self.window, self.leak, self.base = window, leak, base

    def frequencies(self, coordinates: Coordinates) -> Tensor:
        """Returns ω_c of RoPE, [pairs] in float64."""
        return rates(self.pairs, self.head_dim, self.base, coordinates.position.device)

    def tables(self, coordinates: Coordinates) -> tuple[Tensor, Tensor]:
        """Returns cosines and sines [4, b, 1, n, pairs]: of positions, far keys, and queries after and before these."""
        near = coordinates.axis().double()
        far, shift = self.leak * near, (1 - self.leak) * self.window
        places = torch.stack([near, far, far + shift, far - shift])
        phases = (places[..., None] * self.frequencies(coordinates))[:, :, None]
        return phases.cos(), phases.sin()

    def terms(self, q_at: Coordinates, k_at: Coordinates, q_input: Input = None, k_input: Input = None) -> Terms:
        """Returns the product of queries and keys, rotated separately for near pairs and for far ones."""
        (q_cos, q_sin), (k_cos, k_sin) = self.place(q_at).tables, self.place(k_at).tables
        of_queries = (q_cos[[0, 2, 3]], q_sin[[0, 2, 3]])
        turned = LimitedRotation(self.window, *of_queries, k_cos[:2], k_sin[:2], layout=self.layout)
        return (turned,)

    def oracle_frequency(self, c: int, coordinates: Coordinates) -> float:
        return float(self.base ** (-2 * c / self.head_dim))

    def oracle_angle(self, pair: Pair, c: int, token: int) -> float:
        """Returns 0 for the query, and for the key the angle of the whole limited distance."""
        delta = pair.distance if token == pair.j else 0.0
        if abs(delta) >= self.window:
            delta = math.copysign(self.window + self.leak * (abs(delta) - self.window), delta)
        return delta * self.oracle_frequency(c, pair.coordinates)

    @classmethod
    def examples(cls) -> list[PositionEncoding]:
        return [cls(8, window=3), cls(8, window=2.5, leak=0.25, base=500.0, layout="half")]
