"""Word2vec: what it learns, and that it is gensim's to the last bit where gensim does not drop words."""

import hashlib
import os
import random
import subprocess
import sys
import threading
from typing import Any

import pytest
import torch
from gensim.models import Word2Vec as Gensim

from headway.errors import HeadwayError
from headway.vectors import Word2Vec

TOPICS = [[f"{topic}{number}" for number in "abcdef"] for topic in ("sea", "sky")]


def topical(sentences: int = 1200, length: int = 8) -> list[str]:
    """Sentences of the words of one topic each."""
    draw = random.Random(0)
    return [" ".join(draw.choices(TOPICS[number % 2], k=length)) for number in range(sentences)]


def uneven() -> list[str]:
    """Each word has a count of its own, so that gensim has no ties to break."""
    draw = random.Random(1)
    words = [f"w{number}" for number in range(30) for _ in range(5 + 3 * number)]
    draw.shuffle(words)
    return [" ".join(words[start : start + 17]) for start in range(0, len(words), 17)]


SMALL: dict[str, Any] = {"dim": 16, "min_count": 1, "epochs": 5, "subsample": 0}


@pytest.mark.parametrize(("architecture", "sg"), [("skip-gram", 1), ("cbow", 0)])
def test_against_gensim(architecture: str, sg: int) -> None:
    vectors = Word2Vec(dim=20, window=3, architecture=architecture, negative=4, seed=7, learning_rate=0.05)
    vectors.fit(uneven())
    sentences = [text.split() for text in uneven()]
    theirs = Gensim(sentences, vector_size=20, window=3, sg=sg, negative=4, seed=7, alpha=0.05, workers=1).wv
    assert list(vectors.words) == theirs.index_to_key
    assert torch.equal(vectors.matrix, torch.from_numpy(theirs.vectors))


@pytest.mark.parametrize("architecture", ["skip-gram", "cbow"])
def test_words_of_the_same_context_are_near(architecture: str) -> None:
    vectors = Word2Vec(architecture=architecture, **SMALL | {"learning_rate": 0.1}).fit(topical())
    units = torch.nn.functional.normalize(vectors.encode(" ".join(TOPICS[0] + TOPICS[1])), dim=1)
    cosines = units @ units.T
    within = torch.cat([cosines[:6, :6][~torch.eye(6, dtype=torch.bool)], cosines[6:, 6:].triu(1).flatten()])
    assert within[within != 0].min() > cosines[:6, 6:].max() + 0.3
    assert all(word.startswith("sea") for word, _ in vectors.most_similar("seaa", 5))


def test_the_architectures_differ() -> None:
    first, second = (Word2Vec(architecture=name, **SMALL).fit(topical(200)).matrix for name in ("skip-gram", "cbow"))
    assert not torch.allclose(first, second, atol=1e-3)


@pytest.mark.slow
def test_the_same_seed_in_another_process() -> None:
    code = (
        "import hashlib, sys; sys.path.insert(0, sys.argv[1])\n"
        "import test_word2vec as t\n"
        "m = t.Word2Vec(seed=5, **t.SMALL).fit(t.topical(100)).matrix\n"
        "print(hashlib.sha256(m.numpy().tobytes()).hexdigest())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, os.path.dirname(__file__)],
        env=os.environ | {"PYTHONHASHSEED": "4711"},
        capture_output=True,
        text=True,
        check=True,
    )
    matrix = Word2Vec(seed=5, **SMALL).fit(topical(100)).matrix
    assert done.stdout.strip() == hashlib.sha256(matrix.numpy().tobytes()).hexdigest()


def test_the_end_of_a_long_document_is_read() -> None:
    """gensim reads 10,000 words of a sentence: those behind them would keep the vectors that they began with."""
    draw = random.Random(0)
    text = " ".join(["filler", "padding"] * 12_000 + draw.choices(TOPICS[0], k=3_000))
    vectors = Word2Vec(**SMALL | {"epochs": 1}).fit([text])
    start = Gensim(vector_size=16, seed=0, min_count=1, sorted_vocab=0)
    start.build_vocab_from_freq(dict(zip(vectors.words, [1] * len(vectors), strict=True)))
    moved = (vectors.matrix - torch.from_numpy(start.wv.vectors)).abs().amax(1)
    assert all(moved[vectors.index[word]] > 1e-3 for word in TOPICS[0])
    cut = Gensim([text.split()], vector_size=16, seed=0, min_count=1, sg=1, sample=0, epochs=1, workers=1).wv
    begun = Gensim(vector_size=16, seed=0, min_count=1)
    begun.build_vocab([text.split()])
    assert (cut["seaa"] == begun.wv["seaa"]).all()  # what is guarded against is there


def test_empty_documents_are_nothing() -> None:
    texts = topical(60)
    holes = [text for pair in zip(texts, [""] * 60, strict=True) for text in pair]
    assert torch.equal(Word2Vec(**SMALL).fit(holes).matrix, Word2Vec(**SMALL).fit(texts).matrix)


def test_progress() -> None:
    told: list[float] = []
    Word2Vec(**SMALL | {"epochs": 4}).fit(topical(5000), watch=told.append)
    assert len(told) > 10
    assert told == sorted(told)
    assert told[-1] == 1


class StopError(Exception):
    pass


def test_an_error_of_the_watch_ends_the_training() -> None:
    def stop(part: float) -> None:
        raise StopError(str(part))

    before = set(threading.enumerate())
    with pytest.raises(StopError, match=r"0\.04"):
        Word2Vec(**SMALL).fit(topical(6250), watch=stop)
    for thread in set(threading.enumerate()) - before:
        thread.join(60)  # gensim's end by themselves, each after the words it is at
        assert not thread.is_alive()


def test_more_workers_learn_too() -> None:
    vectors = Word2Vec(workers=2, **SMALL | {"learning_rate": 0.1}).fit(topical())
    assert all(word.startswith("sky") for word, _ in vectors.most_similar("skya", 5))


def test_dim_before_and_after() -> None:
    assert Word2Vec(dim=7).dim == 7
    assert Word2Vec(dim=7).options["dim"] == 7
    assert Word2Vec(dim=7, min_count=1).fit(["a b c"]).vector("a").shape == (7,)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"architecture": "skipgram"}, "architecture is 'skipgram': give 'skip-gram' or 'cbow'"),
        ({"dim": 0}, "dim is 0: give at least 1"),
        ({"window": 0}, "window is 0"),
        ({"negative": 0}, "negative is 0"),
        ({"epochs": 0}, "epochs is 0"),
        ({"workers": 0}, "workers is 0"),
        ({"subsample": -1e-3}, "subsample is -0.001: give a share of all words"),
        ({"subsample": 1}, "subsample is 1"),
        ({"learning_rate": 0}, "learning_rate is 0"),
        ({"learning_rate": 1.5}, "learning_rate is 1.5"),
        ({"seed": -1}, "seed is -1"),
        ({"seed": 2**32}, "seed is 4294967296"),
    ],
)
def test_options_out_of_range(options: dict[str, Any], message: str) -> None:
    with pytest.raises(HeadwayError, match=message):
        Word2Vec(**options)


def test_too_few_of_each_word_for_the_default() -> None:
    with pytest.raises(HeadwayError, match="no word of the corpus occurs 5 times"):
        Word2Vec().fit(["the cat sat on the mat"])
