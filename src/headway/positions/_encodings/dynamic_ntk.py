"""Dynamic NTK scaling: the base of rotary encodings grows with the sequence."""

from __future__ import annotations

import torch
from torch import Tensor

from ...coordinates import Coordinates
from ...errors import need_positive
from .._base import PositionEncoding
from .._formulas import oracle_length, total_length
from .._rescaled import Rescaled, need_factor
from .ntk_aware import need_slow_pairs


class DynamicNTK(Rescaled):
    """Applies RoPE up to the trained length and NTK-aware RoPE with a growing factor to longer sequences.

        ω_c = base'^(−2c/d),   base' = base·(factor·T/L − (factor − 1))^(d/(d − 2)) where T > L, else base

    T is the ``length`` of the coordinates. All keys are rotated again when T grows, so keys are cached unrotated.
    Hugging Face's version keeps the frequencies of the longest sequence so far until one shorter than L comes, so the
    same sequence gives other results after a longer one. Here only the sequence's own length counts.

    Args:
        head_dim: the width of each head; even and above 2 unless ``rotary_dim`` is given.
        factor: the constant in base', at least 1; 1 slows the slowest pair down by T/L, as the paper's dynamic scaling
            does.
        max_length: L, the length the model was trained for, at least 1.
        base: the base of the frequencies, above 1.
        layout: which dimensions form the pair c: (2c, 2c+1) for "interleaved", (c, c + d/2) for "half".
        rotary_dim: d, the number of dimensions rotated, even, above 2 and at most head_dim; head_dim if None.

    Raises:
        HeadwayError: if factor or max_length is below 1, or d is 2.

    References:
        emozilla 2023; Peng et al. 2024, section 3.3.
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
        """Returns ω_c of the base for this length, [b, 1 or n, pairs] in float64."""
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
