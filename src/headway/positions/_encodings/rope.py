"""Rotary position embedding."""

from __future__ import annotations

import torch
from torch import Tensor

from ...constants import constant
from ...coordinates import Coordinates
from ...terms import Rotation
from ...tracing import watched
from .._base import PositionEncoding, need_base, rates
from .._rotary import Rotary

KEPT = 1 << 15
"""The angles of a block of consecutive positions whose cosines and sines are kept between calls: 512 KiB."""
CPU = torch.device("cpu")


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

    def __init__(self, head_dim: int, base: float = 10000.0, layout: str = "interleaved") -> None:
        super().__init__(head_dim, layout)
        need_base(base)
        self.base = base

    def frequencies(self, coordinates: Coordinates) -> Tensor:
        """Returns ω_c = base^(−2c/head_dim), [pairs] in float64."""
        return rates(self.pairs, self.head_dim, self.base, coordinates.position.device)

    def tables(self, coordinates: Coordinates) -> tuple[Tensor, ...] | None:
        """Returns ``waves``; those of consecutive positions are taken from a block that is kept between calls."""
        # watched first, since lengths are symbols in a compiler
        if type(self) is not RoPE or watched() or not coordinates.consecutive or coordinates.start is None:
            return super().tables(coordinates)
        start, n = coordinates.start, coordinates.index.shape[1]
        if start % self._block + n > self._block:
            return super().tables(coordinates)
        first, cos, sin = self._kept_waves(start, coordinates.position.device)
        at = start - first
        return cos[:, :, at : at + n], sin[:, :, at : at + n]

    def rotation_block(self, position: int) -> tuple[int, Rotation] | None:
        if type(self) is not RoPE or isinstance(self.base, Tensor):  # which may require a gradient
            return None
        first, cos, sin = self._kept_waves(position, CPU)
        return first, Rotation(cos, sin, self.layout)

    @property
    def _block(self) -> int:
        """The positions of a block."""
        return max(KEPT // self.pairs, 1)

    def _kept_waves(self, position: int, device: torch.device) -> tuple[int, Tensor, Tensor]:
        """The first position of the block that has a position, and the ``waves`` of the block."""
        first = position - position % self._block
        return first, *constant(_waves, self._block, first, self.pairs, self.head_dim, self.base, device=device)

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
