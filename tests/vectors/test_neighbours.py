"""Neighbours of several words, and the warning that they are noise, on data whose truth is known."""

import math
import random

import pytest
import torch
import torch.nn.functional as F

from headway.errors import HeadwayError
from headway.vectors import OneHot, Pretrained, Vectors, Word2Vec
from headway.vectors._neighbours import _expected, _reached

WORDS, DIM = 1000, 64
NAMES = [f"w{number}" for number in range(WORDS)]


def noise() -> torch.Tensor:
    return F.normalize(torch.randn(WORDS, DIM, generator=torch.Generator().manual_seed(0)), dim=1)


def clusters(each: int) -> torch.Tensor:
    """Words in groups, whose cosines are about 0.8 within a group and 0 between groups."""
    centres = F.normalize(torch.randn(WORDS // each, DIM, generator=torch.Generator().manual_seed(1)), dim=1)
    return math.sqrt(0.8) * centres.repeat_interleave(each, 0) + math.sqrt(0.2) * noise()


def common(rows: torch.Tensor) -> torch.Tensor:
    """The same with one direction that all share, and another one by frequency, as trained vectors have them."""
    rows = rows.clone()
    rows[:, 0] += 0.5
    rows[:, 1] += torch.linspace(-1, 1, len(rows))
    return rows


def alarms(vectors: Vectors) -> float:
    found = vectors.neighbours(vectors.words[::3])
    return sum(one.margin <= 0 for one in found) / len(found)


@pytest.mark.parametrize("rows", [noise(), common(noise())], ids=["noise", "noise with common directions"])
def test_unrelated_words_are_called_so(rows: torch.Tensor) -> None:
    assert alarms(Pretrained.of(NAMES, rows)) > 0.93


@pytest.mark.parametrize("share", [0.5, 1e-2, 1e-5])
def test_the_cosine_of_random_directions(share: float) -> None:
    """In three dimensions it is uniform, in five its density is ¾·(1 − t²)."""
    assert _reached(0, 1 / 3, [share])[0] == pytest.approx(1 - 2 * share, abs=0.01)
    (reached,) = _reached(0, 1 / 5, [share])
    assert 0.5 - 0.75 * reached + 0.25 * reached**3 == pytest.approx(share, rel=0.1)


@pytest.mark.parametrize(("mean", "variance"), [(0, 2), (0.99, 0.5), (-1, 0), (1, 0), (0.8, 0.1), (0, 1e-4)])
def test_no_cosine_is_beyond_one(mean: float, variance: float) -> None:
    reached = _reached(mean, variance, [1e-9, 1e-3, 0.5])
    assert all(-1 <= one <= 1 for one in reached)
    assert reached == sorted(reached, reverse=True)


def test_words_that_share_most_of_their_direction_are_not_all_in_doubt() -> None:
    """A cosine can be above chance however large the mean of all cosines is."""
    rows = clusters(5)
    rows[:, 0] += 1.5
    found = Pretrained.of(NAMES, rows).neighbours(NAMES[::20])
    assert min(one.chance for one in found) > 0.85
    assert all(one.margin > 0 for one in found)


@pytest.mark.parametrize("each", [2, 5, 25])
def test_planted_groups_are_not(each: int) -> None:
    assert alarms(Pretrained.of(NAMES, clusters(each))) < 0.03


def test_a_text_in_random_order_and_one_with_topics() -> None:
    draw = random.Random(0)
    topics = [[f"t{topic}x{number}" for number in range(20)] for topic in range(20)]
    every = [word for topic in topics for word in topic]
    found = {}
    for name in ("random", "topics"):
        texts = []
        for _ in range(400):
            words = draw.choice(topics) if name == "topics" else every
            texts.append(" ".join(draw.choice(words if draw.random() < 0.5 else every) for _ in range(30)))
        found[name] = alarms(Word2Vec(dim=64, epochs=20, min_count=1).fit(texts))
    assert found["random"] > 0.9
    assert found["topics"] < 0.1


def test_orthogonal_vectors_have_no_neighbours() -> None:
    one = Pretrained.of(NAMES[:50], torch.eye(50)).neighbours(["w3"])[0]
    assert one.nearest[0][1] == 0
    assert one.doubt is not None
    with pytest.raises(HeadwayError, match="right angles"):
        OneHot().fit(["a b"]).neighbours(["a"])


def test_results_are_in_the_order_of_the_words_and_unknown_ones_have_spellings() -> None:
    vectors = Pretrained.of([*NAMES[:-1], "king"], clusters(25))
    first, unknown, last = vectors.neighbours(["w1", "kign", "w0"], 3)
    assert [first.word, unknown.word, last.word] == ["w1", "kign", "w0"]
    assert list(first.nearest) == vectors.most_similar("w1", 3)
    assert (unknown.known, unknown.nearest, unknown.spellings, unknown.doubt) == (False, (), ("king",), None)
    assert first.count is None
    with pytest.raises(HeadwayError, match="words is the text 'w1'"):
        vectors.neighbours("w1")
    with pytest.raises(HeadwayError, match="count is 0"):
        vectors.neighbours(["w1"], 0)
    assert vectors.neighbours([]) == []


def test_a_rare_word_is_in_doubt() -> None:
    vectors = Pretrained.of(NAMES, clusters(25))
    vectors.counts = torch.arange(WORDS)
    once, four, five = vectors.neighbours(["w1", "w4", "w5"])
    assert (once.count, four.count) == (1, 4)
    assert "occurs once" in str(once.doubt)
    assert "occurs 4 times" in str(four.doubt)
    assert five.doubt is None


def test_one_word_alone_has_no_neighbours() -> None:
    assert not Pretrained.of(["a"], torch.ones(1, 4)).neighbours(["a"])[0].known


@pytest.mark.parametrize("rank", [1, 3, 10])
def test_the_mean_of_a_poisson_distribution(rank: int) -> None:
    mean = _expected(rank, 0.025)
    below = sum(math.exp(-mean) * mean**k / math.factorial(k) for k in range(rank))
    assert 1 - below == pytest.approx(0.025, abs=1e-6)


def test_vectors_that_were_hardly_trained_are_said_to_have_one_direction() -> None:
    rows = torch.ones(WORDS, DIM) + 0.01 * noise()
    found = Pretrained.of(NAMES, rows).neighbours(NAMES[:50])
    doubts = [one.doubt for one in found if one.margin <= 0]
    assert len(doubts) > 40
    assert all("almost the same direction" in str(doubt) and "more epochs" in str(doubt) for doubt in doubts)
    assert "by chance" in str(Pretrained.of(NAMES, noise()).neighbours(["w0"])[0].doubt)
