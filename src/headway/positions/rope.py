"""Rotary position encoding."""

from __future__ import annotations

import torch
from torch import Tensor

from ..constants import constant
from ..coordinates import Coordinates
from ._base import PositionEncoding, need_base, rates
from ._rotary import Rotary

FEW, KEPT = 8, 1 << 15
"""Tokens above which the angles of a span are kept from call to call, and angles up to which: 512 KiB."""


class RoPE(Rotary):
    """Queries and keys are turned by their position, pair by pair, so that a product knows only the distance.

        score[i,j] = s·⟨R(pᵢ)·qᵢ, R(pⱼ)·kⱼ⟩ = s·⟨qᵢ, R(pⱼ − pᵢ)·kⱼ⟩
        R(p) turns the pair c by the angle p·ω_c,   ω_c = base^(−2c/head_dim)

    Shapes: x [batch, heads, n, head_dim] → the same; head_dim is even.
    layout says which dimensions are the pair c: (2c, 2c+1) "interleaved" (RoFormer, GPT-J, Meta's Llama) or
    (c, c + head_dim/2) "half" (GPT-NeoX, Hugging Face's Llama). Weights trained with one do not fit the other.
    Angles are float64; the turn is done in float32, or float64 for float64 input.
    Raises HeadwayError for an odd head_dim, a base of 1 or less, an unknown layout, x of another head_dim.
    Cite: Su et al. 2021, section 3.2.
    """

    name = "rope"
    citation = "su2024roformer"
    year = 2021
    evidence = "independent"

    def __init__(self, head_dim: int, base: float = 10000.0, layout: str = "interleaved") -> None:
        super().__init__(head_dim, layout)
        need_base(base)
        self.base = base

    def frequencies(self, coordinates: Coordinates) -> Tensor:
        """ω_c = base^(−2c/head_dim)"""
        return rates(self.pairs, self.head_dim, self.base, coordinates.position.device)

    def tables(self, coordinates: Coordinates) -> tuple[Tensor, ...] | None:
        """``waves``; those of a span are kept from call to call."""
        n, start = coordinates.index.shape[1], coordinates.start
        kept = type(self) is RoPE and coordinates.consecutive
        # in this order: a compiler carries lengths as symbols
        if not kept or torch.compiler.is_compiling() or not FEW < n <= KEPT // self.pairs:
            return super().tables(coordinates)
        return constant(_waves, n, start, self.pairs, self.head_dim, self.base, device=coordinates.position.device)

    def oracle_frequency(self, c: int, coordinates: Coordinates) -> float:
        return float(self.base ** (-2 * c / self.head_dim))

    @classmethod
    def examples(cls) -> list[PositionEncoding]:
        return [cls(8), cls(8, base=500.0, layout="half")]


def _waves(n: int, start: int, pairs: int, width: int, base: float, device: torch.device) -> tuple[Tensor, Tensor]:
    """cos φ and sin φ of the positions start … start + n − 1, [1, 1, n, pairs]."""
    position = torch.arange(start, start + n, device=device, dtype=torch.float64)
    phases = (position[:, None] * rates(pairs, width, base, device))[None, None]
    return phases.cos(), phases.sin()
