"""FastText: its n-grams and hashes, seen and unseen words against gensim and against fastText's own output."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gensim.models import FastText as Gensim
from gensim.models.fasttext import FastTextKeyedVectors, ft_ngram_hashes, load_facebook_vectors
from gensim.test.utils import datapath

from headway.errors import HeadwayError
from headway.vectors import FastText, Vocabulary, Words, load
from headway.vectors.fasttext import ngrams_of

pytestmark = pytest.mark.slow

LEE = Path(datapath("lee_background.cor")).read_text().splitlines()
CHINESE = ["国王 和 王后 住在 北京", "国王 喜欢 naïve 的 café", "王后 在 北京 喝 Čaj 和 café"] * 3
STRANGE = "ⵥⵣⵥⵣⵥ"
SMALL: dict[str, Any] = {"dim": 12, "epochs": 2}


@pytest.fixture(scope="module")
def vectors() -> FastText:
    return FastText(**SMALL | {"epochs": 5}).fit(LEE[:150])


@pytest.fixture(scope="module")
def chinese() -> FastText:
    return FastText(dim=8, min_count=1, min_n=1, max_n=3, bucket=5000, tokenizer=str.split).fit(CHINESE)


def as_gensim(vectors: FastText) -> FastTextKeyedVectors:
    """The same rows in gensim's own class, n-grams that were never seen as zeros."""
    theirs = FastTextKeyedVectors(vectors.dim, vectors.min_n, vectors.max_n, vectors.bucket)
    theirs.add_vectors(list(vectors.words), np.zeros((len(vectors), vectors.dim), dtype=np.float32))
    theirs.vectors_vocab = vectors.own().numpy()
    theirs.vectors_ngrams = np.zeros((vectors.bucket, vectors.dim), dtype=np.float32)
    theirs.vectors_ngrams[vectors.buckets.numpy()] = vectors.ngrams.numpy()
    theirs.recalc_char_ngram_buckets()
    theirs.adjust_vectors()
    return theirs


# ---------------------------------------------------------------- n-grams


def literal(word: str, min_n: int, max_n: int) -> Iterator[int]:
    """FNV-1a of each n-gram, letter by letter and byte by byte."""
    letters = f"<{word}>"
    for start in range(len(letters)):
        for end in range(start + max(min_n, 1), min(start + max_n, len(letters)) + 1):
            if letters[start:end] in ("<", ">") and (start == 0 or end == len(letters)):
                continue
            value = 2166136261
            for byte in letters[start:end].encode():
                value = ((value ^ (byte | 0xFFFFFF00 if byte > 127 else byte)) * 16777619) % 2**32
            yield value


WORDS = ["hello", "a", "", "国王", "naïve", "über-straße", "😀b", "<x>", "раскольников", "x" * 40]


@pytest.mark.parametrize(("min_n", "max_n"), [(3, 6), (1, 1), (1, 4), (0, 2), (5, 5), (3, 0)])
def test_hashes_by_loops_and_by_gensim(min_n: int, max_n: int) -> None:
    numbers, hashes = ngrams_of(WORDS, min_n, max_n)
    assert bool((numbers.diff() >= 0).all())
    for number, word in enumerate(WORDS):
        found = sorted(hashes[numbers == number].tolist())
        assert found == sorted(literal(word, min_n, max_n)), word
        assert found == sorted(ft_ngram_hashes(word, min_n, max_n, 2**32)), word


def test_the_end_of_a_sentence_has_no_ngrams() -> None:
    assert ngrams_of(["</s>"], 3, 6)[0].tolist() == []


def test_no_words_have_no_ngrams() -> None:
    assert ngrams_of([], 3, 6)[1].tolist() == []


# ---------------------------------------------------------------- against gensim and fastText


def test_seen_and_unseen_words_against_gensim(chinese: FastText) -> None:
    theirs = as_gensim(chinese)
    unseen = ["王国", "北京人", "Čajník", "cafés", "naïvetés", "和"]
    for word in [*chinese.words, *unseen]:
        torch.testing.assert_close(chinese.vector(word), torch.tensor(theirs[word]), rtol=0, atol=1e-6)


def test_seen_and_unseen_words_against_gensim_at_the_defaults(vectors: FastText) -> None:
    vectors = FastText.of(
        vectors.words, vectors.own(), vectors.ngrams, buckets=vectors.buckets, bucket=vectors.bucket, min_n=3, max_n=6
    )
    theirs = as_gensim(vectors)
    for word in [*vectors.words[:300], "governmentally", "unaustralian", "policemen's"]:
        torch.testing.assert_close(vectors.vector(word), torch.tensor(theirs[word]), rtol=0, atol=1e-6)


