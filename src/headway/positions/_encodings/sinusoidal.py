"""The sinusoidal position encoding of the original Transformer."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ...coordinates import Coordinates
from ...errors import HeadwayError, need_positive
from .._base import PositionEncoding, added, angles, at, need_base, need_width, rates

VARIANTS = ("paper", "tensor2tensor")


class Sinusoidal(PositionEncoding):
    """Adds sines and cosines of geometrically spaced wavelengths to the embeddings.

        PE(p, 2c) = sin(p·ω_c),  PE(p, 2c+1) = cos(p·ω_c),  ω_c = base^(−2c/D)       variant="paper"
        PE(p) = [sin(p·ω) | cos(p·ω)],                      ω_c = base^(−c/(D/2−1))   variant="tensor2tensor"

    The authors' own code is the second variant: it concatenates sines and cosines, and its last wavelength is exactly
    2π·base. fairseq uses the same variant with positions that start at 2. Multiply the embeddings by √D first;
    otherwise the encoding is larger than they are.

    Args:
        embed_dim: D, the width of the embeddings, even.
        base: the base of the frequencies, above 1.
        variant: "paper" or "tensor2tensor", as above.

    Shape:
        x: [batch, n, embed_dim]
        Output: [batch, n, embed_dim]

    Raises:
        HeadwayError: if embed_dim is odd, base is 1 or less, or variant is unknown.

    References:
        Vaswani et al. 2017, section 3.5.
    """

    name = "sinusoidal"
    citation = "vaswani2017attention"
    year = 2017
    evidence = "independent"

    def __init__(self, embed_dim: int, base: float = 10000.0, variant: str = "paper") -> None:
        super().__init__()
        need_positive(embed_dim=embed_dim)
        if embed_dim % 2:
            raise HeadwayError(f"embed_dim is {embed_dim}: sines and cosines need an even one, such as {embed_dim + 1}")
        need_base(base)
        if variant not in VARIANTS:
            raise HeadwayError(f"variant is {variant!r}: give {' or '.join(map(repr, VARIANTS))}")
        self.embed_dim, self.base, self.variant = embed_dim, base, variant

    def embed(self, x: Tensor, coordinates: Coordinates | Tensor | None = None) -> Tensor:
        """Returns x + PE(positions), [batch, n, embed_dim]."""
        need_width(x, "embed_dim", self.embed_dim)
        coordinates = self.coordinates_for(x, coordinates)
        paper = self.variant == "paper"
        width = self.embed_dim if paper else max(self.embed_dim - 2, 1)
        angle = angles(coordinates, rates(self.embed_dim // 2, width, self.base, x.device))
        if paper:
            return added(x, torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(-2))
        return added(x, torch.cat([angle.sin(), angle.cos()], dim=-1))

    def oracle_embed(self, x: Tensor, coordinates: Coordinates) -> Tensor:
        x, half = x.clone(), self.embed_dim // 2
        for i in range(x.shape[0]):
            p = at(coordinates, i)
            for c in range(half):
                if self.variant == "paper":
                    angle = p / self.base ** (2 * c / self.embed_dim)
                    x[i, 2 * c] += math.sin(angle)
                    x[i, 2 * c + 1] += math.cos(angle)
                else:
                    angle = p * math.exp(-c * math.log(self.base) / max(half - 1, 1))
                    x[i, c] += math.sin(angle)
                    x[i, half + c] += math.cos(angle)
        return x

    @classmethod
    def examples(cls) -> list[PositionEncoding]:
        return [cls(32), cls(48, base=500.0, variant="tensor2tensor")]
