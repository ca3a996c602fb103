"""SHAPE: positions that start at a random number in training."""

from __future__ import annotations

from dataclasses import replace

import torch

from ...coordinates import Coordinates
from ...errors import HeadwayError
from .._base import PositionEncoding
from .._chance import for_each_sequence


class SHAPE(PositionEncoding):
    """Shifts all positions of a sequence by one random number in training, so that no absolute position is learned.

        p' = p + k,   k ~ U{0, …, K} for each sequence in training, k = start in evaluation

    It changes coordinates only and is intended for absolute encodings: ``Compose(SHAPE(), Sinusoidal(embed_dim))``;
    relative encodings are not affected. A sequence is a row of the coordinates or a document of packed rows. If the
    coordinates have one row for the whole batch, there is one draw: give positions [batch, n] for one each. The
    authors' code draws from {0, …, K − 1}, while the paper says K; the difference of one is negligible.

    Args:
        max_shift: K, at least 0.
        start: the shift in evaluation, at least 0: 0 as in the paper's equation; the authors' code uses K, the largest
            shift of training.

    Raises:
        HeadwayError: if max_shift or start is negative.

    References:
        Kiyono et al. 2021, section 3.
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
        """Returns the coordinates with the positions of each sequence shifted by one number."""
        if not self.training:
            return replace(coordinates, position=coordinates.position + self.start) if self.start else coordinates
        device = coordinates.position.device
        shift = for_each_sequence(
            coordinates, lambda rows, n: torch.randint(0, self.max_shift + 1, (rows, n), device=device)
        )
        return replace(coordinates, position=coordinates.position + shift[..., None])

    def oracle_locate(self, coordinates: Coordinates) -> Coordinates:
        positions = [[p + self.start for p in token] for token in coordinates.position[0].tolist()]
        return replace(coordinates, position=torch.tensor([positions], dtype=coordinates.position.dtype))

    @classmethod
    def examples(cls) -> list[PositionEncoding]:
        from .._compose import Compose
        from .sinusoidal import Sinusoidal

        late = Compose(cls(20, start=20), Sinusoidal(48, base=500.0, variant="tensor2tensor"))
        return [Compose(cls(), Sinusoidal(32)).eval(), late.eval()]
