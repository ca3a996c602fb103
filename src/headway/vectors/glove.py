"""GloVe: vectors fitted to co-occurrence counts."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from .._common.progress import Share, part_of
from ..errors import HeadwayError, need_positive
from ._base import MatrixVectors
from ._cooccurrence import cooccurrences
from ._text import Tokenizer, WordCorpus

COUNTING = 0.1
"""The share of counting in the work, for ``watch``."""

BLOCK = 2048
"""The vectors processed at once, which fit into the processor's cache."""

STEPS, LEAST = 64, 1024
"""An epoch has at least STEPS steps, unless these would have fewer than LEAST entries."""

Gradient = list[tuple[Tensor, Tensor]]
"""In blocks, the rows with a gradient, int64 [n], and its values, [n, dim + 2]."""


class GloVe(MatrixVectors):
    """Vectors whose products are fitted to the logarithms of co-occurrence counts.

        J = Σ_ij f(X_ij) (w_i·w̃_j + b_i + b̃_j − ln X_ij)²,   f(x) = min(1, (x / x_max)^α),   over X_ij > 0

    A word's vector is w + w̃. X_ij is the sum of 1/δ over the places where the words stand δ tokens apart in one
    document. J is minimised by AdaGrad on random batches of the entries of X, fixed for all epochs:

        g ← η ∂(J/2)/∂θ of a batch,   a ← a + g²,   θ ← θ − g / √a,   a = 1 at the start

    Args:
        dim: the width of a vector.
        window: the largest δ.
        symmetric: whether X counts words on both sides of a word, or only those before it.
        x_max: the count from which f is 1. The paper's 100 is for billions of words; for 10 MB of text, 10 or less
            learns far faster.
        alpha: the exponent of f.
        epochs: the number of passes over the entries of X. The paper uses 50, and 100 for dim ≥ 300.
        learning_rate: η.
        batch: the number of entries of X in a step; smaller in a small corpus, where an epoch has 64 steps.
        seed: the seed of the initial vectors and of the order. It gives the same vectors again on one kind of
            processor.
        min_count: words that occur less often are left out.
        max_words: only this many words are kept, the most frequent; all of them if None.
        tokenizer: cuts a text into tokens; ``Words()`` if None.

    Attributes:
        costs: after ``fit``, J/2 of each epoch, summed over batches before their steps.

    Raises:
        HeadwayError: if an option is out of range; ``fit`` raises it if no two words occur together, or J diverges.

    References:
        Pennington et al. 2014; Duchi et al. 2011 (AdaGrad).
    """

    name = "glove"

    def __init__(
        self,
        *,
        dim: int = 100,
        window: int = 10,
        symmetric: bool = True,
        x_max: float = 100.0,
        alpha: float = 0.75,
        epochs: int = 50,
        learning_rate: float = 0.05,
        batch: int = 131072,
        seed: int = 0,
        min_count: int = 5,
        max_words: int | None = None,
        tokenizer: Tokenizer | None = None,
    ) -> None:
        super().__init__(min_count=min_count, max_words=max_words, tokenizer=tokenizer)
        need_positive(dim=dim, window=window, epochs=epochs, batch=batch)
        for option, size in {"x_max": x_max, "learning_rate": learning_rate}.items():
            if not 0 < size < math.inf:
                raise HeadwayError(f"{option} is {size}: give a number above 0")
        if not 0 <= alpha < math.inf:
            raise HeadwayError(f"alpha is {alpha}: give a number from 0 on, such as 0.75")
        self._dim, self.window, self.symmetric, self.x_max, self.alpha = dim, window, symmetric, x_max, alpha
        self.epochs, self.learning_rate, self.batch, self.seed = epochs, learning_rate, batch, seed
        self.costs: list[float] = []

    def _fit(self, corpus: WordCorpus, watch: Share) -> None:
        rows, columns, x = cooccurrences(
            corpus, self.window, symmetric=self.symmetric, watch=part_of(watch, 0.0, COUNTING)
        )
        if not len(x):
            raise HeadwayError(
                f"no two of the corpus's {len(corpus.ids)} words occur in one text: give texts of several words"
            )
        draw = torch.Generator().manual_seed(self.seed)
        factors = Factors(len(corpus.words), self.dim, draw)
        order = torch.randperm(len(x), generator=draw)
        size = min(self.batch, max(LEAST, len(x) // STEPS))
        weights = (x / self.x_max).clamp(max=1).pow(self.alpha).float()
        logs = x.log().float()
        batches = [Batch.of(rows[some], columns[some], weights[some], logs[some]) for some in order.split(size)]
        del rows, columns, x, weights, logs, order
        start = sum(factors.cost(batch) for batch in batches)
        self.costs = []
        for epoch in range(self.epochs):
            cost = 0.0
            for done, number in enumerate(torch.randperm(len(batches), generator=draw).tolist()):
                cost += factors.step(batches[number], self.learning_rate)
                watch(COUNTING + (1 - COUNTING) * (epoch + (done + 1) / len(batches)) / self.epochs)
            if not factors.finite():
                cost = math.nan
            if not cost <= TOO_MUCH * max(start, 1.0):  # also if it is NaN
                raise HeadwayError(
                    f"the cost was {start:.4g} at the start and is {cost:.4g} after epoch {epoch + 1}: "
                    f"lower learning_rate, which is {self.learning_rate:g}"
                )
            self.costs.append(cost)
        self._set(factors.vectors())


TOO_MUCH = 10.0
"""The multiple of the initial cost that counts as a failure."""


@dataclass(frozen=True, eq=False)
class Batch:
    """Entries of X sorted by row, and how they are sorted by column.

    rows, columns    int32 [entries]
    weights, logs    f(X) and ln X, float [entries]
    by_column        int32 [entries]: the entries in the order of their columns
    """

    rows: Tensor
    columns: Tensor
    weights: Tensor
    logs: Tensor
    by_column: Tensor

    @classmethod
    def of(cls, rows: Tensor, columns: Tensor, weights: Tensor, logs: Tensor) -> Batch:
        """From entries in any order."""
        rows, order = rows.sort(stable=True)
        columns = columns[order]
        return cls(rows, columns, weights[order], logs[order], columns.argsort(stable=True).int())


class Factors:
    """Two tables that X is made of, and AdaGrad's sums of squares for each.

    A row of ``left`` is (w_i, b_i, 1) and one of ``right`` (w̃_j, 1, b̃_j), so that their product is the whole model.
    """

    def __init__(self, words: int, dim: int, draw: torch.Generator, dtype: torch.dtype = torch.float32) -> None:
        self.left, self.right = (((torch.rand(words, dim + 2, generator=draw) - 0.5) / dim).to(dtype) for _ in range(2))
        self.left[:, -1] = self.right[:, -2] = 1
        self.left_squares, self.right_squares = torch.ones_like(self.left), torch.ones_like(self.right)

    def vectors(self) -> Tensor:
        """w + w̃, [words, dim]"""
        return self.left[:, :-2] + self.right[:, :-2]

    def finite(self) -> bool:
        """Whether all numbers are; squares that overflow stop every step without a trace in the cost."""
        tables = (self.left, self.right, self.left_squares, self.right_squares)
        return all(bool(table.isfinite().all()) for table in tables)

    def cost(self, batch: Batch) -> float:
        """J/2 of the entries."""
        return self._error(batch)[1]

    def gradient(self, batch: Batch) -> tuple[float, Gradient, Gradient]:
        """J/2 of the entries, and its gradient with respect to each table."""
        error, cost = self._error(batch)
        left = list(_sums(batch.rows, batch.columns, error, self.right))
        turn = batch.by_column
        right = list(_sums(batch.columns[turn], batch.rows[turn], error[turn], self.left))
        for _, values in left:
            values[:, -1] = 0
        for _, values in right:
            values[:, -2] = 0
        return cost, left, right

    def step(self, batch: Batch, learning_rate: float) -> float:
        """One step of AdaGrad; returns J/2 of the entries before it."""
        cost, left, right = self.gradient(batch)
        for table, squares, gradient in (
            (self.left, self.left_squares, left),
            (self.right, self.right_squares, right),
        ):
            for rows, values in gradient:
                values.mul_(learning_rate)
                sums = squares.index_select(0, rows).addcmul_(values, values)
                squares.index_copy_(0, rows, sums)
                table.index_copy_(0, rows, table.index_select(0, rows).addcdiv_(values, sums.sqrt_(), value=-1))
        return cost

    def _error(self, batch: Batch) -> tuple[Tensor, float]:
        """Returns f(X)·(model − ln X) of each entry, and the cost."""
        products = torch.cat(
            [
                self.left.index_select(0, rows).mul_(self.right.index_select(0, columns)).sum(1)
                for rows, columns in zip(batch.rows.split(BLOCK), batch.columns.split(BLOCK), strict=True)
            ]
        )
        apart = products.sub_(batch.logs)
        error = apart * batch.weights
        return error, float(error @ apart) / 2


def _sums(keys: Tensor, others: Tensor, error: Tensor, table: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yields, in blocks, the distinct keys, ascending, and Σ error·table[other] over the entries of each."""
    rows, counts = torch.unique_consecutive(keys, return_counts=True)
    stops = counts.cumsum(0)
    first = 0
    for some, stop, count in zip(rows.split(BLOCK), stops.split(BLOCK), counts.split(BLOCK), strict=True):
        last = int(stop[-1])
        starts = (stop - count - first).to(others.dtype)
        part = slice(first, last)
        yield some.long(), F.embedding_bag(others[part], table, starts, mode="sum", per_sample_weights=error[part])
        first = last
