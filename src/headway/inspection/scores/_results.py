"""The results of scores of heads."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ...errors import HeadwayError
from .._table import DataTable
from .._watch import layer_named


class HeadScores(Mapping[str, Tensor]):
    """A score of each head, [batch, heads] by the names of layers.

    Args:
        name: the name of the score.
        values: the score of each layer. NaN where no query of a row counts.
    """

    def __init__(self, name: str, values: Mapping[str, Tensor]) -> None:
        self.name = name
        self._values = dict(values)

    def __getitem__(self, layer: int | str) -> Tensor:
        return self._values[layer_named(layer, list(self._values))]

    def __iter__(self):  # type: ignore[no-untyped-def]
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def mean(self) -> Tensor:
        """Returns the means over the batch, [layers, heads]; rows that are NaN are left out.

        Raises:
            HeadwayError: if the layers have different numbers of heads.
        """
        counts = {value.shape[-1] for value in self._values.values()}
        if len(counts) > 1:
            raise HeadwayError(f"the layers have {', '.join(map(str, sorted(counts)))} heads: read them layer by layer")
        return torch.stack([value.nanmean(0) for value in self._values.values()])

    def table(self) -> DataTable:
        """Returns one row for each head: layer, head, and the mean over the batch under the name of the score."""
        return DataTable(
            {"layer": layer, "head": head, self.name: value}
            for layer, values in self._values.items()
            for head, value in enumerate(values.nanmean(0).tolist())
        )

    def top(self, count: int = 10) -> DataTable:
        """Returns the rows of ``table`` with the largest scores, the largest first.

        Args:
            count: the most rows.

        Raises:
            HeadwayError: if count is below 1.
        """
        if count < 1:
            raise HeadwayError(f"count is {count}: give at least 1")
        rows = [row for row in self.table() if row[self.name] == row[self.name]]  # NaN is not a score
        return DataTable(sorted(rows, key=lambda row: -row[self.name])[:count])

    def __repr__(self) -> str:
        heads = sum(value.shape[-1] for value in self._values.values())
        rows = "; ".join(f"{row['layer']} head {row['head']}: {row[self.name]:.3g}" for row in self.top(3))
        return f"HeadScores({self.name!r}, {len(self)} layers, {heads} heads; largest {rows or 'none'})"
