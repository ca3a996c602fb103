"""Word2vec of Google News, a published file: read and evaluated as gensim does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from gensim.models import KeyedVectors

from headway.vectors import Vectors
from headway.vectors._evaluate import word_analogies, word_similarity
from headway.vectors._files import load
from headway.vectors._pretrained import Pretrained

Find = Callable[[str], Path]
FILE = "GoogleNews-vectors-negative300-bolukbasi.bin"
SPEARMAN = {
    "wordsim353.tsv": 0.688,
    "SimLex-999.tsv": 0.444,
    "MEN_dataset_natural_form_full.tsv": 0.782,
    "MTURK-771.tsv": 0.674,
    "rw.tsv": 0.655,
}


@pytest.fixture
def vectors(weights: Find) -> Pretrained:
    read = load(weights("google-news") / FILE)
    assert isinstance(read, Pretrained)
    return read


@pytest.fixture
def gensims(weights: Find) -> KeyedVectors:
    return KeyedVectors.load_word2vec_format(weights("google-news") / FILE, binary=True)


def test_king_is_to_man_as_queen_to_woman(vectors: Vectors) -> None:
    [(word, cosine)] = vectors.analogy("man", "king", "woman", 1)
    assert word == "queen"
    assert cosine == pytest.approx(0.712, abs=5e-4)


def test_it_is_read_as_gensim_reads_it(vectors: Pretrained, gensims: KeyedVectors) -> None:
    assert len(vectors) == 26_423
    assert list(vectors.words) == gensims.index_to_key
    assert np.array_equal(vectors.matrix.numpy(), gensims.vectors)


@pytest.mark.parametrize("file", SPEARMAN)
def test_likeness_is_gensims(file: str, vectors: Vectors, gensims: KeyedVectors, weights: Find) -> None:
    path = weights("google-news") / file
    found = word_similarity(vectors, path)
    pearson, spearman, unknown = gensims.evaluate_word_pairs(path)
    assert found.spearman == pytest.approx(SPEARMAN[file], abs=5e-4)
    assert found.spearman == pytest.approx(spearman.statistic, abs=1e-9)
    assert found.pearson == pytest.approx(pearson.statistic, abs=1e-7)
    assert found.coverage == pytest.approx(1 - unknown / 100, abs=1e-12)


def test_analogies(vectors: Vectors, weights: Find) -> None:
    """The numbers that gensim gives, which takes it half a minute; the test below asks it for some."""
    found = word_analogies(vectors, weights("google-news") / "questions-words.txt")
    assert (found.correct, found.used, found.total) == (6_372, 8_740, 19_544)
    assert found.accuracy == pytest.approx(0.729, abs=5e-4)
    assert len(found.sections) == 14


def test_analogies_are_gensims(vectors: Vectors, gensims: KeyedVectors, weights: Find, tmp_path: Path) -> None:
    lines = (weights("google-news") / "questions-words.txt").read_text(encoding="utf-8").splitlines()
    path = tmp_path / "some.txt"
    path.write_text("\n".join(line for n, line in enumerate(lines) if line[0] == ":" or n % 20 == 0), encoding="utf-8")
    found = word_analogies(vectors, path)
    score, sections = gensims.evaluate_word_analogies(path)
    assert [section.correct for section in found.sections] == [len(section["correct"]) for section in sections[:-1]]
    assert [section.used for section in found.sections] == [
        len(section["correct"]) + len(section["incorrect"]) for section in sections[:-1]
    ]
    assert found.accuracy == pytest.approx(score, abs=1e-12)
