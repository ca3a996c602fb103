"""Two captures side by side, head by head."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..errors import HeadwayError
from ..kernels import Call, score_blocks
from ._record import Asked, AttentionRecord, Records
from ._table import DataTable

MOVED = "moved"
"""The column of the weight that goes to other keys."""


def compared(one: Records, other: Records, statistics: Asked | None) -> DataTable:
    """Compares two captures; ``Seen.compare`` describes it."""
    rows = DataTable()
    for a, b in _pairs(one, other):
        tables = [record.statistics(statistics).summary() for record in (a, b)]
        moved = None if a._kept_call is None or b._kept_call is None else _moved(a, b)
        for head in range(a.heads):
            row = {"layer": a.layer, "head": head}
            for name in tables[0]:
                values = [float(table[name][:, head].nanmean()) for table in tables]
                row |= {name: values[0], f"{name} of the other": values[1]}
            if moved is not None:
                row[MOVED] = float(moved[head])
            rows.append(row)
    return rows


def _pairs(one: Records, other: Records) -> list[tuple[AttentionRecord, AttentionRecord]]:
    for records in (one, other):
        records._need_records()
        if records.calls > 1:
            raise HeadwayError(f"the model was called {records.calls} times: compare one call, such as of_call(-1)")
    if len(one.records) != len(other.records):
        raise HeadwayError(
            f"one capture has {len(one.records)} layers and the other {len(other.records)}: capture layers= that "
            "correspond"
        )
    pairs = list(zip(one.records, other.records, strict=True))
    for a, b in pairs:
        shapes = [(record.batch, record.heads, record.n, record.m) for record in (a, b)]
        if shapes[0] != shapes[1]:
            raise HeadwayError(
                f"{a.layer!r} and {b.layer!r} have (batch, heads, queries, keys) of {shapes[0]} and {shapes[1]}: "
                "capture calls of one shape"
            )
    return pairs


def _moved(a: AttentionRecord, b: AttentionRecord) -> Tensor:
    """The mean over the queries of ½·Σⱼ |A − B|, [heads], in memory that grows with the tokens."""
    assert a._kept_call is not None
    assert b._kept_call is not None
    calls: Sequence[Call] = (a._kept_call, b._kept_call)
    total = torch.zeros(a.heads, dtype=torch.float64)
    count = torch.zeros(a.heads, dtype=torch.int64)
    for blocks in zip(*map(score_blocks, calls), strict=True):
        start, stop = min(x.keys.start for x in blocks), max(x.keys.stop for x in blocks)
        difference = blocks[0].weights.new_zeros(*blocks[0].weights.shape[:3], stop - start)
        for block, sign in zip(blocks, (1, -1), strict=True):
            difference[..., block.keys.start - start : block.keys.stop - start] += sign * block.weights
        counts = (blocks[0].scores != -torch.inf).any(-1) & (blocks[1].scores != -torch.inf).any(-1)
        for record in (a, b):
            if record.padding is not None:
                counts = counts & record.padding.expand(a.batch, -1)[:, None, blocks[0].rows]
        far = difference.abs().sum(-1).double() / 2
        total += far.masked_fill(~counts, 0).sum((0, 2)).cpu()
        count += counts.sum((0, 2)).cpu()
    return total / count
