"""Divided positions, for any other encoding."""

from __future__ import annotations

from dataclasses import replace

import torch

from ...coordinates import Coordinates
from .._base import PositionEncoding
from .._compose import Compose
from .._formulas import at
from .._rescaled import need_factor


class Interpolated(PositionEncoding):
    """Divides positions by a factor, so that long sequences lie in the trained range of another encoding.

        p' = p/factor,   used in a composition: Compose(Interpolated(4.0), encoding)

    Positions may have any number of axes and become float64. With RoPE this is ``PositionInterpolation``; encodings
    that look up whole distances, such as T5, round down. On its own it changes nothing.

    Args:
        factor: the longer length over the trained one, at least 1.

    Raises:
        HeadwayError: if factor is below 1.

    References:
        Chen et al. 2023, section 2.3.
    """

    name = "interpolated"
    citation = "chen2023extending"
    year = 2023
    kind = "coordinates"
    same_function_as = "position-interpolation"
    evidence = "independent"
    axes = None

    def __init__(self, factor: float = 4.0) -> None:
        super().__init__()
        need_factor(factor=factor)
        self.factor = factor

    def locate(self, coordinates: Coordinates) -> Coordinates:
        """Returns the positions divided by the factor, in float64."""
        return replace(coordinates, position=coordinates.position.double() / self.factor)

    def oracle_locate(self, coordinates: Coordinates) -> Coordinates:
        _, n, axes = coordinates.position.shape
        where = [[at(coordinates, i, axis) / self.factor for axis in range(axes)] for i in range(n)]
        return replace(coordinates, position=torch.tensor([where], dtype=torch.float64).view(1, n, axes))

    @classmethod
    def examples(cls) -> list[PositionEncoding]:
        from .alibi import ALiBi
        from .rope import RoPE

        return [Compose(cls(), RoPE(8)), Compose(cls(2.5), ALiBi(6))]
