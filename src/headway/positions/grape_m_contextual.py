"""Rotary encoding with learned frequencies, along a position that content advances."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..coordinates import Coordinates
from ..errors import HeadwayError, need_finite
from ._base import Pair, PositionEncoding, need_base, rates
from ._content import projected, summed
from ._content_rotary import ContentRotary

GATES = ("sigmoid", "softplus")


class GRAPEMContextual(ContentRotary):
    """Each token advances the position by a step that its content sets; frequencies are learned (contextual GRAPE-M).

        φ_c(t) = −P(t)·ω_c,   P(t) = Σ_{u<t} g(⟨w, x_u⟩ + b),   ω_c = exp(log_frequencies_c)
        g(z) = σ(z/gate_scale) "sigmoid", or ln(1 + e^z) "softplus"

    Shapes: w ``weight`` [1, embed_dim] of 0 and b ``bias`` [1] of ln(e^{0.001} − 1), one step for all heads, or one for
    each of the kv_heads with ``per_head``; log_frequencies [head_dim/2] start as RoPE's. The sum leaves the token
    itself out. "sigmoid" with gate_scale 16 is what the authors' code runs, and starts with steps of 0.39; its comments
    and its start of b mean "softplus", which starts with steps of 0.001. Their model as a whole then draws w anew, from
    N(0, 1/(4·embed_dim)), as all its matrices. Pairs and direction as in ``GRAPEM``.
    Raises HeadwayError for sizes below 1, an odd head_dim, a base of 1 or less, an unknown gate, gate_scale below 0 or
    infinite.
    Cite: Zhang et al. 2026, section 3, and the authors' code.
    """

    name = "grape-m-contextual"
    citation = "zhang2026group"
    year = 2025
    evidence = "authors"

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
        self.log_frequencies = nn.Parameter(rates(self.pairs, self.head_dim, base, torch.device("cpu")).log().float())

    def turns(self, x: Tensor, k_at: Coordinates) -> Tensor:
        """φ in float64, [batch, kv_heads or 1, m, pairs]"""
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
