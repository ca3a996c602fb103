"""The map of a head at any resolution."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ... import reductions
from ...errors import HeadwayError
from ...kernels import Call
from ...reductions import Reduction
from .._numbers import whole
from ._base import Statistic
from ._results import WeightMap


@dataclass(frozen=True, eq=False)
class PooledMap(Statistic):
    """The map of each head at any resolution, a ``WeightMap``.

        mass[h,I,J] = mean_{i∈I} Σ_{j∈J} A[h,i,j],   largest[h,I,J] = max A[h,i,j],   I = ⌊i·R/n⌋, J = ⌊j·C/m⌋

    Args:
        rows: R, at least 1; at most n are made.
        columns: C, at least 1; at most m are made.

    Raises:
        HeadwayError: if rows or columns are not whole numbers, or below 1.
    """

    name = "pooled_map"

    rows: int = 64
    columns: int = 64

    def __post_init__(self) -> None:
        rows, columns = whole(self.rows), whole(self.columns)
        if rows is None or columns is None or rows < 1 or columns < 1:
            raise HeadwayError(
                f"PooledMap has {self.rows!r} rows and {self.columns!r} columns: give whole numbers, at least 1 of each"
            )
        object.__setattr__(self, "rows", rows)
        object.__setattr__(self, "columns", columns)

    def reductions(self, call: Call) -> tuple[Reduction, ...]:
        n, m = call.q.shape[2], call.k.shape[2]
        return (reductions.PooledMap(max(1, min(self.rows, n)), max(1, min(self.columns, m))),)

    def result(self, call: Call, values: list[Any], counted: Tensor) -> WeightMap:
        ((mass, largest),) = values
        n, rows = call.q.shape[2], mass.shape[2]
        cells = torch.arange(n, device=counted.device) * rows // max(n, 1)
        queries = torch.zeros(*counted.shape[:2], rows, dtype=mass.dtype, device=mass.device)
        queries.index_add_(2, cells, counted.to(mass.dtype))
        return WeightMap(mass / queries[..., None], largest)

    def summary(self, value: WeightMap, counted: Tensor) -> dict[str, Tensor]:
        return {}
