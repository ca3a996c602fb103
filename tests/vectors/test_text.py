"""Tokenizers, vocabularies and corpora as numbers, and what every way does with texts before it looks for vectors."""

from collections import Counter
from pathlib import Path

import jieba
import pytest
import torch
from gensim.test.utils import datapath

from headway._common.words import spelling
from headway.errors import HeadwayError
from headway.vectors import OneHot, SubWords, Vocabulary, WordCorpus, Words
from headway.vectors._text import described, tokenizer_from

LEE = Path(datapath("lee_background.cor")).read_text().splitlines()[:60]

# ---------------------------------------------------------------- words


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("The cat sat.", ["the", "cat", "sat"]),
        ("It's the dogs' bone — rock'n'roll!", ["it's", "the", "dogs", "bone", "rock'n'roll"]),
        ("don’t 'quote' ''", ["don't", "quote"]),
        ("naïve Čeština ПРИВЕТ", ["naïve", "čeština", "привет"]),
        ("snake_case x2, 3.14 a-b", ["snake", "case", "x2", "3", "14", "a", "b"]),
        (" \n\t…!", []),
        ("", []),
    ],
)
def test_words_of_texts_with_letters(text: str, tokens: list[str]) -> None:
    assert Words()(text) == tokens


def test_capitals_stay_where_asked() -> None:
    assert Words(lower=False)("The Cat") == ["The", "Cat"]


def test_chinese_is_cut_by_jieba_or_into_characters() -> None:
    text = "国王和王后住在北京。"
    words = Words()(text)
    assert {"国王", "王后", "北京"} <= set(words)
    assert "".join(words) == text[:-1]
    assert Words(chinese="characters")(text) == list(text[:-1])
    assert Words(chinese="characters")("㐀豈𠀀𠀁") == ["㐀", "豈", "𠀀", "𠀁"]  # rarer blocks, beyond 16 bits too


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("一件T恤", ["一件", "t恤"]),
        ("B超,AA制 and don’t", ["b超", "aa制", "and", "don't"]),
        ("一件Ｔ恤，Ｔ恤．５", ["一件", "t恤", "t恤", "5"]),
        ("二〇二四年", ["二〇二四", "年"]),
        ("人々", ["人々"]),
        ("佐々木さん", ["佐々木", "さん"]),
        ("喝café吧", ["喝", "café", "吧"]),
        ("涨3.5%了", ["涨", "3", "5", "了"]),
        ("葛\U000e0100西", ["葛", "西"]),
    ],
)
def test_chinese_beside_other_letters(text: str, expected: list[str]) -> None:
    assert Words(chinese="words")(text) == expected
    assert [spelling(text[start:stop], lower=True) for start, stop in Words(chinese="words").spans(text)] == expected


def test_words_that_a_user_adds_to_jieba() -> None:
    text = "去卡拉OK厅，学C++语言"
    assert Words(chinese="words")(text) == ["去", "卡拉", "ok", "厅", "学", "c", "语言"]
    try:
        for word in ("卡拉OK厅", "C++语言"):
            jieba.add_word(word)
        assert Words(chinese="words")(text) == ["去", "卡拉ok厅", "学", "c++语言"]
    finally:
        for word in ("卡拉OK厅", "C++语言"):
            jieba.del_word(word)
    assert Words(chinese="words")(text)[1:4] == ["卡拉", "ok", "厅"]


def test_without_jieba_there_are_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headway.vectors._text.find_spec", lambda name: None)
    assert Words()("国王") == ["国", "王"]
    assert described(Words()) == described(Words(chinese="characters"))  # a file says which
    assert Words(chinese="words").chinese == "words"


def test_mixed_text_keeps_its_order() -> None:
    assert Words(chinese="characters")("我用Python3写code") == ["我", "用", "python3", "写", "code"]
    assert Words()("北京Python3学校 code") == ["北京", "python3", "学校", "code"]


def test_another_way_with_chinese_is_refused() -> None:
    with pytest.raises(HeadwayError, match="chinese is 'pinyin': give 'words' or 'characters'"):
        Words(chinese="pinyin")


def test_sub_words_make_up_the_text() -> None:
    tokenizer = SubWords.train(LEE, size=600)
    pieces = tokenizer("unbelievable governments")
    assert len(pieces) > 2
    assert "".join(pieces) == "unbelievablegovernments"
    assert tokenizer("THE") == tokenizer("the")


@pytest.mark.parametrize("kind", ["words", "sub-words"])
def test_a_description_gives_the_tokenizer_back(kind: str) -> None:
    tokenizer = Words(lower=False, chinese="characters") if kind == "words" else SubWords.train(LEE, size=300)
    description = described(tokenizer)
    assert description is not None
    text = "The Council 国王"
    assert tokenizer_from(description)(text) == tokenizer(text)


def test_a_function_has_no_description_but_works() -> None:
    assert described(str.split) is None
    assert OneHot(tokenizer=str.split).fit(["A b A"]).words == ("A", "b")


