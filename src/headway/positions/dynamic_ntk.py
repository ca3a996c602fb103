"""A base for rotary encodings that grows with the sequence."""

from __future__ import annotations

import torch
from torch import Tensor

from ..coordinates import Coordinates
from ..errors import need_positive
from ._base import PositionEncoding, oracle_length, total_length
from ._rescaled import Rescaled, need_factor
from .ntk_aware import need_slow_pairs


class DynamicNTK(Rescaled):
    """RoPE up to the trained length L; for a sequence of T > L tokens, NTK-aware RoPE of a factor that follows T.

        ω_c = base'^(−2c/d),   base' = base·(factor·T/L − (factor − 1))^(d/(d − 2)) where T > L, else base

    max_length is L; d = rotary_dim, or head_dim where that is None; it must be above 2. factor = 1, the default, slows
    the slowest pair down by T/L, as the paper's dynamic scaling.
    T is the ``length`` of the coordinates. As it grows, all keys are turned anew: none is cached turned. Hugging Face's
    keeps the frequencies of the longest sequence it has seen until one shorter than L comes, so that the same sequence
    gives other results after a longer one; here a sequence's own length decides.
    Raises HeadwayError for a factor or max_length below 1 and a d of 2.
    Cite: emozilla 2023; Peng et al. 2024, section 3.3.
    """

    name = "dynamic-ntk"
    citation = "emozilla2023dynamic peng2024yarn"
    year = 2023
    evidence = "authors"
    cache_prepared = False

    def __init__(
        self,
        head_dim: int,
        factor: float = 1.0,
        max_length: int = 2048,
        base: float = 10000.0,
        layout: str = "interleaved",
        rotary_dim: int | None = None,
    ) -> None:
        super().__init__(head_dim, base, layout, rotary_dim)
        need_factor(factor=factor)
        need_positive(max_length=max_length)
        need_slow_pairs(self.width)
        self.factor, self.max_length = factor, max_length

    def frequencies(self, coordinates: Coordinates) -> Tensor:
        """ω_c [b, 1 or n, pairs] of the base for this length"""
        stretch = (self.factor * total_length(coordinates) / self.max_length - (self.factor - 1)).clamp(min=1)
        shares = torch.linspace(0, 1, self.pairs, dtype=torch.float64, device=stretch.device)
        return self.theta(coordinates) * stretch[..., None] ** -shares

    def oracle_frequency(self, c: int, coordinates: Coordinates) -> float:
        T, L, d, base = oracle_length(coordinates), self.max_length, self.width, self.base
        if T > L:
            base = base * (self.factor * T / L - (self.factor - 1)) ** (d / (d - 2))
        return float(base ** (-2 * c / d))

    @classmethod
    def examples(cls) -> list[PositionEncoding]:
        return [cls(8, max_length=7), cls(8, 2.5, 7, base=500.0, layout="half", rotary_dim=6)]
