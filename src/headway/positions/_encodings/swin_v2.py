"""Swin v2: cosine attention, and a bias that a small network computes for each distance."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...coordinates import Coordinates
from ...errors import HeadwayError, need_positive
from ...terms import QueryScale
from .._base import Input, Pair, PositionEncoding, Terms
from .._layers import linear, linear_by_hand
from .._window import Windowed, two

SPACINGS = ("code", "paper")


class SwinV2(Windowed):
    """Replaces products by cosines with a learned temperature, and adds a bias that a network computes.

        score[h,i,j] = τ_h·cos(qᵢ, kⱼ) + 16·σ(f(Δ̂)_h),   τ_h = exp(min(logit_scale_h, ln 100)),   Δ = pᵢ − pⱼ
        f = W₂·relu(W₁·Δ̂ + b₁), W₁ 2 → hidden, W₂ hidden → num_heads
        Δ̂ = sign(Δ)·log₂(1 + 8·|Δ|/(W' − 1)) / 3   spacing="code", W' the window of pre-training, else the own
        Δ̂ = sign(Δ)·ln(1 + |Δ|)                    spacing="paper"

    The authors' code does not compute what the paper writes, and trained models follow the code. Their keys have no
    bias, which is up to the layer. The scale is 1. Distances beyond the window, which do not occur in Swin, count as
    its largest.

    Args:
        num_heads: the number of query heads, at least 1.
        window: one size, or (height, width), at least 1 each.
        pretrained_window: W', likewise; ``window`` if None.
        hidden: the width of the network, at least 1.
        spacing: "code" or "paper", as above.

    Attributes:
        logit_scale: [num_heads, 1, 1], initially ln 10.
        cpb_mlp: the network, initially N(0, 0.02²) and zeros. Names and shapes are those of the authors' code, whose
            checkpoints fit.

    Shape:
        positions: [batch, n, 2] as (y, x)

    Raises:
        HeadwayError: if a size is below 1, a window has other than one or two sizes, or spacing is unknown.

    References:
        Liu et al. 2022, sections 3.2 and 3.3.
    """

    name = "swin-v2"
    citation = "liu2022swin"
    year = 2021
    evidence = "authors"

    def __init__(
        self,
        num_heads: int,
        window: int | Sequence[int] = 8,
        pretrained_window: int | Sequence[int] | None = None,
        hidden: int = 512,
        spacing: str = "code",
    ) -> None:
        super().__init__(num_heads, window, two(window))
        self.pretrained_window = pretrained_window
        self.pretrained_sides = self.sides if pretrained_window is None else two(pretrained_window)
        need_positive(hidden=hidden, pretrained_window=min(self.pretrained_sides))
        if spacing not in SPACINGS:
            raise HeadwayError(f"spacing is {spacing!r}: give {' or '.join(map(repr, SPACINGS))}")
        self.hidden, self.spacing = hidden, spacing
        self.logit_scale = nn.Parameter(torch.full((num_heads, 1, 1), math.log(10)))
        first, second = nn.Linear(2, hidden), nn.Linear(hidden, num_heads, bias=False)
        nn.init.zeros_(first.bias)
        nn.init.trunc_normal_(first.weight, std=0.02)
        nn.init.trunc_normal_(second.weight, std=0.02)
        self.cpb_mlp = nn.Sequential(first, nn.ReLU(), second)

    def prepare(self, x: Tensor, coordinates: Coordinates) -> Tensor:
        """Returns x [batch, heads, n, head_dim] divided by its norm, in float32 or wider."""
        return F.normalize(x.to(torch.promote_types(x.dtype, torch.float32)), dim=-1).to(x.dtype)

    def default_scale(self, head_dim: int) -> float:
        """Returns 1, since the temperature is learned."""
        return 1.0

    def rows(self) -> Tensor:
        """Returns 16·σ(f) for each distance."""
        delta = self.offsets(self.logit_scale.device)
        if self.spacing == "code":
            unit = torch.tensor([max(w - 1, 1) / 8 for w in self.pretrained_sides])
            spaced = (1 + delta.abs() / unit.to(delta)).log2() / 3
        else:
            spaced = delta.abs().log1p()
        return 16 * linear(self.cpb_mlp[2], linear(self.cpb_mlp[0], delta.sign() * spaced).relu()).sigmoid()

    def terms(self, q_at: Coordinates, k_at: Coordinates, q_input: Input = None, k_input: Input = None) -> Terms:
        """Returns the temperature and the bias."""
        factor = self.logit_scale.double().clamp(max=math.log(100)).exp()[None, :, :, 0]
        return QueryScale(factor), *super().terms(q_at, k_at)

    def oracle(self, pair: Pair) -> float:
        delta = self.oracle_offset(pair)
        if self.spacing == "code":
            shares = [8 * abs(d) / max(w - 1, 1) for d, w in zip(delta, self.pretrained_sides, strict=True)]
            spaced = [math.log2(share + 1) / math.log2(8) for share in shares]
        else:
            spaced = [math.log(1 + abs(d)) for d in delta]
        hidden = linear_by_hand(self.cpb_mlp[0], [math.copysign(s, d) for s, d in zip(spaced, delta, strict=True)])
        f = linear_by_hand(self.cpb_mlp[2], [max(0.0, u) for u in hidden])[pair.h]
        cosine = pair.dot / (float(pair.query.norm()) * float(pair.key.norm()))
        return math.exp(min(self.logit_scale[pair.h].item(), math.log(100))) * cosine + 16 / (1 + math.exp(-f))

    @classmethod
    def examples(cls) -> list[PositionEncoding]:
        return [cls(4, hidden=8), cls(6, window=(3, 2), pretrained_window=5, hidden=8, spacing="paper")]