def test_a_file_that_is_no_tokenizer(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(HeadwayError, match=r"tokenizer.json is not a tokenizer .*give a tokenizer.json"):
        SubWords.read(tmp_path / "tokenizer.json")
    tokenizer = SubWords.train(LEE, size=300)
    tokenizer.tokenizer.save(str(tmp_path / "good.json"))
    assert SubWords.read(tmp_path / "good.json")("the cat") == tokenizer("the cat")


# ---------------------------------------------------------------- vocabulary


def test_ids_are_places_and_one_more_for_other_words() -> None:
    vocabulary = Vocabulary(["cat", "the"])
    ids = vocabulary.ids("The dog saw the cat")
    assert ids.dtype == torch.int64
    assert ids.tolist() == [1, 2, 2, 1, 0]
    assert Vocabulary(["don’t", "cafe\u0301"]).ids("café don't don’t x").tolist() == [1, 0, 0, 2]
    assert vocabulary.ids("").tolist() == []
    assert vocabulary.ids("").dtype == torch.int64
    assert len(vocabulary) == 2
    assert "cat" in vocabulary
    assert "dog" not in vocabulary


def test_vocabulary_of_texts() -> None:
    assert Vocabulary.of(["b a b", "c b a"]).words == ("b", "a", "c")
    assert Vocabulary.of(["b a b", "c b a"], min_count=2).words == ("b", "a")
    assert Vocabulary.of(["b a b", "c b a"], max_words=1).words == ("b",)


def test_a_word_twice_is_refused() -> None:
    with pytest.raises(HeadwayError, match="the word 'a' stands 2 times among the words: give each once"):
        Vocabulary(["a", "b", "a"])


# ---------------------------------------------------------------- corpus


@pytest.mark.parametrize(("min_count", "max_words"), [(1, None), (2, None), (3, 40), (1, 7)])
def test_corpus_against_counter(min_count: int, max_words: int | None) -> None:
    tokenizer = Words()
    corpus = WordCorpus.of(LEE, tokenizer, min_count=min_count, max_words=max_words)
    counted = Counter(token for text in LEE for token in tokenizer(text))
    expected = sorted((w for w in counted if counted[w] >= min_count), key=lambda w: (-counted[w], w))[:max_words]
    assert list(corpus.words) == expected
    assert corpus.counts.tolist() == [counted[word] for word in expected]
    documents = [[corpus.words[i] for i in document.tolist()] for document in corpus.documents()]
    assert documents == [[token for token in tokenizer(text) if token in set(expected)] for text in LEE]
    assert corpus.ends.tolist() == [sum(map(len, documents[: n + 1])) for n in range(len(documents))]
    assert (corpus.counts.dtype, corpus.ids.dtype, corpus.ends.dtype) == (torch.int64, torch.int32, torch.int64)


def test_ties_stand_by_the_alphabet() -> None:
    assert WordCorpus.of(["d c b a d"], Words()).words == ("d", "a", "b", "c")
    assert WordCorpus.of(["d c b a d"], Words(), max_words=2).words == ("d", "a")


def test_documents_may_be_empty_anywhere() -> None:
    corpus = WordCorpus.of(["", "a b", "!", "rare", "b a", ""], Words(), min_count=2)
    assert corpus.ends.tolist() == [0, 2, 2, 2, 4, 4]
    assert [len(document) for document in corpus.documents()] == [0, 2, 0, 0, 2, 0]


def test_texts_may_come_one_by_one() -> None:
    assert OneHot().fit(text for text in ["a b", "b"]).words == ("b", "a")


def test_progress_of_a_list() -> None:
    told: list[float] = []
    WordCorpus.of(["a", "b", "c", "d"], Words(), watch=told.append)
    assert told == [0.25, 0.5, 0.75, 1.0]


@pytest.mark.parametrize(
    ("texts", "options", "message"),
    [
        ("the cat", {}, r"texts is a str: give a list of texts, such as \[text\]"),
        (b"the cat", {}, "texts is a bytes"),
        (7, {}, "texts is a int"),
        ([], {}, "the corpus has no words in its 0 texts"),
        (["", "!"], {}, "the corpus has no words in its 2 texts: give texts with words in them"),
        (["a", None], {}, "text 1 is a NoneType: give texts as str"),
        (["a b a"], {"min_count": 3}, r"no word of the corpus occurs 3 times \(the most frequent 2\): lower min_count"),
        (["a"], {"min_count": 0}, "min_count is 0"),
        (["a"], {"max_words": 0}, "max_words 0: give at least 1"),
    ],
)
def test_what_is_no_corpus_is_refused(texts: object, options: dict[str, int], message: str) -> None:
    with pytest.raises(HeadwayError, match=message):
        WordCorpus.of(texts, Words(), **options)  # type: ignore[arg-type]


# ---------------------------------------------------------------- what every way does with them


def test_min_count_and_max_words_choose_the_vocabulary() -> None:
    texts = ["d c b a d", "a b"]
    assert OneHot().fit(texts).words == ("a", "b", "d", "c")
    assert OneHot(min_count=2).fit(texts).words == ("a", "b", "d")
    assert OneHot(min_count=2, max_words=2).fit(texts).words == ("a", "b")
    counts = OneHot(min_count=2).fit(texts).counts
    assert counts is not None
    assert counts.tolist() == [2, 2, 2]


def test_a_word_in_capitals_is_pointed_to_its_small_letters() -> None:
    vectors = OneHot().fit(["the cat"])
    with pytest.raises(HeadwayError, match="'Cat' was never seen among the 2 of the vocabulary: spelt like it: 'cat'"):
        vectors.vector("Cat")
    with pytest.raises(HeadwayError, match=r"'dog' was never seen .*: fasttext and bert make vectors"):
        vectors.vector("dog")


def test_options_are_those_of_the_constructor() -> None:
    assert OneHot(min_count=2).options == {"min_count": 2, "max_words": None}
