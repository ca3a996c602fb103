"""Rotary encoding with learned frequencies."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from ..coordinates import Coordinates
from ..errors import HeadwayError, need_finite
from ._base import Pair, PositionEncoding, need_base, rates
from ._rotary import LearnedRotary


class GRAPEM(LearnedRotary):
    """RoPE whose frequencies are learned, which keeps that a product knows only the distance (MS-GRAPE).

        score[i,j] = s·⟨R(−pᵢ·ω)·qᵢ, R(−pⱼ·ω)·kⱼ⟩,   ω_c = exp(log_frequencies_c / log_scale)

    Shapes: log_frequencies [head_dim/2] for all heads, or [num_heads, head_dim/2] with ``per_head``; they start as
    RoPE's, ω_c = base^(−2c/head_dim). log_scale 16, from the authors' code, slows learning: it is a factor on the
    parameter alone. The pairs are (c, c + head_dim/2), and the turn is by −p·ω, the other way round than RoPE's: with
    the same weights its scores are those of RoPE at the positions −p. What is cast to half precision are the
    logarithms; the authors' code keeps them in float32. Per head, keys need as many heads as queries.
    Raises HeadwayError for an odd head_dim, a base of 1 or less, log_scale of 0 or less or infinite, per_head
    without num_heads.
    Cite: Zhang et al. 2026, section 3.
    """

    name = "grape-m"
    citation = "zhang2026group"
    year = 2025
    evidence = "authors"

    def __init__(
        self,
        head_dim: int,
        num_heads: int | None = None,
        base: float = 10000.0,
        log_scale: float = 16.0,
        per_head: bool = False,
    ) -> None:
        super().__init__(head_dim, "half")
        need_base(base)
        if per_head and (num_heads is None or num_heads < 1):
            raise HeadwayError(f"num_heads is {num_heads} with per_head=True: give at least 1")
        if log_scale <= 0:
            raise HeadwayError(f"log_scale is {log_scale}: give a number above 0, such as 16.0")
        need_finite(log_scale=log_scale)
        self.num_heads, self.base, self.log_scale, self.per_head = num_heads, base, log_scale, per_head
        start = (log_scale * rates(self.pairs, head_dim, base, torch.device("cpu")).log()).float()
        self.log_frequencies = nn.Parameter(start.repeat(num_heads, 1) if per_head and num_heads else start)

    def frequencies(self, coordinates: Coordinates) -> Tensor:
        """−ω in float64, [pairs] or [num_heads, 1, pairs]"""
        rising = -(self.log_frequencies.double() / self.log_scale).exp()
        return rising[:, None] if self.per_head else rising

    def phases(self, coordinates: Coordinates) -> Tensor:
        """−p·ω"""
        place = coordinates.axis().double()[..., None]
        return (place[:, None] if self.per_head else place) * self.frequencies(coordinates)

    def oracle_angle(self, pair: Pair, c: int, token: int) -> float:
        logs = self.log_frequencies[pair.h] if self.per_head else self.log_frequencies
        return -pair.at(token) * math.exp(logs[c].item() / self.log_scale)

    @classmethod
    def examples(cls) -> list[PositionEncoding]:
        return [cls(8, num_heads=4), cls(8, num_heads=6, per_head=True, log_scale=1.0)]
