"""KERPLE's power bias."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...coordinates import Coordinates
from ...errors import need_positive
from ...terms import DistanceBias, Power, Product
from .._base import Input, Pair, PositionEncoding, Terms


class KERPLEPower(PositionEncoding):
    """Subtracts a power of the distance, with a learned weight and a learned exponent for each head.

        score[h,i,j] = s·⟨qᵢ, kⱼ⟩·w_h(δ) − r1_h·|δ|^r2_h,   δ = pⱼ − pᵢ,   r1_h > 0,   0 < r2_h < 2
        w_h(δ) = exp(−r3_h·|δ|^r4_h),   r3_h > 0,   0 < r4_h < 2,   with weight_kernel; otherwise 1

    r1 and r3 are the softplus of their parameters, r2 and r4 twice the sigmoid. The authors' code instead clamps r1 to
    at least 0.01 and r2 to 0.01 … 2 in each forward pass. The initial values are those of the authors' code: r1, r3 ~
    U(0, 1), r2, r4 ~ U(0, 2). Both directions are treated alike.

    Args:
        num_heads: the number of query heads, at least 1.
        weight_kernel: whether the product of query and key is multiplied by w; only the reference kernel computes this.

    Attributes:
        raw_weight: [num_heads], for r1; meant to be shared by the layers of a stack, as are the others.
        raw_exponent: [num_heads], for r2.
        raw_decay: [num_heads], for r3, with weight_kernel.
        raw_decay_exponent: [num_heads], for r4, with weight_kernel.

    Raises:
        HeadwayError: if num_heads is below 1.

    References:
        Chi et al. 2022.
    """

    name = "kerple-power"
    citation = "chi2022kerple"
    year = 2022
    evidence = "authors"
    extrapolates = True

    def __init__(self, num_heads: int, weight_kernel: bool = False) -> None:
        super().__init__()
        need_positive(num_heads=num_heads)
        self.num_heads, self.weight_kernel = num_heads, weight_kernel
        self.raw_weight = nn.Parameter(self.raw(torch.rand(num_heads)))
        self.raw_exponent = nn.Parameter(self.raw_power(2 * torch.rand(num_heads)))
        if weight_kernel:
            self.raw_decay = nn.Parameter(self.raw(torch.rand(num_heads)))
            self.raw_decay_exponent = nn.Parameter(self.raw_power(2 * torch.rand(num_heads)))

    @staticmethod
    def raw(value: Tensor) -> Tensor:
        """Returns the parameter whose softplus is max(value, 0.01).

        Args:
            value: r1 or r3, of any shape.
        """
        return value.clamp(min=0.01).expm1().log()

    @staticmethod
    def raw_power(value: Tensor) -> Tensor:
        """Returns the parameter x with 2·sigmoid(x) = ``value``, clamped to 0.01 … 1.99.

        Args:
            value: r2 or r4, of any shape.
        """
        return (value.clamp(0.01, 1.99) / 2).logit()

    def terms(self, q_at: Coordinates, k_at: Coordinates, q_input: Input = None, k_input: Input = None) -> Terms:
        """Returns the bias by a power of the distance and, with weight_kernel, the weighted product."""
        bias = DistanceBias(Power(*_positive(self.raw_weight, self.raw_exponent)))
        if not self.weight_kernel:
            return (bias,)
        query, key = q_at.axis(), k_at.axis()

        def weighted(q: Tensor, k: Tensor, rows: Tensor, rate: Tensor, power: Tensor) -> Tensor:
            apart = (key[:, None, None] - query[:, None, rows, None]).abs().to(q.dtype)
            # 0^e has no finite gradient in e
            raised = torch.where(apart == 0, 0.0, torch.where(apart == 0, 1.0, apart) ** power[:, None, None])
            return q @ k.transpose(-1, -2) * torch.exp(-rate[:, None, None] * raised)

        return bias, Product(weighted, _positive(self.raw_decay, self.raw_decay_exponent))

    def oracle(self, pair: Pair) -> float:
        score, far = pair.scale * pair.dot, abs(pair.distance)
        softplus, sigmoid = (lambda x: math.log(1 + math.exp(x))), (lambda x: 1 / (1 + math.exp(-x)))
        r1, r2 = softplus(self.raw_weight[pair.h].item()), 2 * sigmoid(self.raw_exponent[pair.h].item())
        if self.weight_kernel:
            r3, r4 = softplus(self.raw_decay[pair.h].item()), 2 * sigmoid(self.raw_decay_exponent[pair.h].item())
            score *= math.exp(-r3 * far**r4)
        return score - r1 * far**r2

    @classmethod
    def examples(cls) -> list[PositionEncoding]:
        return [cls(4), cls(6, weight_kernel=True)]


def _positive(raw: Tensor, raw_power: Tensor) -> tuple[Tensor, Tensor]:
    """Returns a factor above 0 and an exponent within 0 … 2, in float64."""
    return F.softplus(raw.double()), 2 * raw_power.double().sigmoid()
