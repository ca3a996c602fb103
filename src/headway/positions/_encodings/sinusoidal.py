"""The sinusoidal position encoding of the original Transformer."""

from __future__ import annotations

import math
from itertools import product

import torch
from torch import Tensor

from ...coordinates import Coordinates
from ...errors import HeadwayError, need_positive
from .._base import PositionEncoding
from .._formulas import added, at, need_base, need_width, rates

VARIANTS = ("paper", "tensor2tensor", "concatenated")


class Sinusoidal(PositionEncoding):
    """Adds sines and cosines of geometrically spaced wavelengths to the embeddings.

        PE(p, 2c) = sin(p·ω_c),  PE(p, 2c+1) = cos(p·ω_c),  ω_c = base^(−2c/D)       variant="paper"
        PE(p) = [sin(p·ω) | cos(p·ω)],                      ω_c = base^(−c/(D/2−1))   variant="tensor2tensor"
        PE(p) = [sin(p·ω) | cos(p·ω)],                      ω_c = base^(−2c/D)        variant="concatenated"
        PE(p) = [PE(p₁) | PE(p₂) | …], each of width D/axes                           on several axes

    The authors' own code is the second variant: it concatenates sines and cosines, and its last wavelength is exactly
    2π·base. fairseq uses the same variant with positions that start at 2. Marian has the third one. Multiply the
    embeddings by √D first; otherwise the encoding is larger than they are.

    On two axes, "concatenated" with (column, row) is the code of MAE, and with (row, column) that of transformers'
    ViT-MAE. DETR has "paper" with (row, column), where the row is (i + 1)/(rows + 1e-6)·2π, and so the column.

    Args:
        embed_dim: D, the width of the embeddings, a multiple of 2·axes.
        base: the base of the frequencies, above 1.
        variant: "paper", "tensor2tensor" or "concatenated", as above.
        axes: the number of axes of the positions, at least 1.

    Shape:
        x: [batch, n, embed_dim]
        positions: [batch, n, axes]
        Output: [batch, n, embed_dim]

    Raises:
        HeadwayError: if 2·axes does not divide embed_dim, base is 1 or less, or variant is unknown.

    References:
        Vaswani et al. 2017, section 3.5; Carion et al. 2020 (DETR) and He et al. 2022 (MAE), on two axes.
    """

    name = "sinusoidal"
    citation = "vaswani2017attention"
    year = 2017
    evidence = "independent"

    def __init__(self, embed_dim: int, base: float = 10000.0, variant: str = "paper", axes: int = 1) -> None:
        super().__init__()
        need_positive(embed_dim=embed_dim, axes=axes)
        if embed_dim % (2 * axes):
            wider = embed_dim + -embed_dim % (2 * axes)
            wanted = "an even one" if axes == 1 else f"a multiple of {2 * axes} for {axes} axes"
            raise HeadwayError(f"embed_dim is {embed_dim}: sines and cosines need {wanted}, such as {wider}")
        need_base(base)
        if variant not in VARIANTS:
            raise HeadwayError(
                f"variant is {variant!r}: give {', '.join(map(repr, VARIANTS[:-1]))} or {VARIANTS[-1]!r}"
            )
        self.embed_dim, self.base, self.variant, self.axes = embed_dim, base, variant, axes

    def embed(self, x: Tensor, coordinates: Coordinates | Tensor | None = None) -> Tensor:
        """Returns x + PE(positions), [batch, n, embed_dim]."""
        need_width(x, "embed_dim", self.embed_dim)
        coordinates = self.coordinates_for(x, coordinates)
        share = self.embed_dim // coordinates.position.shape[-1]  # of each axis
        width = max(share - 2, 1) if self.variant == "tensor2tensor" else share
        angle = coordinates.position.double()[..., None] * rates(share // 2, width, self.base, x.device)
        if self.variant == "paper":
            return added(x, torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(-3))
        return added(x, torch.cat([angle.sin(), angle.cos()], dim=-1).flatten(-2))

    def oracle_embed(self, x: Tensor, coordinates: Coordinates) -> Tensor:
        x, axes = x.clone(), coordinates.position.shape[-1]
        share = self.embed_dim // axes
        half = share // 2
        for i, axis, c in product(range(x.shape[0]), range(axes), range(half)):
            p, first = at(coordinates, i, axis), axis * share
            if self.variant == "paper":
                angle = p / self.base ** (2 * c / share)
                x[i, first + 2 * c] += math.sin(angle)
                x[i, first + 2 * c + 1] += math.cos(angle)
            else:
                steps = half if self.variant == "concatenated" else max(half - 1, 1)
                angle = p * math.exp(-c * math.log(self.base) / steps)
                x[i, first + c] += math.sin(angle)
                x[i, first + half + c] += math.cos(angle)
        return x

    @classmethod
    def examples(cls) -> list[PositionEncoding]:
        return [cls(32), cls(48, base=500.0, variant="tensor2tensor"), cls(48, variant="concatenated", axes=2)]
