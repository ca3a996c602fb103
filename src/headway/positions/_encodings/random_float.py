"""Random real positions in one bounded range."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from ...coordinates import Coordinates
from ...errors import HeadwayError, need_finite, need_positive
from .._base import PositionEncoding
from .._chance import ordered
from .._formulas import at, oracle_length, stream_length


class RandomFloat(PositionEncoding):
    """Assigns real positions in one range to the tokens of any sequence, short or long (random float sampling).

        p'_i = span·u_(i),   u_(1) < … < u_(T) the order statistics of T draws from U[0, 1)     in training
        p'_i = span·(2i − 1)/(2·max(train_length, T)),   i = 1 … T                              in evaluation

    It changes coordinates only: ``Compose(RandomFloat(train_length), RoPE(head_dim))``. In training each row of the
    coordinates and each packed document has its own draws; the token with the smallest position gets the smallest draw.
    If the coordinates have one row for the whole batch, all rows share its draws. In evaluation, i is p + 1. As
    positions change with T beyond train_length, keys are never cached prepared.

    Only the paper's abstract and descriptions of its equations by others were available: treat this as experimental.

    Args:
        train_length: the number of tokens of training sequences, at least 1; tokens of longer ones are closer together.
        span: the upper end of the range, above 0; 1 in the paper. The frequencies of the encoding composed with it have
            to suit it.

    Raises:
        HeadwayError: if train_length is below 1, or span is not positive or not finite.

    References:
        Shimizu et al. 2026.
    """

    name = "random-float"
    citation = "shimizu2026position"
    year = 2026
    kind = "coordinates"
    evidence = "formula"
    cache_prepared = False

    def __init__(self, train_length: int = 512, span: float = 1.0) -> None:
        super().__init__()
        need_positive(train_length=train_length)
        if not span > 0:
            raise HeadwayError(f"span is {span}: give the upper end of the range, such as 1.0")
        need_finite(span=span)
        self.train_length, self.span = train_length, span

    def locate(self, coordinates: Coordinates) -> Coordinates:
        """Returns the coordinates with positions in [0, span), in float64."""
        p, length = coordinates.axis(), stream_length(coordinates)
        if self.training:
            return replace(coordinates, position=self.span * self._drawn(coordinates, length)[..., None])
        if isinstance(length, Tensor):
            tokens: Tensor | int = length.clamp(min=self.train_length)
        else:
            tokens = torch.sym_max(length, self.train_length)
        return replace(coordinates, position=(self.span * (2 * p.double() + 1) / (2 * tokens))[..., None])

    def _drawn(self, coordinates: Coordinates, length: Tensor | int) -> Tensor:
        """A draw for each token, in the order of the positions of its document; padding has its own draws."""
        p, index, document = coordinates.axis(), coordinates.index, coordinates.document
        group = torch.zeros_like(index) if document is None else document
        group = torch.where((index < 0) | (p >= length), group.amax() + 1 if group.numel() else 0, group)
        u = torch.rand(group.shape, dtype=torch.float64, device=p.device)
        tokens, draws = ordered(group, p.expand(group.shape)), ordered(group, u)
        return torch.zeros_like(u).scatter(1, tokens, u.gather(1, draws))

    def oracle_locate(self, coordinates: Coordinates) -> Coordinates:
        positions = []
        for token in range(coordinates.index.shape[1]):
            i, total = at(coordinates, token) + 1, oracle_length(coordinates, token)
            positions.append(self.span * (2 * i - 1) / (2 * max(self.train_length, total)))
        return replace(coordinates, position=torch.tensor(positions, dtype=torch.float64)[None, :, None])

    @classmethod
    def examples(cls) -> list[PositionEncoding]:
        from .._compose import Compose
        from .alibi import ALiBi
        from .rope import RoPE

        return [Compose(cls(8, span=64.0), RoPE(8)).eval(), Compose(cls(span=4096.0), ALiBi(6)).eval()]
