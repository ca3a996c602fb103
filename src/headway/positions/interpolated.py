"""Divided positions, for any encoding to read."""

from __future__ import annotations

from dataclasses import replace

import torch

from ..coordinates import Coordinates
from ._base import PositionEncoding, at
from ._compose import Compose
from ._rescaled import need_factor


class Interpolated(PositionEncoding):
    """Every position divided by a factor, so that long sequences lie within the trained range of another encoding.

        p' = p/factor,   read by what it is composed with: Compose(Interpolated(4.0), encoding)

    Positions may have any number of axes and become float64. With RoPE this is ``PositionInterpolation``; what looks
    its rows up by whole distances, as T5, takes the whole number below. By itself it changes nothing.
    Raises HeadwayError for a factor below 1.
    Cite: Chen et al. 2023, section 2.3.
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
        """Positions divided by the factor, in float64."""
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
