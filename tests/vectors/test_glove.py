"""GloVe: counts, cost, gradient and step against the paper's sums written as loops, in float64."""

import math
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import headway.vectors.glove as module
from headway.errors import HeadwayError
from headway.vectors import Words
from headway.vectors._cooccurrence import cooccurrences
from headway.vectors._text import WordCorpus
from headway.vectors.glove import Batch, Factors, GloVe

TEXTS = ["the cat sat on the mat", "a dog", "", "the the the", "dog", "on a mat the dog sat and the cat ran"]


def corpus(texts: list[str], min_count: int = 1) -> WordCorpus:
    return WordCorpus.of(texts, Words(), min_count=min_count)


def literal_counts(texts: list[str], window: int, symmetric: bool) -> dict[tuple[str, str], float]:
    """1/δ for each neighbour of each word, text by text."""
    found: Counter[tuple[str, str]] = Counter()
    for text in texts:
        words = text.split()
        for i, word in enumerate(words):
            for j, context in enumerate(words):
                if i != j and abs(i - j) <= window and (symmetric or j < i):
                    found[word, context] += 1 / abs(i - j)  # type: ignore[assignment]
    return dict(found)


def by_words(of: WordCorpus, found: tuple[Tensor, Tensor, Tensor]) -> dict[tuple[str, str], float]:
    rows, columns, counts = (x.tolist() for x in found)
    assert len(set(zip(rows, columns, strict=True))) == len(rows), "each entry once"
    return {(of.words[i], of.words[j]): x for i, j, x in zip(rows, columns, counts, strict=True)}


# ---------------------------------------------------------------- counts


@pytest.mark.parametrize("pairs", [1, 7, 20, 2**22])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("window", [1, 2, 3, 10, 50])
def test_counts_are_the_literal_ones(window: int, symmetric: bool, pairs: int) -> None:
    """However few pairs are counted at a time: window, weights, ends of documents, order."""
    of = corpus(TEXTS)
    found = by_words(of, cooccurrences(of, window, symmetric=symmetric, pairs=pairs))
    assert found == pytest.approx(literal_counts(TEXTS, window, symmetric), rel=1e-14)


def test_counts_of_a_longer_text() -> None:
    draw = random.Random(0)
    texts = [" ".join(draw.choices("abcdefgh", [9, 5, 3, 2, 1, 1, 1, 1], k=draw.randrange(60))) for _ in range(20)]
    of = corpus(texts)
    found = by_words(of, cooccurrences(of, 10, pairs=500))
    assert found == pytest.approx(literal_counts(texts, 10, True), rel=1e-12)


def test_words_left_out_close_the_gap() -> None:
    """As in the reference: δ counts the words of the vocabulary."""
    texts = ["a x a b", "b a b"]
    of = corpus(texts, min_count=2)
    assert by_words(of, cooccurrences(of, 1)) == literal_counts(["a a b", "b a b"], 1, True)


# ---------------------------------------------------------------- cost, gradient, step


def problem(words: int = 6, dim: int = 3, seed: int = 0) -> tuple[Factors, Tensor, Tensor, Tensor]:
    """Float64 tables of the size of one, and an X with some entries missing and duplicates of rows and columns."""
    draw = torch.Generator().manual_seed(seed)
    factors = Factors(words, dim, draw, torch.float64)
    for table in (factors.left, factors.right):
        table.copy_(torch.randn(table.shape, generator=draw, dtype=torch.float64))
    factors.left[:, -1] = factors.right[:, -2] = 1
    for squares in (factors.left_squares, factors.right_squares):
        squares.add_(torch.rand(squares.shape, generator=draw, dtype=torch.float64))
    rows, columns = (torch.rand(words, words, generator=draw) < 0.6).nonzero().int().T
    mixed = torch.randperm(len(rows), generator=draw)
    x = 30 * torch.rand(len(rows), generator=draw, dtype=torch.float64) ** 2 + 0.1
    return factors, rows[mixed], columns[mixed], x


def weigh(x: Tensor, x_max: float = 10.0, alpha: float = 0.75) -> tuple[Tensor, Tensor]:
    return (x / x_max).clamp(max=1) ** alpha, x.log()


