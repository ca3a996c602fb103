"""Attention rollout: the weights of all layers together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ...errors import HeadwayError
from ...kernels import score_blocks
from .._numbers import slots_of
from .._record import Records
from ._base import Score, call_of, records_of_one_call


@dataclass(frozen=True, eq=False)
class Rollout(Score):
    """The attention of chosen outputs to the inputs through all layers: rows of R, [batch, rows, n].

        R = Âₗ·…·Â₂·Â₁,   Â = ½·(mean over heads of A) + ½·I

    A row follows from the last layer to the first, y ← ½·y + ½·mean_h A_hᵀ·y, in memory that grows with n. It sums to
    1, or to less where sinks take part of the weights.

    Args:
        rows: the outputs, as numbers, of which negative ones count from the end, or a slice.

    References:
        Abnar and Zuidema 2020, "Quantifying Attention Flow in Transformers".
    """

    name = "rollout"

    rows: slice | int | Sequence[int]

    def of(self, seen: Records) -> Tensor:
        if seen.missed:
            raise HeadwayError(
                f"the attention of {', '.join(seen.missed)} could not be seen, and rollout needs all layers"
            )
        records = records_of_one_call(seen, self.name)
        calls = [call_of(record, self.name) for record in records]
        first = records[0]
        for record in records:
            if record.n != record.m or record.n != first.n:
                raise HeadwayError(
                    f"{record.layer!r} has {record.n} queries and {record.m} keys, {first.layer!r} {first.n} queries: "
                    "rollout needs layers over the same tokens, choose them by layers="
                )
        slots = slots_of(self.rows, first.n)
        wide = torch.float64 if calls[0].q.dtype == torch.float64 else torch.float32
        y = torch.zeros(first.batch, len(slots), first.n, dtype=torch.float64, device=calls[0].q.device)
        y[:, range(len(slots)), slots] = 1
        for call in reversed(calls):
            attended = torch.zeros_like(y)
            for block in score_blocks(call):
                attended[:, :, block.keys] += y[:, :, block.rows] @ block.weights.mean(1).double()
            y = y / 2 + attended / 2
        return y.to(wide)
