"""CAPE: positions that are shifted, jittered and scaled in training."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from ...coordinates import Coordinates
from ...errors import HeadwayError, need_finite
from .._base import PositionEncoding
from .._chance import for_each_sequence, uniform
from .._formulas import oracle_length, total_length


class CAPE(PositionEncoding):
    """Shifts, jitters and scales positions at random in training.

        p' = (p + Δ + ε_p)·λ in training,   Δ ~ U(−Δmax, Δmax),   ε_p ~ U(−εmax, εmax),   ln λ ~ U(−ln λmax, ln λmax)
        p' = p in evaluation; with centred=True the mean of the sequence is first subtracted from p in both

    Δ and λ are drawn for each sequence, ε for each token. It changes coordinates only and is intended for sinusoids:
    ``Compose(CAPE(), Sinusoidal(embed_dim))``. A sequence is a row of the coordinates or a document of packed rows. If
    the coordinates have one row for the whole batch, there is one draw: give positions [batch, n] for one each. There
    may be any number of axes, each with a Δ of its own.

    The defaults are for text; ``CAPE.audio()`` has those for frames of sound, in seconds. Some ports halve εmax.

    Args:
        global_shift: Δmax, at least 0, in the unit of positions times step.
        local_shift: εmax in tokens, at least 0; up to ½ the order of tokens is kept.
        scale: λmax, at least 1.
        centred: whether (T − 1)/2, the mean of 0 … T − 1, is subtracted, so that decoding and padding do not change the
            result.
        step: the size of one token in the unit of Δ, such as 0.03 s.
        frequency_scale: a factor of p' at the end, as the paper multiplies the sinusoid's frequencies for seconds.

    Raises:
        HeadwayError: if a shift is negative, scale is below 1, or a number is not finite.

    References:
        Likhomanenko et al. 2021, section 3.
    """

    name = "cape"
    citation = "likhomanenko2021cape"
    year = 2021
    kind = "coordinates"
    evidence = "independent"
    axes = None

    def __init__(
        self,
        global_shift: float = 5.0,
        local_shift: float = 0.5,
        scale: float = 1.03,
        centred: bool = False,
        step: float = 1.0,
        frequency_scale: float = 1.0,
    ) -> None:
        super().__init__()
        for name, value in (("global_shift", global_shift), ("local_shift", local_shift)):
            if value < 0:
                raise HeadwayError(f"{name} is {value}: give at least 0")
        if scale < 1:
            raise HeadwayError(f"scale is {scale}: give at least 1, by which positions are stretched or shrunk at most")
        need_finite(
            global_shift=global_shift, local_shift=local_shift, scale=scale, step=step, frequency_scale=frequency_scale
        )
        self.global_shift, self.local_shift, self.scale = global_shift, local_shift, scale
        self.centred, self.step, self.frequency_scale = centred, step, frequency_scale
        self.cache_prepared = not centred

    @classmethod
    def audio(cls, step: float = 0.03) -> CAPE:
        """Returns the encoding with the paper's settings for speech, in frames of ``step`` seconds."""
        return cls(60.0, scale=1.1, centred=True, step=step, frequency_scale=30.0)

    def locate(self, coordinates: Coordinates) -> Coordinates:
        """Returns the coordinates with changed positions in float64, or unchanged if there is nothing to change."""
        if not (self.training or self.centred or self.step != 1 or self.frequency_scale != 1):
            return coordinates
        p = coordinates.position.double()
        if self.centred:
            p = p - (total_length(coordinates) - 1)[..., None] / 2
        p = p * self.step
        if self.training:
            p = self._moved(p, coordinates)
        return replace(coordinates, position=p * self.frequency_scale)

    def _moved(self, p: Tensor, coordinates: Coordinates) -> Tensor:
        device = p.device
        shifts = [
            for_each_sequence(coordinates, lambda rows, n: uniform((rows, n), self.global_shift, device))
            for _ in range(p.shape[-1])
        ]
        jitter = uniform(tuple(p.shape), self.local_shift * self.step, device)
        stretch = for_each_sequence(coordinates, lambda rows, n: uniform((rows, n), math.log(self.scale), device))
        return (p + torch.stack(shifts, dim=-1) + jitter) * stretch.exp()[..., None]

    def oracle_locate(self, coordinates: Coordinates) -> Coordinates:
        positions = coordinates.position.double().clone()
        for i in range(positions.shape[1]):
            for axis in range(positions.shape[2]):
                p = float(coordinates.position[0, i, axis])
                if self.centred:
                    total = oracle_length(coordinates, i)
                    p -= sum(range(int(total))) / total
                positions[0, i, axis] = p * self.step * self.frequency_scale
        return replace(coordinates, position=positions)

    @classmethod
    def examples(cls) -> list[PositionEncoding]:
        from .._compose import Compose
        from .rope import RoPE
        from .sinusoidal import Sinusoidal

        return [Compose(cls(), Sinusoidal(32)).eval(), Compose(cls.audio(), RoPE(8, base=500.0)).eval()]
