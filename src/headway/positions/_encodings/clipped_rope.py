"""Rotary position embedding whose slowest frequencies fade to zero."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ...coordinates import Coordinates
from ...errors import HeadwayError
from .._base import PositionEncoding
from .._rescaled import Rescaled


class ClippedRoPE(Rescaled):
    """Multiplies the slowest frequencies of RoPE by half a cosine that falls from one to zero.

        ω_c = θ_c·½·(1 + cos(π·t/(n − 1))),   t = c − (head_dim/2 − n) for the last n pairs;   ω_c = θ_c before them
        θ_c = base^(−2c/head_dim)

    Slow pairs do not complete a rotation within the trained length, so longer inputs have angles that training did not
    have. Cutting them off at once, as ``HoPE`` and ``ProportionalRoPE`` do, makes scores oscillate with the distance;
    this fades them out. The paper calls it CoPE, as another encoding is called.

    Args:
        head_dim: the width of each head, even.
        clipped: n, at least 2 and at most head_dim/2; None for the authors' 20, or all pairs if there are fewer. A
            single pair keeps its frequency.
        base: the base of the frequencies, above 1.
        layout: which dimensions form the pair c: (2c, 2c+1) for "interleaved", (c, c + head_dim/2) for "half".

    Raises:
        HeadwayError: if clipped is out of range.

    References:
        Li et al. 2026.
    """

    name = "clipped-rope"
    citation = "li2026clipped"
    year = 2026
    kind = "encoding"
    evidence = "authors"
    constant_rates = True

    def __init__(
        self, head_dim: int, clipped: int | None = None, base: float = 10000.0, layout: str = "interleaved"
    ) -> None:
        super().__init__(head_dim, base, layout)
        if clipped is not None and not 2 <= clipped <= self.pairs:
            right = f"give at least 2 and at most {self.pairs}" if self.pairs > 1 else "leave it out"
            raise HeadwayError(f"clipped is {clipped} of {self.pairs} pairs: {right}")
        self.clipped = min(20, self.pairs) if clipped is None else clipped

    def frequencies(self, coordinates: Coordinates) -> Tensor:
        """Returns ω_c, [pairs] in float64; the last one of several is 0."""
        theta = self.theta(coordinates)
        fading = torch.linspace(0.0, math.pi, self.clipped, dtype=torch.float64, device=theta.device).cos()
        return torch.cat(
            [theta[: self.pairs - self.clipped], theta[self.pairs - self.clipped :] * (0.5 + 0.5 * fading)]
        )

    def oracle_frequency(self, c: int, coordinates: Coordinates) -> float:
        t = c - (self.pairs - self.clipped)
        if t <= 0:
            return self.oracle_theta(c)
        return self.oracle_theta(c) * (1 + math.cos(math.pi * t / (self.clipped - 1))) / 2

    @classmethod
    def examples(cls) -> list[PositionEncoding]:
        return [cls(8), cls(8, clipped=3, base=500.0, layout="half")]
