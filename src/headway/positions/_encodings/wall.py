"""Wall attention: a gate for each channel of each token makes the products of queries and keys decay."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...coordinates import Coordinates
from ...errors import need_positive
from ...terms import ChannelDecay
from .._base import Input, Pair, PositionEncoding, Terms
from .._content import Contextual, projected
from .._formulas import normal


class Wall(Contextual):
    """Lets each channel of a key fade by gates that the tokens after it compute (Wall attention).

        score[h,i,j] = s·Σ_c q_ic·k_jc·Π_{t=j+1…i} f_hc(t)
        f_hc(t) = σ(⟨w_hc, x_t⟩ + b_hc),   x the layer's input

    The authors use no other position encoding. Their scalar gate beside it is
    ``Compose(Wall(…), ForgettingGate(…))``. Query heads that share a key head have gates of their own.

    Args:
        embed_dim: the width of the layer's input, at least 1.
        num_heads: the number of query heads, at least 1.
        head_dim: the width of each head, at least 1; embed_dim / num_heads if None.

    Attributes:
        weight: w [num_heads·head_dim, embed_dim], initially N(0, 0.02²).
        bias: b [num_heads·head_dim], initially 8, as in the authors' code: hardly anything fades.

    Raises:
        HeadwayError: if a size is below 1, or x or q has another width.

    References:
        Pai et al. 2026, section 2.
    """

    name = "wall"
    citation = "pai2026wall"
    year = 2026
    evidence = "authors"
    extrapolates = True

    def __init__(self, embed_dim: int, num_heads: int, head_dim: int | None = None) -> None:
        super().__init__()
        need_positive(embed_dim=embed_dim, num_heads=num_heads)
        head_dim = embed_dim // num_heads if head_dim is None else head_dim
        need_positive(head_dim=head_dim)
        self.embed_dim, self.num_heads, self.head_dim = embed_dim, num_heads, head_dim
        self.weight = normal(num_heads * head_dim, embed_dim)
        self.bias = nn.Parameter(torch.full((num_heads * head_dim,), 8.0))

    def log_gates(self, k_at: Coordinates, k_input: Input) -> Tensor:
        """Returns ln f of every token, [batch, num_heads, m, head_dim], 0 for padding in front.

        Args:
            k_at: the coordinates of the keys.
            k_input: the input of the layer's keys, [batch, m, embed_dim].
        """
        logs = F.logsigmoid(projected(self.read(k_input), self.weight, self.bias))
        logs = logs.masked_fill((k_at.index < 0)[..., None], 0)
        return logs.unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2)

    def terms(self, q_at: Coordinates, k_at: Coordinates, q_input: Input = None, k_input: Input = None) -> Terms:
        """Returns the product with decaying channels, which replaces ⟨q, k⟩."""
        return (ChannelDecay(self.log_gates(k_at, k_input)),)

    def oracle(self, pair: Pair) -> float:
        assert pair.x is not None
        total = 0.0
        for c in range(self.head_dim):
            channel = pair.h * self.head_dim + c
            kept = 1.0
            for t in range(pair.j + 1, pair.i + 1):
                logit = float(self.weight[channel].double() @ pair.x[t]) + self.bias[channel].item()
                kept /= 1 + math.exp(-logit)
            total += float(pair.query[c] * pair.key[c]) * kept
        return pair.scale * total

    @classmethod
    def examples(cls) -> list[PositionEncoding]:
        return [cls(32, 4), cls(48, 6)]
