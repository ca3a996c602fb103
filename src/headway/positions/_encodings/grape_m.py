"""Multiplicative GRAPE: rotary encoding with learned frequencies."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from ...coordinates import Coordinates
from ...errors import HeadwayError, need_finite
from ...terms import Rotation
from .._base import Pair, PositionEncoding
from .._formulas import need_base, rates
from .._lie import for_heads, need_divisor
from .._rotary import LearnedRotary


class GRAPEM(LearnedRotary):
    """Applies RoPE with learned frequencies; scores still depend on relative positions only (MS-GRAPE).

        score[i,j] = s·⟨R(−pᵢ·ω)·qᵢ, R(−pⱼ·ω)·kⱼ⟩,   ω_c = exp(log_frequencies_c / log_scale)

    The pairs are (c, c + head_dim/2), and the rotation is by −p·ω, opposite to RoPE's: with the same weights its scores
    are those of RoPE at the positions −p. If the module is cast to half precision, the logarithms are cast; the
    authors' code keeps them in float32.

    Args:
        head_dim: the width of each head, even.
        num_heads: the number of query heads, at least 1; needed with per_head only.
        base: the base of the initial frequencies, above 1.
        log_scale: a factor of the parameter, above 0, that slows its learning; 16 in the authors' code.
        per_head: whether each head of the keys has frequencies of its own, which its queries share.
        num_kv_heads: the number of key and value heads, a divisor of num_heads; num_heads if None. Read with per_head
            only.

    Attributes:
        log_frequencies: [head_dim/2], or [num_kv_heads, head_dim/2] with per_head; initially those of RoPE,
            ω_c = base^(−2c/head_dim).

    Raises:
        HeadwayError: if head_dim is odd, base is 1 or less, log_scale is not finite and above 0, per_head is given
            without num_heads, or num_kv_heads does not divide num_heads.

    References:
        Zhang et al. 2026, section 3.
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
        num_kv_heads: int | None = None,
    ) -> None:
        super().__init__(head_dim, "half")
        need_base(base)
        if per_head and (num_heads is None or num_heads < 1):
            raise HeadwayError(f"num_heads is {num_heads} with per_head=True: give at least 1")
        if log_scale <= 0:
            raise HeadwayError(f"log_scale is {log_scale}: give a number above 0, such as 16.0")
        need_finite(log_scale=log_scale)
        if per_head and num_heads is not None:
            need_divisor(num_heads, num_kv_heads)
        self.num_heads, self.num_kv_heads, self.per_head = num_heads, num_kv_heads, per_head
        self.base, self.log_scale = base, log_scale
        start = (log_scale * rates(self.pairs, head_dim, base, torch.get_default_device()).log()).float()
        self.log_frequencies = nn.Parameter(
            start.repeat(num_kv_heads or num_heads, 1) if per_head and num_heads else start
        )

    def frequencies(self, coordinates: Coordinates) -> Tensor:
        """Returns −ω, [pairs] or [num_kv_heads, 1, pairs] in float64."""
        rising = -(self.log_frequencies.double() / self.log_scale).exp()
        return rising[:, None] if self.per_head else rising

    def phases(self, coordinates: Coordinates) -> Tensor:
        """Returns −p·ω, [b, n, pairs] or [b, num_kv_heads, n, pairs] in float64."""
        place = coordinates.axis().double()[..., None]
        return (place[:, None] if self.per_head else place) * self.frequencies(coordinates)

    def rotation(self, side: str, x: Tensor, coordinates: Coordinates) -> Rotation | None:
        """Returns the rotation of x [batch, num_heads or num_kv_heads, n, head_dim]."""
        turn = super().rotation(side, x, coordinates)
        if not self.per_head or turn is None:
            return turn
        assert self.num_heads is not None
        cos, sin = for_heads(x, self.num_heads, turn.cos, turn.sin)
        return Rotation(cos, sin, self.layout)

    def oracle_angle(self, pair: Pair, c: int, token: int) -> float:
        logs: Tensor = self.log_frequencies
        if self.per_head:
            assert self.num_heads is not None
            logs = logs[pair.h * len(logs) // self.num_heads]
        return -pair.at(token) * math.exp(logs[c].item() / self.log_scale)

    @classmethod
    def examples(cls) -> list[PositionEncoding]:
        return [cls(8, num_heads=4), cls(8, num_heads=6, per_head=True, log_scale=1.0, num_kv_heads=3)]
