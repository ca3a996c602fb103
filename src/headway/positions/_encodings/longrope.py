"""LongRoPE: one factor for each pair, with one list for short and one for long sequences."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ...coordinates import Coordinates
from ...errors import HeadwayError
from .._base import PositionEncoding
from .._formulas import oracle_length, total_length
from .._rescaled import Rescaled, need_factor


class LongRoPE(Rescaled):
    """Divides the frequency of each pair by its own factor, found by a search, and scales the rotated numbers.

        score[i,j] = s·μ²·⟨R(pᵢ)·qᵢ, R(pⱼ)·kⱼ⟩,   ω_c = 1/(λ_c·base^(2c/d)),   μ = √(1 + ln(factor)/ln(L))
        λ = long_factor in a sequence of T > L tokens, short_factor otherwise; μ is the same for both

    T is the ``length`` of the coordinates. With use="length" all keys are rotated again when T exceeds L, so keys are
    cached unrotated. The first n̂ tokens of the paper, which keep θ_c, are left out, as in released models.

    Args:
        head_dim: the width of each head; even unless ``rotary_dim`` is given.
        short_factor: λ of short sequences, d/2 numbers above 0; 1 for each pair if None.
        long_factor: λ of long sequences, d/2 numbers above 0; ``factor`` for each pair if None.
        factor: the longest length over L, at least 1; it determines μ.
        max_length: L, the length the model was first trained for, at least 2.
        base: the base of the frequencies, above 1.
        layout: which dimensions form the pair c: (2c, 2c+1) for "interleaved", (c, c + d/2) for "half".
        rotary_dim: d, the number of dimensions rotated, even and at most head_dim; head_dim if None.
        attention_factor: μ, above 0; as above if None.
        use: "length" as above; "short" or "long" for one of the lists at any length, as in the authors' own code.

    Raises:
        HeadwayError: if a list has another length or a number that is not above 0, factor is below 1, max_length is
            below 2, attention_factor is not above 0, or use is unknown.

    References:
        Ding et al. 2024, section 3.
    """

    name = "longrope"
    citation = "ding2024longrope"
    year = 2024
    evidence = "authors"

    def __init__(
        self,
        head_dim: int,
        short_factor: Sequence[float] | None = None,
        long_factor: Sequence[float] | None = None,
        factor: float = 32.0,
        max_length: int = 4096,
        base: float = 10000.0,
        layout: str = "interleaved",
        rotary_dim: int | None = None,
        attention_factor: float | None = None,
        use: str = "length",
    ) -> None:
        super().__init__(head_dim, base, layout, rotary_dim)
        need_factor(factor=factor)
        if max_length < 2:
            raise HeadwayError(f"max_length is {max_length}: give the trained length, at least 2")
        for name, factors in (("short_factor", short_factor), ("long_factor", long_factor)):
            if factors is not None and (len(factors) != self.pairs or not all(0 < x < math.inf for x in factors)):
                raise HeadwayError(f"{name} is {list(factors)}: give a number above 0 for each of {self.pairs} pairs")
        if attention_factor is not None and not 0 < attention_factor < math.inf:
            raise HeadwayError(f"attention_factor is {attention_factor}: give a number above 0, or None")
        if use not in ("length", "short", "long"):
            raise HeadwayError(f"use is {use!r}: give 'length', 'short' or 'long'")
        self.short_factor = None if short_factor is None else tuple(short_factor)
        self.long_factor = None if long_factor is None else tuple(long_factor)
        self.factor, self.max_length, self.attention_factor, self.use = factor, max_length, attention_factor, use
        self.cache_prepared = use != "length"
        usual = math.sqrt(1 + math.log(factor) / math.log(max_length))
        self.magnitude = usual if attention_factor is None else attention_factor

    def frequencies(self, coordinates: Coordinates) -> Tensor:
        """Returns ω_c, [pairs], or [b, 1 or n, pairs] if the length determines the list, in float64."""
        theta = self.theta(coordinates)
        short, long = (
            torch.tensor(factors, dtype=torch.float64, device=theta.device)
            for factors in (self.short_factor or [1.0] * self.pairs, self.long_factor or [self.factor] * self.pairs)
        )
        if self.use != "length":
            return theta / (long if self.use == "long" else short)
        return theta / torch.where(total_length(coordinates)[..., None] > self.max_length, long, short)

    def oracle_frequency(self, c: int, coordinates: Coordinates) -> float:
        long = oracle_length(coordinates) > self.max_length if self.use == "length" else self.use == "long"
        if long:
            rescale = self.factor if self.long_factor is None else self.long_factor[c]
        else:
            rescale = 1.0 if self.short_factor is None else self.short_factor[c]
        return float(1 / (rescale * self.base ** (2 * c / self.width)))

    @classmethod
    def examples(cls) -> list[PositionEncoding]:
        return [
            cls(8, [1.0, 1.1, 1.3, 1.7], [1.0, 2.0, 3.5, 8.0], factor=8.0, max_length=7),
            cls(8, None, [1.5, 2.0, 3.0], 8.0, base=500.0, layout="half", rotary_dim=6, use="long"),
        ]
