"""Scores and weights of a call in blocks of rows, for reductions such as statistics."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from ..terms import Normalizer
from ..tracing import without_autocast
from . import reference
from ._problem import Call
from ._results import log_sum_exp


class ScoreBlock(NamedTuple):
    """The scores of some queries and the keys that they can reach, and their weights.

    A sink takes part in the weights but has no column. A Normalizer, if there is one, computes the weights.

    Attributes:
        rows: the slots of the queries.
        keys: the slots of the keys.
        scores: [batch, heads, rows, keys] in float32 (float64 for float64); −∞ where the mask hides a key.
        log_weights: likewise.
        weights: likewise; 0 where the mask hides a key.
        row_max: the largest score of each row, a sink's included, [batch, heads, rows].
        row_sum: Σ exp(score − row_max), a sink included. Both are NaN under a Normalizer.
    """

    rows: slice
    keys: slice
    scores: Tensor
    log_weights: Tensor
    weights: Tensor
    row_max: Tensor
    row_sum: Tensor


def score_blocks(call: Call) -> Iterator[ScoreBlock]:
    """Yields the blocks of rows of a call, in order, in memory that does not grow with the number of queries.

    The blocks have no gradients, and no dropout.

    Args:
        call: the call, from ``headway.call.make_call``.
    """
    with torch.no_grad(), without_autocast(call.q):
        call = reference.computed(call)
    for block in reference.blocks(call):
        yield _scored(block)


@torch.no_grad()
def _scored(block: reference.QueryBlock) -> ScoreBlock:
    with without_autocast(block.q):
        scores = reference.masked(block, reference.scores(block))
        weights, row_max, row_sum = reference.softmax(block, scores)
    if block.each(Normalizer):
        log_weights = weights.log()
    else:
        lse = log_sum_exp(row_max, row_sum)
        log_weights = reference.masked(block, scores - lse.masked_fill(lse == -math.inf, 0)[..., None])
    rows = slice(block.start, block.start + block.count)
    return ScoreBlock(rows, block.keys, scores, log_weights, weights, row_max, row_sum)
