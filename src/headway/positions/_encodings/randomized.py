"""Randomized positions: a random ordered subset of more positions than any sequence needs."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import torch
from torch import Tensor

from ...coordinates import Coordinates
from ...errors import HeadwayError, need_positive
from ...tracing import searchsorted
from .._base import PositionEncoding
from .._formulas import at, oracle_length, readable, stream_length, whole

WORD = 0xFFFFFFFF


class RandomizedPositions(PositionEncoding):
    """Places the T tokens of a sequence at T of L positions, drawn at random in every step, in ascending order.

        p' = S[p],   S the T smallest-ranked of 0 … L − 1 in rising order, ranked by a random permutation

    S is a uniform draw of T distinct integers. One permutation serves the batch, as in the authors' code; sequences and
    packed documents of one length have the same positions. It changes coordinates only:
    ``Compose(RandomizedPositions(), RoPE(head_dim))``. A position that is not a whole number is rounded down. As all
    positions change with T, keys are never cached prepared. Memory in packed rows: n·L bits and counts.

    Args:
        limit: L, more than the length of the longest sequence, at least 1.
        draw_at_evaluation: whether positions are drawn in evaluation too, as the authors do. Here the permutation is
            then fixed by ``seed``, so that results repeat and a position depends on p and T only. False leaves
            positions as they are.
        seed: the seed of the permutation in evaluation.

    Raises:
        HeadwayError: if limit is below 1 or, in a call, a length exceeds L; a length in a tensor is checked in eager
            mode only.

    References:
        Ruoss et al. 2023, section 3.
    """

    name = "randomized"
    citation = "ruoss2023randomized"
    year = 2023
    kind = "coordinates"
    evidence = "authors"
    cache_prepared = False

    def __init__(self, limit: int = 2048, draw_at_evaluation: bool = True, seed: int = 0) -> None:
        super().__init__()
        need_positive(limit=limit)
        self.limit, self.draw_at_evaluation, self.seed = limit, draw_at_evaluation, seed

    def locate(self, coordinates: Coordinates) -> Coordinates:
        """Returns the coordinates with whole positions below L, in the order of those given."""
        if not (self.training or self.draw_at_evaluation):
            return coordinates
        p, length = whole(coordinates.axis()), stream_length(coordinates)
        self._check(length)
        device = p.device
        rank = torch.randperm(self.limit, device=device) if self.training else self._fixed(device)
        chosen = rank < (length[..., None] if isinstance(length, Tensor) else length)
        counted = chosen.reshape(-1, 1, self.limit) if chosen.ndim < 3 else chosen
        counted = counted.cumsum(-1, dtype=torch.int32)
        rows, alike = max(p.shape[0], counted.shape[0]), counted.shape[1]
        wanted = (p + 1).int().expand(rows, -1).reshape(rows, alike, p.shape[1] // max(alike, 1))
        positions = searchsorted(counted.expand(rows, -1, -1).contiguous(), wanted).flatten(1)
        return replace(coordinates, position=positions.clamp(max=self.limit - 1)[..., None])

    def _fixed(self, device: torch.device) -> Tensor:
        """The rank of each of 0 … L − 1 in evaluation: the order of their hashes, the same on every device.

        It uses no random generator, so that it can be compiled.
        """
        x = (torch.arange(self.limit, device=device) + self.seed * 0x9E3779B9) & WORD
        for multiplier in (0x21F0AAAD, 0x735A2D97):  # below 2³¹, so that no product leaves 63 bits
            x = ((x ^ (x >> (16 if multiplier == 0x21F0AAAD else 15))) * multiplier) & WORD
        return (x ^ (x >> 15)).argsort().argsort()

    def _check(self, length: Tensor | int) -> None:
        if isinstance(length, Tensor):
            if not readable(length) or not length.numel():
                return
            length = int(length.max())
        if length > self.limit:
            raise HeadwayError(
                f"the length is {length} but positions are drawn from {self.limit}: build it with limit={2 * length}"
            )

    def oracle_locate(self, coordinates: Coordinates) -> Coordinates:
        ranked, positions = _ranked(self.limit, self.seed), []
        for i in range(coordinates.index.shape[1]):
            positions.append(sorted(ranked[: int(oracle_length(coordinates, i))])[int(at(coordinates, i))])
        return replace(coordinates, position=torch.tensor(positions)[None, :, None])

    @classmethod
    def examples(cls) -> list[PositionEncoding]:
        from .._compose import Compose
        from .alibi import ALiBi
        from .rope import RoPE

        return [Compose(cls(8192), RoPE(8)).eval(), Compose(cls(5000, seed=3), ALiBi(6)).eval()]


@lru_cache(maxsize=1)
def _ranked(limit: int, seed: int) -> list[int]:
    """0 … L − 1 in the order of their hashes, for the oracle, which needs them for each pair."""

    def mixed(x: int) -> int:
        x = (x ^ x >> 16) * 0x21F0AAAD % 2**32
        x = (x ^ x >> 15) * 0x735A2D97 % 2**32
        return x ^ x >> 15

    return sorted(range(limit), key=lambda i: mixed((i + seed * 0x9E3779B9) % 2**32))