def literal_cost(w: Tensor, b: Tensor, v: Tensor, c: Tensor, rows: Tensor, columns: Tensor, x: Tensor) -> Tensor:
    """The paper's J with x_max = 10, word by word; differentiable."""
    total = torch.zeros((), dtype=torch.float64)
    for i, j, count in zip(rows.tolist(), columns.tolist(), x.tolist(), strict=True):
        weight = (count / 10) ** 0.75 if count < 10 else 1.0
        total = total + weight * (w[i] @ v[j] + b[i] + c[j] - math.log(count)) ** 2
    return total


def parts(factors: Factors) -> list[Tensor]:
    """w, b, w̃, b̃"""
    left, right = factors.left, factors.right
    return [x.clone() for x in (left[:, :-2], left[:, -2], right[:, :-2], right[:, -1])]


def whole(of: Factors, gradient: list[tuple[Tensor, Tensor]]) -> Tensor:
    """The gradient of a table, zeros where no row takes part."""
    out = torch.zeros_like(of.left)
    for rows, values in gradient:
        out[rows] += values
    return out


@pytest.mark.parametrize("block", [1, 2, 2048])
def test_cost_and_gradient_are_the_papers(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """J/2 and, by autograd through the literal sum, its gradient; in blocks of any size."""
    monkeypatch.setattr(module, "BLOCK", block)
    factors, rows, columns, x = problem()
    leaves = [part.requires_grad_() for part in parts(factors)]
    expected = literal_cost(*leaves, rows, columns, x) / 2
    w, b, v, c = torch.autograd.grad(expected, leaves)
    batch = Batch.of(rows, columns, *weigh(x))
    cost, left, right = factors.gradient(batch)
    assert cost == pytest.approx(expected.item(), rel=1e-13)
    assert factors.cost(batch) == cost
    nothing = torch.zeros(len(b), 1, dtype=torch.float64)
    torch.testing.assert_close(whole(factors, left), torch.cat([w, b[:, None], nothing], 1), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(whole(factors, right), torch.cat([v, nothing, c[:, None]], 1), rtol=1e-12, atol=1e-12)


def test_the_cost_of_a_corpus_is_the_papers() -> None:
    """From its texts: at the first vectors, which a rate of almost nothing leaves as they are."""
    vectors = GloVe(dim=5, window=3, x_max=0.9, alpha=0.6, min_count=1, epochs=1, learning_rate=1e-9, seed=4).fit(TEXTS)
    start = Factors(len(vectors), 5, torch.Generator().manual_seed(4))
    w, b, v, c = (part.double() for part in parts(start))
    expected = 0.0
    counts = literal_counts(TEXTS, 3, True)
    assert min(counts.values()) < 0.9 < max(counts.values())
    for (word, context), x in counts.items():
        i, j = vectors.id_of(word), vectors.id_of(context)
        weight = (x / 0.9) ** 0.6 if x < 0.9 else 1.0
        expected += weight * (w[i] @ v[j] + b[i] + c[j] - math.log(x)).item() ** 2
    assert vectors.costs == [pytest.approx(expected / 2, rel=1e-5)]
    torch.testing.assert_close(vectors.matrix, (w + v).float())


def test_gradient_against_differences() -> None:
    factors, rows, columns, x = problem(seed=1)
    batch = Batch.of(rows, columns, *weigh(x))
    _, left, right = factors.gradient(batch)
    for table, gradient, fixed in ((factors.left, left, -1), (factors.right, right, -2)):
        found = whole(factors, gradient)
        for i in range(table.shape[0]):
            for k in range(table.shape[1]):
                before = table[i, k].item()
                costs = []
                for step in (1e-5, -1e-5):
                    table[i, k] = before + step
                    costs.append(factors.cost(batch))
                table[i, k] = before
                slope = 0.0 if k == table.shape[1] + fixed else (costs[0] - costs[1]) / 2e-5
                assert found[i, k].item() == pytest.approx(slope, rel=1e-6, abs=1e-7)


def test_a_step_on_one_entry_is_adagrads() -> None:
    """Number by number, for several entries one after the other."""
    factors, rows, columns, x = problem(seed=2)
    w, b, v, c = ([row.tolist() if row.dim() else row.item() for row in part] for part in parts(factors))
    squares = [factors.left_squares.tolist(), factors.right_squares.tolist()]

    def move(value: float, square: list[float], place: int, gradient: float) -> float:
        step = 0.05 * gradient
        square[place] += step * step
        return value - step / math.sqrt(square[place])

    dim = len(w[0])
    for i, j, count in zip(rows.tolist(), columns.tolist(), x.tolist(), strict=True):
        one = torch.tensor([i], dtype=torch.int32), torch.tensor([j], dtype=torch.int32)
        factors.step(Batch.of(*one, *weigh(torch.tensor([count], dtype=torch.float64))), 0.05)
        apart = sum(p * q for p, q in zip(w[i], v[j], strict=True)) + b[i] + c[j] - math.log(count)
        error = min(1, (count / 10) ** 0.75) * apart
        left, right = list(w[i]), list(v[j])
        for k in range(dim):
            w[i][k] = move(left[k], squares[0][i], k, error * right[k])
            v[j][k] = move(right[k], squares[1][j], k, error * left[k])
        b[i] = move(b[i], squares[0][i], dim, error)
        c[j] = move(c[j], squares[1][j], dim + 1, error)
    for found, expected in zip(parts(factors), (w, b, v, c), strict=True):
        torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(factors.left_squares, torch.tensor(squares[0], dtype=torch.float64))
    torch.testing.assert_close(factors.right_squares, torch.tensor(squares[1], dtype=torch.float64))


def test_a_step_on_many_entries_takes_their_gradient_once() -> None:
    """Words that occur in several entries of a batch: their gradients are summed, then squared, then stepped."""
    factors, rows, columns, x = problem(seed=3)
    batch = Batch.of(rows, columns, *weigh(x))
    _, left, right = factors.gradient(batch)
    expected = []
    for table, squares, gradient in (
        (factors.left, factors.left_squares, left),
        (factors.right, factors.right_squares, right),
    ):
        step = 0.3 * whole(factors, gradient)
        expected.append(table - step / (squares + step**2).sqrt())
    factors.step(batch, 0.3)
    torch.testing.assert_close(factors.left, expected[0], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(factors.right, expected[1], rtol=1e-12, atol=1e-12)
    assert (factors.left[:, -1] == 1).all()
    assert (factors.right[:, -2] == 1).all()


# ---------------------------------------------------------------- the whole way

TOPICS = [[f"{topic}{number}" for number in "abcdef"] for topic in ("sea", "sky")]
SMALL: dict[str, Any] = {"dim": 12, "min_count": 1, "x_max": 10.0, "epochs": 30, "batch": 32}


def topical(sentences: int = 300, length: int = 8) -> list[str]:
    """Sentences of the words of one topic each."""
    draw = random.Random(0)
    return [" ".join(draw.choices(TOPICS[number % 2], k=length)) for number in range(sentences)]


def test_words_of_the_same_company_are_near() -> None:
    vectors = GloVe(**SMALL | {"epochs": 200}).fit([*topical(), "seaa skya"])
    assert all(word.startswith("sea") for word, _ in vectors.most_similar("seab", 5))
    assert vectors.dim == 12
    assert vectors.vector("skya").shape == (12,)


def test_a_file_can_hold_its_options() -> None:
    given = {**SMALL, "window": 3, "symmetric": False, "alpha": 0.5, "learning_rate": 0.1, "seed": 2, "max_words": 9}
    assert GloVe(**given).options == given
    assert GloVe().dim == 100


def test_the_cost_falls_to_that_of_the_result() -> None:
    vectors = GloVe(**SMALL).fit(topical())
    assert len(vectors.costs) == 30
    assert vectors.costs[-1] < 0.3 * vectors.costs[0]
    assert all(after < before for before, after in zip(vectors.costs[:5], vectors.costs[1:6], strict=True))


def test_the_same_seed_gives_the_same_bits() -> None:
    first, again, other = (GloVe(**SMALL, seed=seed).fit(topical(60)).matrix for seed in (3, 3, 4))
    assert torch.equal(first, again)
    assert not torch.allclose(first, other, atol=1e-3)


def test_threads_do_not_change_the_bits() -> None:
    before = torch.get_num_threads()
    matrices = []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            matrices.append(GloVe(**SMALL | {"epochs": 3}).fit(topical(60)).matrix)
    finally:
        torch.set_num_threads(before)
    assert torch.equal(*matrices)


@pytest.mark.parametrize(
    "change",
    [{"window": 1}, {"symmetric": False}, {"x_max": 1.0}, {"alpha": 0.1}, {"learning_rate": 0.01}, {"batch": 5}],
)
def test_each_option_changes_the_result(change: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LEAST", 32)
    options = SMALL | {"epochs": 2, "x_max": 200.0}
    texts = [*topical(60), "seaa skya skyb"]
    first, second = (GloVe(**options | more).fit(texts).matrix for more in ({}, change))
    assert not torch.allclose(first, second, atol=1e-4)


@pytest.mark.parametrize(
    ("entries", "batch", "sizes"), [(1000, 10**6, {1000}), (1000, 100, {100}), (640_000, 10**6, {10_000})]
)
def test_how_many_entries_a_step_takes(
    entries: int, batch: int, sizes: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A small corpus takes smaller steps than it was asked to."""
    found: list[int] = []
    drawn = torch.arange(entries, dtype=torch.int32) % 7
    monkeypatch.setattr(
        module, "cooccurrences", lambda *_, **more: (drawn, drawn, torch.ones(entries, dtype=torch.float64))
    )
    monkeypatch.setattr(Factors, "step", lambda self, batch, rate: found.append(len(batch.rows)) or 0.0)
    GloVe(dim=2, min_count=1, batch=batch, epochs=1).fit(["a b c d e f g"])
    assert set(found) == sizes
    assert sum(found) == entries


def test_a_corpus_with_one_word_and_a_tiny_one() -> None:
    vectors = GloVe(dim=4, min_count=1).fit(["buffalo buffalo buffalo"])
    assert vectors.matrix.shape == (1, 4)
    assert vectors.matrix.isfinite().all()
    two = GloVe(min_count=1).fit(["a b"])
    assert two.matrix.shape == (2, 100)
    assert two.costs[-1] <= two.costs[0]


def test_a_word_that_stands_alone_keeps_a_vector() -> None:
    vectors = GloVe(dim=4, min_count=1).fit(["a b a b", "alone"])
    assert 0 < vectors.vector("alone").norm() < 1


def test_nothing_to_count_is_refused() -> None:
    for texts in (["word"], ["one", "two", "three"]):
        with pytest.raises(HeadwayError, match="occur in one text: give texts of several words"):
            GloVe(min_count=1).fit(texts)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"dim": 0}, "dim is 0: give at least 1"),
        ({"window": 0}, "window is 0: give at least 1"),
        ({"epochs": 0}, "epochs is 0: give at least 1"),
        ({"batch": 0}, "batch is 0: give at least 1"),
        ({"x_max": 0.0}, "x_max is 0.0: give a number above 0"),
        ({"x_max": math.nan}, "x_max is nan: give a number above 0"),
        ({"learning_rate": -1.0}, "learning_rate is -1.0: give a number above 0"),
        ({"learning_rate": math.inf}, "learning_rate is inf: give a number above 0"),
        ({"alpha": -0.1}, "alpha is -0.1: give a number from 0 on"),
        ({"alpha": math.nan}, "alpha is nan: give a number from 0 on"),
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(HeadwayError, match=said):
        GloVe(**options)


@pytest.mark.parametrize("rate", [1e3, 1e30])
def test_a_cost_out_of_bounds_names_the_learning_rate(rate: float) -> None:
    with pytest.raises(HeadwayError, match=r"after epoch \d+: lower learning_rate, which is 1"):
        GloVe(**SMALL | {"dim": 100}, learning_rate=rate).fit(topical())


def test_a_cost_that_is_no_number_names_the_learning_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Factors, "step", lambda self, batch, rate: math.nan)
    with pytest.raises(HeadwayError, match=r"and is nan after epoch 1: lower learning_rate, which is 0.05"):
        GloVe(min_count=1).fit(["a b"])


def test_progress_counts_and_learns() -> None:
    told: list[float] = []
    GloVe(**SMALL).fit(topical(), watch=told.append)
    assert told == sorted(told)
    assert told[0] <= 0.1
    assert told[-1] == pytest.approx(1)
    assert len(told) > 30


def test_progress_of_counting(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[float] = []
    watch: Callable[[float], None] = told.append
    cooccurrences(corpus(TEXTS), 2, watch=watch, pairs=8)
    assert told == sorted(told)
    assert len(told) > 3
    assert told[-1] == 1
