"""Likeness and analogies, as gensim evaluates them."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from gensim.models import KeyedVectors
from gensim.test.utils import datapath
from scipy.stats import pearsonr, spearmanr

from headway.errors import HeadwayError
from headway.vectors import FastText, OneHot
from headway.vectors._evaluate import _correlation, _ranks, word_analogies, word_similarity
from headway.vectors._pretrained import Pretrained

PAIRS = [("tiger", "cat", 7.35), ("tiger", "tiger", 10.0), ("book", "paper", 7.46), ("cat", "book", 1.0)]


def made(words: list[str], dim: int = 20, seed: int = 0) -> tuple[Pretrained, KeyedVectors]:
    """Random vectors, those of a kind near to one another, as ours and as gensim's."""
    numbers = torch.randn(len(words), dim, generator=torch.Generator().manual_seed(seed))
    numbers += 0.4 * torch.randn(1, dim, generator=torch.Generator().manual_seed(1))
    keyed = KeyedVectors(dim)
    keyed.add_vectors(words, numbers.numpy())
    return Pretrained.of(words, numbers), keyed


def words_of(file: str, every: int) -> list[str]:
    """Of the words of a test set all but every so manieth, some of them in other letters."""
    lines = Path(datapath(file)).read_text(encoding="utf-8").splitlines()
    words = dict.fromkeys(word for line in lines if line[:1] not in "#:" for word in line.split() if word.isalpha())
    kept = [word for number, word in enumerate(words) if number % every]
    return list(dict.fromkeys([word.lower() for word in kept[::5]] + kept + [word.upper() for word in kept[::7]]))


@pytest.mark.parametrize("file", ["wordsim353.tsv", "simlex999.txt"])
@pytest.mark.parametrize("limit", [300_000, 200])
def test_likeness_is_gensims(file: str, limit: int) -> None:
    ours, keyed = made(words_of(file, 6))
    found = word_similarity(ours, datapath(file), limit=limit)
    pearson, spearman, unknown = keyed.evaluate_word_pairs(datapath(file), restrict_vocab=limit)
    assert found.spearman == pytest.approx(spearman.statistic, abs=1e-9)
    assert found.pearson == pytest.approx(pearson.statistic, abs=1e-7)
    assert found.coverage == pytest.approx(1 - unknown / 100, abs=1e-12)
    assert 0 < found.used < found.total == {"w": 353, "s": 999}[file[0]]


@pytest.mark.parametrize("limit", [300_000, 600])
def test_analogies_are_gensims_kind_by_kind(limit: int, tmp_path: Path) -> None:
    """Vectors are sums of a part for the country, the sort, …, so that some answers are right."""
    lines = Path(datapath("questions-words.txt")).read_text(encoding="utf-8").splitlines()
    path = tmp_path / "questions.txt"
    path.write_text("\n".join(line for n, line in enumerate(lines) if line[0] == ":" or n % 25 == 0), encoding="utf-8")
    words = words_of("questions-words.txt", 9)
    ours, keyed = made(words, dim=8)
    numbers = ours.matrix.clone()
    place = ours.index
    for line in path.read_text(encoding="utf-8").splitlines():
        four = line.split()
        if line[0] != ":" and all(word in place for word in four):
            a, b, c, d = (place[word] for word in four)
            numbers[d] = torch.nn.functional.normalize(numbers[[a, b, c]], dim=1).T @ torch.tensor([-1.0, 1, 1])
    ours._set(numbers + 0.05 * ours.matrix)
    keyed = KeyedVectors(8)
    keyed.add_vectors(words, ours.matrix.numpy())
    found = word_analogies(ours, path, limit=limit)
    score, sections = keyed.evaluate_word_analogies(path, restrict_vocab=limit)
    assert [section.name for section in found.sections] == [section["section"] for section in sections[:-1]]
    assert [section.correct for section in found.sections] == [len(section["correct"]) for section in sections[:-1]]
    assert [section.used - section.correct for section in found.sections] == [
        len(section["incorrect"]) for section in sections[:-1]
    ]
    assert found.accuracy == pytest.approx(score, abs=1e-12)
    assert 0 < found.correct < found.used < found.total
    assert sum(0 < section.correct < section.used for section in found.sections) > (5 if limit > 1000 else 0)


