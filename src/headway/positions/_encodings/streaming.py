"""Positions within a bounded cache."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from ...coordinates import Coordinates
from ...tracing import searchsorted
from .._base import Input, PositionEncoding


class StreamingLLM(PositionEncoding):
    """Counts positions among the keys that are in the cache, ignoring those evicted.

        p'ᵢ = pᵢ − evicted(i),   evicted(i) = indexᵢ − #{keys j : 0 ≤ index_j < indexᵢ}

    With positions 0, 1, 2 … a key's position is its rank in the cache, and the newest query is at its end. With a few
    sinks and the latest keys, no distance exceeds the size of the cache. Positions do not change if no key was evicted.
    It changes coordinates only: ``Compose(StreamingLLM(), RoPE(head_dim))`` in a model that decodes with

        cache.keep(first=4, last=window)      # before each call; 4 sinks as in the paper

    Keys are cached unprepared, because the position of a key changes after each eviction.

    References:
        Xiao et al. 2024, section 3.2.
    """

    name = "streaming-llm"
    citation = "xiao2024efficient"
    year = 2023
    kind = "coordinates"
    evidence = "authors"
    across_shards = True
    cache_prepared = False

    def relocate(
        self, q_at: Coordinates, k_at: Coordinates, q_input: Input = None, k_input: Input = None
    ) -> tuple[Coordinates, Coordinates]:
        """Returns both sides counted among the keys, or unchanged if no key is known to be missing."""
        keys = k_at if k_at.shard is None else k_at.shard.whole
        if keys.ordered and keys.start == 0:
            return q_at, k_at
        there = keys.index.sort(dim=1).values
        return self._counted(q_at, there), self._counted(k_at, there)

    def _counted(self, side: Coordinates, there: Tensor) -> Coordinates:
        """Subtracts from positions the tokens evicted before them; ``there`` are the ascending indices of the keys."""
        rows = max(side.index.shape[0], there.shape[0])
        there = there.expand(rows, -1).contiguous()
        index = side.index.expand(rows, -1).contiguous()
        rank = searchsorted(there, index) - searchsorted(there, torch.zeros_like(index[:, :1]))
        evicted = torch.where(index < 0, 0, index - rank)
        return side.placed_by(self, position=side.position - evicted[..., None])

    def oracle_locate(self, coordinates: Coordinates) -> Coordinates:
        index, positions = coordinates.index[0].tolist(), coordinates.position.clone()
        for i, own in enumerate(index):
            positions[0, i] -= own - sum(0 <= other < own for other in index)
        return replace(coordinates, position=positions)

    @classmethod
    def examples(cls) -> list[PositionEncoding]:
        from .._compose import Compose
        from .alibi import ALiBi
        from .rope import RoPE

        return [Compose(cls(), RoPE(8)), Compose(cls(), ALiBi(6))]
