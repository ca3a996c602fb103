"""A learned function of the distance relative to the query's position."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from ...coordinates import Coordinates
from ...errors import HeadwayError, need_positive
from ...terms import DistanceBias, Stretched
from .._base import Input, Pair, PositionEncoding, Terms


class FIRE(PositionEncoding):
    """Adds a small network's output for the distance as a fraction of the query's position.

        score[h,i,j] = s·⟨qᵢ, kⱼ⟩ + f_h( ln(c·|pⱼ − pᵢ| + 1) / (ln(c·max(pᵢ, L) + 1) + 10⁻⁶) )
        f = outer·relu(inner·t + …) + …,   c = |c|,   L = |threshold·multiplier|

    Under a causal mask the fraction lies within 0 … 1 at every length. For later keys it is computed from |pⱼ − pᵢ| too
    and may exceed 1, a case that the paper does not discuss. The bias depends on the query's position, never on the
    length, so that a model can decode token by token.

    This is the paper's listing. Other code under this name computes another function: with a threshold of 256, or with
    min(pᵢ, L) in place of the maximum and two hidden layers without biases. A ReLU network of one number is piecewise
    linear, and kernels get it in that form, exactly.

    Args:
        num_heads: the number of query heads, at least 1.
        hidden: the number of hidden units, at least 1.
        c: the initial value of c, above 0.
        threshold: L at the initial multiplier, above 0.

    Attributes:
        inner: the linear layer 1 → hidden; meant to be shared by the layers of a stack, as are the others.
        outer: the linear layer hidden → num_heads.
        c: [1], learned.
        multiplier: [1], learned, initially 1.

    Raises:
        HeadwayError: if a size is below 1, or c or threshold is not above 0.

    References:
        Li et al. 2024.
    """

    name = "fire"
    citation = "li2024functional"
    year = 2023
    evidence = "independent"
    extrapolates = True

    def __init__(self, num_heads: int, hidden: int = 32, c: float = 0.1, threshold: float = 512.0) -> None:
        super().__init__()
        need_positive(num_heads=num_heads, hidden=hidden)
        for name, value in (("c", c), ("threshold", threshold)):
            if not 0 < value < math.inf:
                raise HeadwayError(f"{name} is {value}: give a number above 0")
        self.num_heads, self.hidden, self.threshold = num_heads, hidden, threshold
        self.inner, self.outer = nn.Linear(1, hidden), nn.Linear(hidden, num_heads)
        self.c, self.multiplier = nn.Parameter(torch.tensor([c])), nn.Parameter(torch.ones(1))

    def terms(self, q_at: Coordinates, k_at: Coordinates, q_input: Input = None, k_input: Input = None) -> Terms:
        """Returns the bias as a piecewise linear function, with the factor of each query's distances."""
        c, limit = self.c.double().abs(), (self.threshold * self.multiplier.double()).abs()
        reach = torch.maximum(q_at.axis().double(), limit)
        stretch = 1 / (torch.log1p(c * reach) + 1e-6)
        return (DistanceBias(Stretched(*self._pieces(), c, stretch)),)

    def _pieces(self) -> tuple[Tensor, Tensor, Tensor]:
        """Boundaries of the pieces [hidden] and their intercepts and slopes [num_heads, hidden + 1], in float64."""
        a, b = self.inner.weight[:, 0].double(), self.inner.bias.double()
        weight, bias = self.outer.weight.double(), self.outer.bias.double()
        # a unit with slope 0 is active everywhere or nowhere: its bend is at −∞ or ∞
        bends = torch.where(a == 0, torch.where(b > 0, -math.inf, math.inf), -b / torch.where(a == 0, 1.0, a)).detach()
        edges, order = bends.sort()
        past = order.argsort()[:, None] < torch.arange(len(order) + 1, device=a.device)  # the piece is beyond the bend
        active = (past == (a >= 0)[:, None]).double()
        return edges, (weight * b) @ active + bias[:, None], (weight * a) @ active

    def oracle(self, pair: Pair) -> float:
        c, limit = abs(self.c.item()), abs(self.threshold * self.multiplier.item())
        far, reach = abs(pair.distance), max(pair.at(pair.i), limit)
        t = math.log(c * far + 1) / (math.log(c * reach + 1) + 1e-6)
        units = [
            max(0.0, a * t + b) for (a,), b in zip(self.inner.weight.tolist(), self.inner.bias.tolist(), strict=True)
        ]
        f = sum(w * u for w, u in zip(self.outer.weight[pair.h].tolist(), units, strict=True))
        return pair.scale * pair.dot + f + self.outer.bias[pair.h].item()

    @classmethod
    def examples(cls) -> list[PositionEncoding]:
        return [cls(4), cls(6, hidden=5, c=1.0, threshold=3.0)]
