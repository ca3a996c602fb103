"""Positions that start anywhere while training."""

from __future__ import annotations

from dataclasses import replace

import torch

from ..coordinates import Coordinates
from ..errors import HeadwayError
from ._base import PositionEncoding
from ._chance import for_each_sequence


class SHAPE(PositionEncoding):
    """In training each sequence begins at another position, so that no absolute position can be learned.

        p' = p + k,   k ~ U{0, …, K} for each sequence in training, k = start outside of it

    It changes coordinates alone and is made for absolute encodings: ``Compose(SHAPE(), Sinusoidal(embed_dim))``; what
    knows distances alone does not notice. A sequence is a row of the coordinates or a document of packed rows; where
    the coordinates have one row for the whole batch, so has the draw: give positions [batch, n] for one each.

    max_shift   K
    start       0 as in the paper's equation; the authors' code evaluates from K on, as far as any training shift went

    The authors' code draws from {0, …, K − 1}, the paper says K: that one number more changes nothing.
    Raises HeadwayError for a negative max_shift or start.
    Cite: Kiyono et al. 2021, section 3.
    """

    name = "shape"
    citation = "kiyono2021shape"
    year = 2021
    kind = "coordinates"
    evidence = "authors"
    axes = None

    def __init__(self, max_shift: int = 500, start: int = 0) -> None:
        super().__init__()
        for name, value in (("max_shift", max_shift), ("start", start)):
            if value < 0:
                raise HeadwayError(f"{name} is {value}: give at least 0")
        self.max_shift, self.start = max_shift, start

    def locate(self, coordinates: Coordinates) -> Coordinates:
        """The positions of each sequence shifted by one number."""
        if not self.training:
            return replace(coordinates, position=coordinates.position + self.start) if self.start else coordinates
        device = coordinates.position.device
        shift = for_each_sequence(
            coordinates, lambda rows, n: torch.randint(0, self.max_shift + 1, (rows, n), device=device)
        )
        return replace(coordinates, position=coordinates.position + shift[..., None])

    def oracle_locate(self, coordinates: Coordinates) -> Coordinates:
        found = [[p + self.start for p in token] for token in coordinates.position[0].tolist()]
        return replace(coordinates, position=torch.tensor([found], dtype=coordinates.position.dtype))

    @classmethod
    def examples(cls) -> list[PositionEncoding]:
        from ._compose import Compose
        from .sinusoidal import Sinusoidal

        late = Compose(cls(20, start=20), Sinusoidal(48, base=500.0, variant="tensor2tensor"))
        return [Compose(cls(), Sinusoidal(32)).eval(), late.eval()]
