"""Computes the output and the reductions of a lowered call. Importing this module imports triton."""

from __future__ import annotations

import torch
from torch import Tensor

from .._results import ForwardResults, new_results
from . import programs
from ._arguments import Plane, Results, Splits, Wanted
from ._choices import Blocks, splits_for
from ._launch import Launch, tiles
from .programs import RELATIVE_VALUES

SPLITS = 16
"""The number of splits that are merged at once."""


class Forward(Launch):
    """The programs of the output and of reductions of the weights."""

    def run(self) -> ForwardResults:
        """Returns the output and the statistics of each query."""
        results = self.new_results()
        blocks = self.blocks("split" if self.n * self.group <= 16 else "wide split")
        splits = splits_for(
            self.n * self.group, self.m, self.batch * self.kv_heads, _processors(self.call.q.device), blocks.block
        )
        if splits and not self.in_blocks:
            self._run_in_splits(results, splits, blocks)
        else:
            self.run_whole(results)
        return results

    def new_results(self) -> ForwardResults:
        """Allocates the results. The output is float32 if relative values must still be added to it."""
        values = self.call.relative_values
        dtype = self.call.q.dtype if values is None or values.q is None else torch.float32
        return new_results(self.call.q, self.call.v, dtype)

    def _results(self, results: ForwardResults, output: bool = True) -> Results:
        """Where results go."""
        return Results(self.of_values(results.out) if output else None, results.row_max, results.row_sum)

    def _add_relative_values(self, results: ForwardResults) -> None:
        """Adds the looked-up relative values to the output."""
        values = self.call.relative_values
        if values is not None and values.q is not None:
            weights = self.sums_by_row(values, RELATIVE_VALUES, self.statistics_of(results))
            results.out.add_(weights @ values.vectors.detach())

    def run_whole(
        self, results: ForwardResults, output: bool = True, wanted: Wanted | None = None, width: int = 0
    ) -> None:
        """Writes the statistics of each query, the output if ``output``, and the wanted reductions of the weights.

        Args:
            results: the tensors that are written.
            output: whether to write the output.
            wanted: the reductions, of at most ``width`` numbers for each query. The width is a power of 2, or 0.
        """
        blocks = self.blocks("forward" if output else "reductions")
        inputs = self.inputs if output else self.inputs._replace(v=None)
        self.start(
            programs.forward, tiles(self.n, blocks.rows) * self.batch * self.heads, blocks,
            inputs, self.listed(blocks), wanted, self._results(results, output),
            self.n, self.m, self.heads, self.group, rows=blocks.rows, block=blocks.block, width=width,
        )  # fmt: skip
        if output:
            self._add_relative_values(results)

    def column_sums(self, results: ForwardResults, counted: Plane | None) -> Tensor:
        """Returns the sums of the weights of each key over the queries that count, [batch, heads, m]."""
        blocks, sums = self.blocks("keys"), self.statistic(self.m)
        self.start(
            programs.column_sums, tiles(self.m, blocks.block) * self.batch * self.heads, blocks,
            self.inputs._replace(v=None), self.parts, self.statistics_of(results), counted, sums,
            self.n, self.m, self.heads, self.group, rows=blocks.rows, block=blocks.block,
        )  # fmt: skip
        return sums

    def pooled(self, results: ForwardResults, counted: Plane | None, down: int, across: int) -> tuple[Tensor, Tensor]:
        """Returns the sums and the largest of the weights in each cell, [batch, heads, down, across]."""
        blocks = self.blocks("table")
        mass, largest = self.buffer(2, self.batch, self.heads, down, across)
        self.start(
            programs.pooled_map, mass.numel(), blocks,
            self.inputs._replace(v=None), self.parts, self.statistics_of(results), counted, mass, largest,
            self.n, self.m, self.heads, self.group, down, across, rows=blocks.rows, block=blocks.block,
        )  # fmt: skip
        return mass, largest.masked_fill(mass.isnan(), torch.nan)  # maxima lose NaN

    def _run_in_splits(self, results: ForwardResults, splits: int, blocks: Blocks) -> None:
        rows = self.batch * self.heads * self.n
        found = Splits(self.buffer(splits, rows, self.v_dim), *self.buffer(2, splits, rows))
        self.start(
            programs.split_forward, self.batch * self.kv_heads * splits, blocks,
            self.inputs, self.parts, found, self.n, self.m, self.heads, self.group, splits,
            rows=blocks.rows, block=blocks.block,
        )  # fmt: skip
        self.start(
            programs.merge_splits, rows, blocks, found, self.parts.sink, self._results(results),
            self.n, self.heads, splits, chunk=SPLITS,
        )  # fmt: skip
        self._add_relative_values(results)


def _processors(device: torch.device) -> int:
    """Returns the multiprocessors of a GPU; a small number for the interpreter, so that short sequences are split."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 2