def test_ranks_and_correlations_are_scipys() -> None:
    generator = torch.Generator().manual_seed(0)
    for high in (3, 10, 1000):
        x = torch.randint(high, (200,), generator=generator).double()
        y = x + torch.randint(high, (200,), generator=generator)
        assert _correlation(_ranks(x), _ranks(y)) == pytest.approx(spearmanr(x, y).statistic, abs=1e-12)
        assert _correlation(x, y) == pytest.approx(pearsonr(x, y).statistic, abs=1e-12)
    assert _ranks(torch.tensor([7.0, 1, 7, 3])).tolist() == [2.5, 0, 2.5, 1]


# ---------------------------------------------------------------- pairs


@pytest.mark.parametrize(
    "text",
    [
        "tiger\tcat\t7.35\ntiger\ttiger\t10\nbook\tpaper\t7.46\ncat\tbook\t1\n",
        "# a test set\nword1\tword2\tscore\nTiger\tCAT\t7.35\n\ntiger\ttiger\t10\r\nbook\tpaper\t7.46\ncat\tbook\t1",
        "Word 1,Word 2,Human (mean)\ntiger,cat,7.35\ntiger,tiger,10.00\nbook,paper,7.46\ncat,book,1\n",
        "tiger cat 7.35\ntiger tiger 10\nbook paper 7.46\ncat book 1\n",
        "tiger\t\tcat\t\t7.35\ntiger\ttiger\t10\nbook\tpaper\t7.46\ncat\t\tbook\t1\n",
        "word1\tword2\tPOS\tSimLex999\tconc\ntiger\tcat\tN\t7.35\t1\ntiger\ttiger\tN\t10\t2\n"
        "book\tpaper\tN\t7.46\t3\ncat\tbook\tN\t1\t4\n",
        "\ufefftiger\tcat\t7.35\ntiger\ttiger\t10\nbook\tpaper\t7.46\ncat\tbook\t1\n",
    ],
)
def test_pairs_as_people_have_them(text: str, tmp_path: Path) -> None:
    ours, _ = made(["tiger", "cat", "book", "paper"])
    (tmp_path / "pairs").write_text(text, encoding="utf-8", newline="")
    assert word_similarity(ours, tmp_path / "pairs") == word_similarity(ours, PAIRS)
    assert word_similarity(ours, str(tmp_path / "pairs")).total == 4


def test_pairs_whose_words_are_written_in_other_ways() -> None:
    """As a file of macOS has é in two characters, and typographers another apostrophe."""
    ours, _ = made(["café", "don’t", "book", "paper"])
    asked = [("cafe\u0301", "don't", 3.0), ("BOOK", "ｐａｐｅｒ", 1.0)]
    assert word_similarity(ours, asked).used == 2
    assert word_analogies(ours, [("cafe\u0301", "don't", "ｂｏｏｋ", "paper")]).used == 1


def test_pairs_by_hand() -> None:
    ours = Pretrained.of(["a", "b", "c", "A", "zero"], torch.tensor([[1.0, 0], [1, 1], [0, 3], [-1, 0], [0, 0]]))
    pairs = [("a", "b", 5), ("A", "c", 1.5), ("b", "C", 9), ("a", "x", 2), ("zero", "a", 1)]
    found = word_similarity(ours, pairs)
    cosines, scores = [math.sqrt(0.5), 0, math.sqrt(0.5), 0], [5, 1.5, 9, 1]
    assert (found.used, found.total, found.coverage) == (4, 5, 0.8)
    assert found.pearson == pytest.approx(pearsonr(cosines, scores).statistic, abs=1e-7)
    assert found.spearman == pytest.approx(spearmanr(np.round(cosines, 6), scores).statistic)


def test_one_hot_vectors_are_all_equally_alike() -> None:
    ours = OneHot().fit(["tiger cat book paper"])
    assert word_similarity(ours, PAIRS).used == 4
    assert math.isnan(word_similarity(ours, [pair for pair in PAIRS if pair[0] != pair[1]]).spearman)


def test_sub_words_make_vectors_of_words_that_were_not_seen() -> None:
    ours = FastText(dim=5, bucket=50, min_count=1, epochs=1).fit(["the tiger and the cat", "a book of paper"])
    pairs = [("Tigers", "cats", 3.0), ("tiger", "books", 2.0), ("the", "of", 1.0), ("two words", "cat", 1.0)]
    found = word_similarity(ours, pairs)
    assert (found.used, found.total) == (3, 4)
    cosines = [ours.similarity("tigers", "cats"), ours.similarity("tiger", "books"), ours.similarity("the", "of")]
    assert found.pearson == pytest.approx(pearsonr(cosines, [3, 2, 1]).statistic, abs=1e-6)


