import cmath

import torch
from torch import Tensor

from headway import Coordinates
from headway.positions import Pair, PositionEncoding


class Turn(PositionEncoding):
    """Rotates pairs of dimensions, c and c + d/2, by angles that grow with the position.

    s(i, j) = Re Σ_c q_c·conj(k_c)·exp(i·(p_i − p_j)·ω_c),  ω_c = base^(−2c/d),  x_c + i·x_{c+d/2} as one number
    """

    name = "turn"
    citation = "@misc{turn, title={An example of headway's own}}"

    def __init__(self, head_dim: int, base: float = 10000.0) -> None:
        super().__init__()
        self.head_dim, self.base = head_dim, base

    def prepare(self, x: Tensor, coordinates: Coordinates) -> Tensor:
        pairs = torch.arange(0, self.head_dim, 2, dtype=torch.float64, device=x.device)
        angles = coordinates.axis().double()[:, None, :, None] * self.base ** (-pairs / self.head_dim)
        cos, sin = angles.cos(), angles.sin()
        first, second = x.chunk(2, dim=-1)
        return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)

    def oracle(self, pair: Pair) -> float:
        score, half = 0.0, self.head_dim // 2
        for c in range(half):
            q = complex(pair.query[c], pair.query[c + half])
            k = complex(pair.key[c], pair.key[c + half])
            angle = -pair.distance * self.base ** (-2 * c / self.head_dim)
            score += (q * k.conjugate() * cmath.exp(1j * angle)).real
        return pair.scale * score

    @classmethod
    def examples(cls) -> list[PositionEncoding]:
        return [cls(head_dim=8), cls(head_dim=16, base=100.0)]
