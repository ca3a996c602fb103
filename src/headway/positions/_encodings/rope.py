"""Rotary position embedding."""

from __future__ import annotations

from torch import Tensor

from ...coordinates import Coordinates
from .._base import PositionEncoding
from .._formulas import need_base, rates
from .._rotary import Rotary


class RoPE(Rotary):
    """Rotates the pairs of each query and key by their position, so that scores depend on relative positions only.

        score[i,j] = s·⟨R(pᵢ)·qᵢ, R(pⱼ)·kⱼ⟩ = s·⟨qᵢ, R(pⱼ − pᵢ)·kⱼ⟩
        R(p) rotates the pair c by the angle p·ω_c,   ω_c = base^(−2c/head_dim)

    The layout "interleaved" is that of RoFormer, GPT-J and Meta's Llama; "half" is that of GPT-NeoX and Hugging Face's
    Llama. Weights trained with one layout do not fit the other. Angles are computed in float64, the rotation in
    float32, or in float64 for float64 input.

    Args:
        head_dim: the width of each head, even.
        base: the base of the frequencies, above 1.
        layout: which dimensions form the pair c: (2c, 2c+1) for "interleaved", (c, c + head_dim/2) for "half".

    Shape:
        x: [batch, heads, n, head_dim]
        Output: [batch, heads, n, head_dim]

    Raises:
        HeadwayError: if head_dim is odd, base is 1 or less, layout is unknown, or x has another head_dim.

    References:
        Su et al. 2021, section 3.2.
    """

    name = "rope"
    citation = "su2024roformer"
    year = 2021
    evidence = "independent"
    constant_rates = True

    def __init__(self, head_dim: int, base: float = 10000.0, layout: str = "interleaved") -> None:
        super().__init__(head_dim, layout)
        need_base(base)
        self.base = base

    def frequencies(self, coordinates: Coordinates) -> Tensor:
        """Returns ω_c = base^(−2c/head_dim), [pairs] in float64."""
        return rates(self.pairs, self.head_dim, self.base, coordinates.position.device)

    def oracle_frequency(self, c: int, coordinates: Coordinates) -> float:
        return float(self.base ** (-2 * c / self.head_dim))

    @classmethod
    def examples(cls) -> list[PositionEncoding]:
        return [cls(8), cls(8, base=500.0, layout="half")]