def test_what_is_wrong_in_pairs_is_named(tmp_path: Path) -> None:
    ours, _ = made(["tiger", "cat"])
    path = tmp_path / "pairs.tsv"
    for text, says in [
        ("tiger\tcat\t7\ntiger\tcat\n", "line 2: 'tiger.tcat' is not two words and a score: correct it"),
        ("# x\na\tb\tscore\n\ntiger\tcat\tmuch\n", "line 4: 'tiger.tcat.tmuch' is not two words and a score"),
        ("", "holds no pairs: give a file with lines of two words and a score"),
        ("word1\tword2\n", "holds no pairs"),
        ("lion\tcat\t3\n", "none of the 1 pairs has a vector for both words: give others"),
    ]:
        path.write_text(text, encoding="utf-8")
        with pytest.raises(HeadwayError, match=says):
            word_similarity(ours, path)
    path.write_bytes(b"caf\xe9\tcat\t3\n")
    with pytest.raises(HeadwayError, match=r"pairs.tsv cannot be read .*: give a text file in UTF-8"):
        word_similarity(ours, path)
    with pytest.raises(HeadwayError, match=r"nowhere.tsv cannot be read"):
        word_similarity(ours, tmp_path / "nowhere.tsv")
    with pytest.raises(HeadwayError, match=r"a pair is \('tiger', 'cat'\): give \(word, word, score\)"):
        word_similarity(ours, [("tiger", "cat")])  # type: ignore[list-item]
    with pytest.raises(HeadwayError, match="limit is 0: give at least 1"):
        word_similarity(ours, PAIRS, limit=0)
    with pytest.raises(HeadwayError, match=r"Pretrained has no vectors yet"):
        word_similarity(Pretrained(), PAIRS)


# ---------------------------------------------------------------- analogies


def test_analogies_by_hand(tmp_path: Path) -> None:
    words = ["man", "king", "woman", "queen", "apple", "Queen", "KING"]  # the last is nearest, and no other word
    matrix = torch.tensor([[1.0, 0, 0], [1, 1, 0], [-1, 0, 0], [-1, 1, 0.1], [0, 0, 1], [1, 1, 1], [-1.3, 0.7, 0]])
    ours = Pretrained.of(words, matrix)
    four = [("man", "king", "woman", "queen"), ("man", "king", "woman", "apple"), ("man", "king", "sea", "queen")]
    found = word_analogies(ours, four)
    assert (found.correct, found.used, found.total) == (1, 2, 3)
    assert (found.accuracy, found.coverage) == (0.5, 2 / 3)
    path = tmp_path / "questions"
    path.write_text(": royal family\nMan King Woman QUEEN\n\nman king woman apple\n: sea\nman king sea queen\n")
    found = word_analogies(ours, path)
    assert [(one.name, one.correct, one.used, one.total) for one in found.sections] == [
        ("royal family", 1, 2, 2),
        ("sea", 0, 0, 1),
    ]
    assert math.isnan(found.sections[1].accuracy)


def test_what_is_wrong_in_questions_is_named(tmp_path: Path) -> None:
    ours, _ = made(["a", "b", "c", "d"])
    path = tmp_path / "questions.txt"
    for text, says in [
        (": x\na b c d\na b c\n", "line 3: 'a b c' is not four words: correct it"),
        (": x\n", "holds no questions: give a file with lines of four words"),
        (": x\na b c z\n", "none of the 1 questions has four known words: give others"),
    ]:
        path.write_text(text)
        with pytest.raises(HeadwayError, match=says):
            word_analogies(ours, path)
    with pytest.raises(HeadwayError, match=r"a question is \('a', 'b'\): give four words"):
        word_analogies(ours, [("a", "b")])
    with pytest.raises(HeadwayError, match=r"nowhere.txt cannot be read"):
        word_analogies(ours, tmp_path / "nowhere.txt")
    with pytest.raises(HeadwayError, match="none of the 0 questions"):
        word_analogies(ours, [])


def test_a_way_without_analogies_says_so() -> None:
    with pytest.raises(HeadwayError, match="one-hot vectors hold no relation between"):
        word_analogies(OneHot().fit(["a b c d"]), [("a", "b", "c", "d")])