@pytest.mark.parametrize(("architecture", "sg"), [("skip-gram", 1), ("cbow", 0)])
def test_training_against_gensim(architecture: str, sg: int) -> None:
    """gensim with a row for every bucket, begun with our rows, ends with ours, and moves no other row."""
    ours = FastText(dim=12, epochs=2, architecture=architecture, bucket=20_000, seed=3).fit(LEE[:60])
    sentences = [[token for token in Words()(text) if token in ours.index] for text in LEE[:60]]
    theirs = Gensim(vector_size=12, sg=sg, bucket=20_000, seed=3, min_count=1, sorted_vocab=0, workers=1)
    assert ours.counts is not None
    theirs.build_vocab_from_freq(dict(zip(ours.words, ours.counts.tolist(), strict=True)))
    start = np.random.default_rng(4).random((len(ours.buckets), 12), dtype=np.float32)
    theirs.wv.vectors_ngrams[ours.buckets.numpy()] = (2 * start - 1) / 12
    before = theirs.wv.vectors_ngrams.copy()
    theirs.train(sentences, total_words=sum(map(len, sentences)), epochs=2)
    rows = torch.from_numpy(theirs.wv.vectors_ngrams[ours.buckets.numpy()])
    torch.testing.assert_close(ours.ngrams, rows, rtol=0, atol=1e-5)  # n-grams are summed in another order
    torch.testing.assert_close(ours.matrix, torch.from_numpy(theirs.wv.vectors), rtol=0, atol=1e-5)
    others = np.setdiff1d(np.arange(20_000), ours.buckets.numpy())
    assert len(others) > 1000
    assert (theirs.wv.vectors_ngrams[others] == before[others]).all()


@pytest.mark.parametrize("name", ["lee_fasttext_new.bin", "crime-and-punishment.bin"])
def test_real_files_against_gensim(name: str) -> None:
    ours, theirs = load(datapath(name)), load_facebook_vectors(datapath(name))
    assert (ours.min_n, ours.max_n, ours.bucket) == (theirs.min_n, theirs.max_n, theirs.bucket)
    assert list(ours.words) == theirs.index_to_key
    for word in [*ours.words, "unseenword", "国王", "naïvetés", "раскольниковыми", "x"]:
        if word != "</s>":  # which gensim gives n-grams, and fastText does not
            torch.testing.assert_close(ours.vector(word), torch.tensor(theirs[word]), rtol=0, atol=1e-6)
    own = torch.from_numpy(theirs.vectors_vocab)
    torch.testing.assert_close(ours.own(), own, rtol=0, atol=1e-5)  # what float32 keeps of it in the mean


def test_real_file_against_what_fasttext_wrote() -> None:
    """The .vec beside it holds the vectors to five places, that of "</s>" too."""
    ours = load(datapath("crime-and-punishment.bin"))
    lines = Path(datapath("crime-and-punishment.vec")).read_text().splitlines()[1:]
    assert any(line.startswith("</s> ") for line in lines)
    for line in lines:
        word, *numbers = line.split()
        expected = torch.tensor([float(number) for number in numbers])
        torch.testing.assert_close(ours.vector(word), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("text", "min_n"),
    [
        ("the cat sat", 3),
        ("国王 住在 北京", 1),
        ("ねこ カメラ", 1),
        ("国王 cat dog the", 3),
        ("国王 国王 国王 cat dog", 1),
    ],
)
def test_min_n_is_that_of_the_script(text: str, min_n: int) -> None:
    """By what most running words are written in; a number that was given stays."""
    shared: dict[str, Any] = {"dim": 4, "min_count": 1, "bucket": 50, "epochs": 1, "tokenizer": str.split}
    vectors = FastText(**shared).fit([text])
    assert vectors.min_n == vectors.options["min_n"] == min_n
    assert vectors.fit(["a cat"]).min_n == 3
    assert vectors.fit(["国王"]).min_n == 1
    assert FastText(**shared, min_n=2).fit([text]).min_n == 2
    assert FastText(**shared, max_n=0).fit([text]).min_n == 0


def test_an_unseen_chinese_word_has_the_vectors_of_its_characters() -> None:
    vectors = FastText(dim=4, min_count=1, bucket=500, epochs=1, tokenizer=str.split).fit(["国王 住在 北京"])
    assert "王国" in vectors
    assert "京" in vectors
    assert "苹果" not in vectors


# ---------------------------------------------------------------- words that were never seen


def test_unseen_words_by_hand(vectors: FastText) -> None:
    row = dict(zip(vectors.buckets.tolist(), vectors.ngrams, strict=True))
    nothing = torch.zeros(vectors.dim)
    own = vectors.own()
    for word in ("governmentally", "policies", "the", STRANGE[:2] + "ing"):
        rows = [row.get(value % vectors.bucket, nothing) for value in literal(word, 3, 6)]
        if word in vectors.index:
            rows.append(own[vectors.index[word]])
        torch.testing.assert_close(vectors.vector(word), torch.stack(rows).mean(0), rtol=0, atol=1e-6)


def test_relatives_of_an_unseen_word_are_near(vectors: FastText) -> None:
    assert "governmentally" not in vectors.index
    assert "government" in [word for word, _ in vectors.most_similar(vectors.vector("governmentally"), 3)]
    assert "government" in [word for word, _ in vectors.most_similar("governmentally", 3)]
    assert vectors.similarity("governmentally", "government") > 0.9


