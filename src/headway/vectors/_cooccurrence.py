"""Sparse counts of how often words occur near each other, in memory that grows with the pairs that occur."""

from __future__ import annotations

import torch
from torch import Tensor

from .._common.progress import Share
from ._text import WordCorpus

PAIRS = 2**22
"""The pairs of tokens counted at once, which takes a few hundred MiB."""

Sums = tuple[Tensor, Tensor]
"""Keys row·words + column, ascending, int64 [entries], and their counts, float64 [entries]."""


def cooccurrences(
    corpus: WordCorpus, window: int, *, symmetric: bool = True, watch: Share | None = None, pairs: int = PAIRS
) -> tuple[Tensor, Tensor, Tensor]:
    """The entries of X that are not zero: X_ij = Σ 1/δ over the places where word j stands δ ≤ window before word i.

    symmetric   also where it stands behind
    pairs       of tokens that are counted at a time

    Pairs do not reach from one document into the next. Returns rows and columns, int32 [entries], and X, float64
    [entries]; without ``symmetric`` sorted by row, then by column.
    """
    words, tokens = len(corpus.words), len(corpus.ids)
    step = max(1, pairs // window)
    parts: list[Sums] = []
    for start in range(0, tokens, step):
        parts.append(_count(corpus, start, min(start + step, tokens), window, symmetric))
        while len(parts) > 1 and len(parts[-2][0]) < 2 * len(parts[-1][0]):
            _merge(parts)
        if watch is not None:
            watch(min(start + step, tokens) / tokens)
    while len(parts) > 1:
        _merge(parts)
    keys, counts = parts[0]
    rows, columns = (keys // words).int(), (keys % words).int()
    if not symmetric:
        return rows, columns, counts
    apart = rows != columns
    return (
        torch.cat([rows, columns[apart]]),
        torch.cat([columns, rows[apart]]),
        torch.cat([torch.where(apart, counts, 2 * counts), counts[apart]]),
    )


def _count(corpus: WordCorpus, start: int, stop: int, window: int, symmetric: bool) -> Sums:
    """Counts the pairs whose first token is one of start … stop; of symmetric pairs, the larger id comes first."""
    words, tokens = len(corpus.words), len(corpus.ids)
    ids = corpus.ids[start : stop + window].long()
    places = torch.arange(start, stop)
    end = corpus.ends[torch.searchsorted(corpus.ends, places, right=True)]
    keys, weights = [], []
    for distance in range(1, min(window, tokens - 1) + 1):
        inside = (places + distance < end).nonzero()[:, 0]
        before, after = ids[inside], ids[inside + distance]
        if symmetric:
            before, after = torch.minimum(before, after), torch.maximum(before, after)
        keys.append(after * words + before)
        weights.append(torch.full((len(inside),), 1 / distance, dtype=torch.float64))
    if not keys:
        return torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=torch.float64)
    return _sums(torch.cat(keys), torch.cat(weights))


def _merge(parts: list[Sums]) -> None:
    """Replaces the last two sums by their sum."""
    (more, more_counts), (keys, counts) = parts.pop(), parts.pop()
    parts.append(_sums(torch.cat([keys, more]), torch.cat([counts, more_counts])))


def _sums(keys: Tensor, counts: Tensor) -> Sums:
    ordered, order = keys.sort(stable=True)
    distinct, place = torch.unique_consecutive(ordered, return_inverse=True)
    return distinct, torch.bincount(place, weights=counts[order], minlength=len(distinct))
