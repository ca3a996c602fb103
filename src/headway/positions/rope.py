"""Rotary position encoding."""

from __future__ import annotations

import cmath

import torch
from torch import Tensor

from ..coordinates import Coordinates
from ..errors import HeadwayError
from ._base import PositionEncoding, angles, at, need_base, need_positive, need_width, rates

LAYOUTS = ("interleaved", "half")


class RoPE(PositionEncoding):
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

    citation = """@article{su2024roformer,
  title   = {{RoFormer}: Enhanced Transformer with Rotary Position Embedding},
  author  = {Su, Jianlin and Lu, Yu and Pan, Shengfeng and Murtadha, Ahmed and Wen, Bo and Liu, Yunfeng},
  journal = {Neurocomputing},
  volume  = {568},
  year    = {2024},
  eprint  = {2104.09864},
  archivePrefix = {arXiv},
}"""

    def __init__(self, head_dim: int, base: float = 10000.0, layout: str = "interleaved") -> None:
        super().__init__()
        need_positive(head_dim=head_dim)
        if head_dim % 2:
            raise HeadwayError(f"head_dim is {head_dim}: RoPE turns pairs, give an even one, such as {head_dim + 1}")
        need_base(base)
        if layout not in LAYOUTS:
            raise HeadwayError(f"layout is {layout!r}: give {' or '.join(map(repr, LAYOUTS))}")
        self.head_dim, self.base, self.layout = head_dim, base, layout

    def tables(self, coordinates: Coordinates) -> tuple[Tensor, Tensor]:
        """cos and sin of the angles, [b, n, head_dim/2] in float64."""
        angle = angles(coordinates, rates(self.head_dim // 2, self.head_dim, self.base, coordinates.position.device))
        return angle.cos(), angle.sin()

    def prepare(self, x: Tensor, coordinates: Coordinates) -> Tensor:
        """R(p)·x for x [batch, heads, n, head_dim]."""
        need_width(x, "head_dim", self.head_dim)
        wide = torch.promote_types(x.dtype, torch.float32)
        cos, sin = (table[:, None].to(wide) for table in self.place(coordinates).tables)
        if self.layout == "interleaved":
            a, b = x.to(wide).unflatten(-1, (-1, 2)).unbind(-1)
            return torch.stack([a * cos - b * sin, a * sin + b * cos], dim=-1).flatten(-2).to(x.dtype)
        a, b = x.to(wide).chunk(2, dim=-1)
        return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1).to(x.dtype)

    def oracle(
        self,
        h: int,
        i: int,
        j: int,
        q: Tensor,
        k: Tensor,
        x: Tensor | None,
        coordinates: Coordinates,
        scale: float,
    ) -> float:
        half, total = self.head_dim // 2, 0.0
        for c in range(half):
            first, second = (2 * c, 2 * c + 1) if self.layout == "interleaved" else (c, c + half)
            a = complex(q[h, i, first], q[h, i, second])
            b = complex(k[h, j, first], k[h, j, second])
            distance = at(coordinates, j) - at(coordinates, i)
            total += (a.conjugate() * b * cmath.exp(1j * distance * self.base ** (-2 * c / self.head_dim))).real
        return scale * total

    @classmethod
    def examples(cls) -> list[PositionEncoding]:
        return [cls(8), cls(8, base=500.0, layout="half")]