def test_which_words_have_a_vector(vectors: FastText) -> None:
    assert "the" in vectors
    assert "governmentally" in vectors
    assert STRANGE not in vectors
    assert 7 not in vectors
    assert "\ud800" not in vectors  # half of a pair, which no text in UTF-8 has
    with pytest.raises(HeadwayError, match=f"'{STRANGE}' was never seen .* none of its n-grams of 3 … 6 letters"):
        vectors.vector(STRANGE)
    with pytest.raises(HeadwayError, match="FastText has no vectors yet"):
        FastText().vector("the")


def test_texts_with_unseen_words(vectors: FastText) -> None:
    found = vectors.encode(f"the {STRANGE} governmentally")
    assert torch.equal(found[0], vectors.vector("the"))
    assert not found[1].any()
    assert torch.equal(found[2], vectors.vector("governmentally"))
    assert torch.equal(vectors.document(f"the {STRANGE} governmentally"), found[[0, 2]].mean(0))
    assert not vectors.document(STRANGE).any()


def test_an_embedding_has_rows_for_unseen_words(vectors: FastText) -> None:
    weight = vectors.embedding(Vocabulary(["governmentally", "the", STRANGE])).weight
    assert torch.equal(weight[0], vectors.vector("governmentally"))
    assert torch.equal(weight[1], vectors.vector("the"))
    assert not weight[2:].any()


# ---------------------------------------------------------------- what is kept


def test_only_the_ngrams_of_the_vocabulary_are_kept(vectors: FastText) -> None:
    used = {value % 2_000_000 for word in vectors.words for value in literal(word, 3, 6)}
    assert vectors.buckets.tolist() == sorted(used)
    assert vectors.ngrams.shape == (len(used), vectors.dim)


def test_of_gives_back_the_whole(vectors: FastText) -> None:
    back = FastText.of(
        vectors.words, vectors.own(), vectors.ngrams, buckets=vectors.buckets, bucket=vectors.bucket, window=3
    )
    torch.testing.assert_close(back.matrix, vectors.matrix, rtol=0, atol=1e-6)
    assert (back.options["window"], back.dim, back.counts) == (3, vectors.dim, None)


def test_large_vocabularies_are_worked_on_in_parts(vectors: FastText, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, own = vectors._full(vectors.own()), vectors.own()
    monkeypatch.setattr("headway.vectors.fasttext.AT_ONCE", 100)
    torch.testing.assert_close(vectors._full(own), whole, rtol=0, atol=1e-6)
    torch.testing.assert_close(vectors.own(), own, rtol=0, atol=1e-6)


@pytest.mark.parametrize("options", [{"max_n": 0}, {"bucket": 0}])
def test_without_ngrams_it_is_as_word2vec(options: dict[str, int]) -> None:
    vectors = FastText(**SMALL | options).fit(LEE[:60])
    assert len(vectors.ngrams) == 0
    assert "governmentally" not in vectors
    assert not vectors.encode("governmentally").any()
    assert torch.equal(vectors.own(), vectors.matrix)


def test_words_shorter_than_any_ngram() -> None:
    vectors = FastText(dim=4, min_n=5, max_n=6, min_count=1).fit(["a b", "b a"])
    assert len(vectors.ngrams) == 0
    assert vectors.vector("a").shape == (4,)
    assert "ab" not in vectors


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"min_n": 4, "max_n": 3}, "min_n is 4 and max_n 3: give 0 ≤ min_n ≤ max_n, or max_n = 0"),
        ({"min_n": -1}, "min_n is -1"),
        ({"bucket": -1}, "bucket is -1"),
        ({"bucket": 2**31}, "bucket is 2147483648"),
        ({"architecture": "glove"}, "architecture is 'glove'"),
    ],
)
def test_options_out_of_range(options: dict[str, Any], message: str) -> None:
    with pytest.raises(HeadwayError, match=message):
        FastText(**options)


def test_parts_that_do_not_fit() -> None:
    rows = torch.zeros(2, 3)
    with pytest.raises(HeadwayError, match=r"1 words have rows \(2, 3\) and n-grams \(2, 3\)"):
        FastText.of(["a"], rows, rows)
    with pytest.raises(HeadwayError, match=r"n-grams \(2, 2\): give \[words, dim\] and \[rows, dim\]"):
        FastText.of(["a", "b"], rows, rows[:, :2])
    with pytest.raises(HeadwayError, match="not ascending in 0 … 9"):
        FastText.of(["a", "b"], rows, rows, bucket=10, buckets=torch.tensor([3, 3]))
    with pytest.raises(HeadwayError, match="not ascending in 0 … 9"):
        FastText.of(["a", "b"], rows, rows, bucket=10, buckets=torch.tensor([3, 10]))
    with pytest.raises(HeadwayError, match="give int64, one for each row"):
        FastText.of(["a", "b"], rows, rows, bucket=10, buckets=torch.tensor([3.0, 4.0]))


@pytest.mark.parametrize("missing", ["vectors", "ngrams", "buckets"])
def test_a_broken_file_is_refused(vectors: FastText, missing: str) -> None:
    back = FastText(**SMALL)
    back._take(vectors.words)
    with pytest.raises(HeadwayError, match="the file is broken"):
        back._restore({name: tensor for name, tensor in vectors._tensors().items() if name != missing})
