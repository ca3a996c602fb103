"""The tokenizer has the words of the sentences as its tokens."""

import pytest

from headway.inspection.texts import encode
from headway.study.planted import LANGUAGES, SPLITS, Language, annotated, tokenizer
from headway.study.planted._tokens import encoded, vocabulary

languages = pytest.mark.parametrize("language", LANGUAGES.values(), ids=LANGUAGES)


@languages
def test_a_written_sentence_has_its_words_again(language: Language) -> None:
    read = tokenizer(language)
    drawn = [one for split in SPLITS for one in language.sentences(500, 0, split)]
    for sentence in [*language.examples, *drawn]:
        text = annotated(language, sentence)
        found = read.encode(text.text)
        assert tuple(found.tokens) == ("[CLS]", *sentence.words)
        assert tuple(found.offsets[1:]) == text.words
        assert found.ids == encoded(language, [sentence])[0]


@languages
def test_encode_finds_the_word_of_each_token(language: Language) -> None:
    text = annotated(language, language.examples[0])
    (found,) = encode(tokenizer(language), [text])
    assert found.word_of == (-1, *range(len(text)))


def test_longest_words_first_and_unknown_ones() -> None:
    read = tokenizer(LANGUAGES["chinese"])
    assert read.encode("小猫们和它们很可爱").tokens == ["[CLS]", "小猫们", "[UNK]", "它们", "很", "可爱"]
    assert read.encode("小猫 很 可爱 [MASK]").tokens == ["[CLS]", "小猫", "很", "可爱", "[MASK]"]
    english = tokenizer(LANGUAGES["english"])
    assert english.encode("The CAT's asleep.").tokens == ["[CLS]", "the", "cat", "[UNK]", "[UNK]", "[UNK]", "."]


@languages
def test_no_token_twice(language: Language) -> None:
    ids = vocabulary(language)
    assert sorted(ids.values()) == list(range(len(ids)))
    assert ids["[PAD]"] == 0
    assert len(set(language.words)) == len(language.words)
