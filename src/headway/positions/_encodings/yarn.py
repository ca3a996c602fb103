"""YaRN: NTK-by-parts with a temperature of attention."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ...errors import HeadwayError
from .._base import PositionEncoding
from .ntk_by_parts import NTKByParts


class YaRN(NTKByParts):
    """Slows the slow pairs of RoPE down by the factor and scales the rotated numbers, which sharpens the weights.

        score[i,j] = s·μ²·⟨R(pᵢ)·qᵢ, R(pⱼ)·kⱼ⟩,   μ = 0.1·ln(factor) + 1,   ω_c = (1 − γ_c)·θ_c/factor + γ_c·θ_c
        ramp="code":   γ_c = 1 − (c − low)/(high − low), within 0 … 1,   c(β) = d·ln(L/2πβ)/(2·ln base)
                       low = max(0, ⌊c(beta_fast)⌋),   high = min(d − 1, ⌈c(beta_slow)⌉)
        ramp="paper":  γ_c of NTKByParts, a ramp over the rotations within L instead of over the pair's number c

    The two ramps differ by a factor of up to three (d = 128, L = 4096, factor 16). "code" is the ramp of the authors'
    code and of Hugging Face's, which released weights need; "paper" is the ramp of the text. As in their code, high is
    limited to d − 1 although there are d/2 pairs.

    Args:
        head_dim: the width of each head; even unless ``rotary_dim`` is given.
        factor: the factor by which slow pairs are slowed down, at least 1.
        max_length: L, the length the model was trained for, at least 1.
        base: the base of the frequencies, above 1.
        layout: which dimensions form the pair c: (2c, 2c+1) for "interleaved", (c, c + d/2) for "half".
        rotary_dim: d, the number of dimensions rotated, even and at most head_dim; head_dim if None.
        beta_fast: pairs that rotate more often than this within L keep their frequency, above beta_slow.
        beta_slow: pairs that rotate less often than this within L are slowed down fully; at least 0, above 0 for
            ramp="code".
        ramp: "code" or "paper", as above.
        truncate: whether low and high are rounded; not for gpt-oss.
        attention_factor: μ, above 0; as above if None.
        mscale: DeepSeek's, above 0: μ = (0.1·mscale·ln(factor) + 1)/(0.1·mscale_all_dim·ln(factor) + 1).
        mscale_all_dim: the constant in the denominator of ``mscale``, above 0.
        scale_scores: whether all scores, also those of dimensions that are not rotated, are multiplied by
            (0.1·mscale_all_dim·ln(factor) + 1)², as in DeepSeek's attention; Hugging Face's other models do not do
            this.

    Raises:
        HeadwayError: as ``NTKByParts`` does, and if ramp is unknown, a factor is not above 0, no pair rotates beta_slow
            times within max_length (ramp="code"), or scale_scores is given without mscale_all_dim.

    References:
        Peng et al. 2024, section 3.4.
    """

    name = "yarn"
    evidence = "authors"
    constant_rates = True

    def __init__(
        self,
        head_dim: int,
        factor: float = 16.0,
        max_length: int = 4096,
        base: float = 10000.0,
        layout: str = "interleaved",
        rotary_dim: int | None = None,
        beta_fast: float = 32.0,
        beta_slow: float = 1.0,
        ramp: str = "code",
        truncate: bool = True,
        attention_factor: float | None = None,
        mscale: float | None = None,
        mscale_all_dim: float | None = None,
        scale_scores: bool = False,
    ) -> None:
        super().__init__(head_dim, factor, max_length, base, layout, rotary_dim, beta_fast, beta_slow)
        if ramp not in ("code", "paper"):
            raise HeadwayError(f"ramp is {ramp!r}: give 'code' or 'paper'")
        if ramp == "code" and (beta_slow <= 0 or max_length < 2 * math.pi * beta_slow):
            raise HeadwayError(
                f"max_length is {max_length} and beta_slow {beta_slow}: no pair turns as often within the length, give "
                f"at least {math.ceil(2 * math.pi * beta_slow) or 1} and a beta_slow above 0, or ramp='paper'"
            )
        given = {"attention_factor": attention_factor, "mscale": mscale, "mscale_all_dim": mscale_all_dim}
        for name, value in given.items():
            if value is not None and not 0 < value < math.inf:
                raise HeadwayError(f"{name} is {value}: give a number above 0, or None")
        if scale_scores and mscale_all_dim is None:
            raise HeadwayError("scale_scores is True and mscale_all_dim None: give mscale_all_dim, such as 1.0")
        self.ramp, self.truncate, self.attention_factor = ramp, truncate, attention_factor
        self.mscale, self.mscale_all_dim, self.scale_scores = mscale, mscale_all_dim, scale_scores
        if attention_factor is not None:
            self.magnitude = attention_factor
        elif mscale is not None and mscale_all_dim is not None:
            self.magnitude = self._growth(mscale) / self._growth(mscale_all_dim)
        else:
            self.magnitude = self._growth(1.0)

    def _growth(self, mscale: float) -> float:
        return 0.1 * mscale * math.log(self.factor) + 1

    def kept(self, theta: Tensor) -> Tensor:
        """Returns γ [pairs], the fraction of each frequency that is kept."""
        if self.ramp == "paper":
            return super().kept(theta)
        low, high = (
            self.width * math.log(self.max_length / (2 * math.pi * beta)) / (2 * math.log(self.base))
            for beta in (self.beta_fast, self.beta_slow)
        )
        low, high = (math.floor(low), math.ceil(high)) if self.truncate else (low, high)
        high = min(high, self.width - 1)
        low = min(max(low, 0), high)
        c = torch.arange(self.pairs, dtype=torch.float64, device=theta.device)
        return 1 - ((c - low) / (high - low or 0.001)).clamp(0, 1)

    def default_scale(self, head_dim: int) -> float:
        """Returns head_dim^−½, multiplied by the factor of ``scale_scores`` if given."""
        usual = super().default_scale(head_dim)
        return usual * self._growth(self.mscale_all_dim or 0.0) ** 2 if self.scale_scores else usual

    def oracle_gamma(self, c: int) -> float:
        if self.ramp == "paper":
            return super().oracle_gamma(c)

        def pair_that_turns(times: float) -> float:
            return self.pairs * math.log(self.max_length / (times * 2 * math.pi), self.base)

        low, high = pair_that_turns(self.beta_fast), pair_that_turns(self.beta_slow)
        if self.truncate:
            low, high = float(math.floor(low)), float(math.ceil(high))
        low, high = max(low, 0.0), min(high, self.width - 1.0)
        if low == high:
            high += 0.001
        return 0.0 if c >= high else 1.0 if c <= low else (high - c) / (high - low)

    @classmethod
    def examples(cls) -> list[PositionEncoding]:
        return [
            cls(8, max_length=300),
            cls(8, 2.5, 30, base=10.0, layout="half", rotary_dim=6, beta_fast=4.0, ramp="paper", attention_factor=1.3),
        ]
