"""Contextual multiplicative GRAPE: learned frequencies, and positions that content advances."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...coordinates import Coordinates
from ...errors import HeadwayError, need_finite
from .._base import Pair, PositionEncoding
from .._content import projected, summed
from .._content_rotary import ContentRotary
from .._formulas import need_base, rates

GATES = ("sigmoid", "softplus")


class GRAPEMContextual(ContentRotary):
    """Rotates with learned frequencies by positions whose steps each token determines (contextual GRAPE-M).

        φ_c(t) = −P(t)·ω_c,   P(t) = Σ_{u<t} g(⟨w, x_u⟩ + b),   ω_c = exp(log_frequencies_c)
        g(z) = σ(z/gate_scale) "sigmoid", or ln(1 + e^z) "softplus"

    The sum does not include the token itself. "sigmoid" with gate_scale 16 is the authors' code, and
    starts with steps of 0.39; its comments and its initial b imply "softplus", which starts with steps of 0.001. Their
    model as a whole then draws w again from N(0, 1/(4·embed_dim)), like all its matrices. Pairs and direction are as in
    ``GRAPEM``.

    Args:
        embed_dim: the width of the layer's input, at least 1.
        num_heads: the number of query heads, at least 1.
        head_dim: the width of each head, even; embed_dim / num_heads if None.
        num_kv_heads: the number of key and value heads, a divisor of num_heads; num_heads if None.
        base: the base of the initial frequencies, above 1.
        gate: "sigmoid" or "softplus", as above.
        gate_scale: the divisor in the sigmoid, above 0.
        per_head: whether each key head has steps of its own.

    Attributes:
        weight: w [1, embed_dim], or [kv_heads, embed_dim] with per_head; initially 0.
        bias: b [1] or [kv_heads], initially ln(e^{0.001} − 1).
        log_frequencies: [head_dim/2], initially those of RoPE.

    Raises:
        HeadwayError: if a size is below 1, head_dim is odd, base is 1 or less, gate is unknown, or gate_scale is not
            finite and above 0.

    References:
        Zhang et al. 2026, section 3, and the authors' code.
    """

    name = "grape-m-contextual"
    citation = "zhang2026group"
    year = 2025
    evidence = "authors"
    across_shards = True

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        head_dim: int | None = None,
        num_kv_heads: int | None = None,
        base: float = 10000.0,
        gate: str = "sigmoid",
        gate_scale: float = 16.0,
        per_head: bool = False,
    ) -> None:
        super().__init__(embed_dim, num_heads, head_dim, num_kv_heads, "half")
        need_base(base)
        if gate not in GATES:
            raise HeadwayError(f"gate is {gate!r}: give {' or '.join(map(repr, GATES))}")
        if gate_scale <= 0:
            raise HeadwayError(f"gate_scale is {gate_scale}: give a number above 0, such as 16.0")
        need_finite(gate_scale=gate_scale)
        self.base, self.gate, self.gate_scale, self.per_head = base, gate, gate_scale, per_head
        steps = self.num_kv_heads if per_head else 1
        self.weight = nn.Parameter(torch.zeros(steps, embed_dim))
        self.bias = nn.Parameter(torch.full((steps,), math.log(math.expm1(1e-3))))
        start = rates(self.pairs, self.head_dim, base, torch.get_default_device())
        self.log_frequencies = nn.Parameter(start.log().float())

    def turns(self, x: Tensor, k_at: Coordinates) -> Tensor:
        """Returns φ, [batch, kv_heads or 1, m, pairs] in float64."""
        logit = projected(x, self.weight, self.bias)
        step = (logit / self.gate_scale).sigmoid() if self.gate == "sigmoid" else F.softplus(logit)
        place = summed(step, k_at) - step
        return -place.transpose(1, 2)[..., None] * self.log_frequencies.double().exp()

    def oracle_angle(self, pair: Pair, c: int, token: int) -> float:
        assert pair.x is not None
        row, place = self.oracle_head(pair.h) if self.per_head else 0, 0.0
        for t in range(token):
            z = float(self.weight[row].double() @ pair.x[t]) + self.bias[row].item()
            place += 1 / (1 + math.exp(-z / self.gate_scale)) if self.gate == "sigmoid" else math.log1p(math.exp(z))
        return -place * math.exp(self.log_frequencies[c].item())

    @classmethod
    def examples(cls) -> list[PositionEncoding]:
        return [cls(32, 4), cls(48, 6, gate="softplus", per_head=True)]
