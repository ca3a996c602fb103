"""Which word a token belongs to: tokenizers of several kinds, and scripts of several directions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

import headway as hw
from headway.errors import HeadwayError
from headway.inspection.texts import AnnotatedText, encode

PIECES = ("[CLS]", "[SEP]", "[UNK]", "the", "cat", "sleep", "##s", "小", "猫", "שלום", ".")


def word_pieces() -> Tokenizer:
    found = Tokenizer(models.WordPiece({piece: i for i, piece in enumerate(PIECES)}, unk_token="[UNK]"))
    found.normalizer = normalizers.BertNormalizer(lowercase=True)
    found.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    found.post_processor = processors.BertProcessing(("[SEP]", 1), ("[CLS]", 0))
    found.add_special_tokens(["[CLS]", "[SEP]", "[UNK]"])
    return found


def byte_tokens() -> Tokenizer:
    """One token for each byte; a space goes with what follows it."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    found = Tokenizer(models.BPE({byte: i for i, byte in enumerate(alphabet)}, []))
    found.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return found


def chunks(size: int) -> Tokenizer:
    """Tokens of ``size`` characters each, whatever they are."""
    found = Tokenizer(models.WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    found.pre_tokenizer = pre_tokenizers.Split(Regex(f".{{1,{size}}}"), behavior="isolated")
    return found


def test_word_pieces() -> None:
    [found] = encode(word_pieces(), ["The cat sleeps."])
    assert found.tokens == ("[CLS]", "The", "cat", "sleep", "s", ".", "[SEP]")
    assert found.word_of == (-1, 0, 1, 2, 2, 3, -1)
    assert found.ids == (0, 3, 4, 5, 6, 10, 1)
    assert found.without_tokens == ()


def test_chinese_and_right_to_left() -> None:
    [found] = encode(word_pieces(), ["小猫 שלום the 狗"])
    assert found.tokens == ("[CLS]", "小", "猫", "שלום", "the", "狗", "[SEP]")
    assert found.word_of == (-1, 0, 1, 2, 3, 4, -1)


def test_several_tokens_of_one_character_and_several_characters_of_one_word() -> None:
    text = AnnotatedText("小猫 שלום", ((0, 2), (3, 7)))
    [found] = encode(byte_tokens(), [text])
    assert len(found) == 3 * 2 + 1 + 2 * 4
    assert [word for word in found.word_of if word >= 0] == [0] * 6 + [1] * 8
    assert found.word_of.count(-1) == 1  # the space between them
    assert found.tokens[:6] == ("小",) * 3 + ("猫",) * 3


def test_a_token_belongs_to_the_word_with_which_it_shares_most() -> None:
    text = AnnotatedText("don't we", ((0, 2), (2, 5), (6, 8)))
    [found] = encode(chunks(5), [text])  # "don't", " we"
    assert found.word_of == (1, 2)
    assert found.without_tokens == (0,)
    [even] = encode(chunks(4), [AnnotatedText("abcd", ((0, 2), (2, 4)))])
    assert even.word_of == (0,)


def test_an_empty_word_gets_no_token() -> None:
    text = AnnotatedText("du chat", ((0, 2), (2, 2), (3, 7)))
    [found] = encode(chunks(1), [text])
    assert found.word_of == (0, 0, -1, 2, 2, 2, 2)
    assert found.without_tokens == (1,)


def test_a_fast_tokenizer_of_transformers_gives_the_same() -> None:
    texts = ["The cat sleeps.", "小猫 שלום the 狗"]
    theirs = PreTrainedTokenizerFast(tokenizer_object=word_pieces(), unk_token="[UNK]")
    assert encode(theirs, texts) == encode(word_pieces(), texts)


def test_padding_is_taken_off() -> None:
    padded = word_pieces()
    padded.enable_padding(length=20, pad_id=2, pad_token="[UNK]")
    assert encode(padded, ["The cat"]) == encode(word_pieces(), ["The cat"])


def test_a_tokenizer_that_cuts_is_refused() -> None:
    cutting = word_pieces()
    cutting.enable_truncation(4)
    with pytest.raises(HeadwayError, match=r"cuts the text 'The cat sleeps.' after 4 tokens: call no_truncation\(\)"):
        encode(cutting, ["The cat sleeps."])
    assert len(encode(cutting, ["The cat"])[0]) == 4
    theirs = PreTrainedTokenizerFast(tokenizer_object=cutting, unk_token="[UNK]")
    assert len(encode(theirs, ["The cat sleeps."])[0]) == 7


def test_long_texts_are_refused_or_left_out() -> None:
    texts = [AnnotatedText("the cat", ((0, 3), (4, 7)), name="short"), "the cat sleeps the cat"]
    with pytest.raises(HeadwayError, match=r"the text 'the cat sleeps the cat' has 8 tokens and the model reads 7"):
        encode(word_pieces(), texts, longest=7)
    assert [one.text.name for one in encode(word_pieces(), texts, longest=7, too_long="leave out")] == ["short"]
    assert len(encode(word_pieces(), texts, longest=8)) == 2


class Slow:
    """As the slow tokenizers of transformers look."""

    is_fast = False

    def convert_ids_to_tokens(self, ids: list[int]) -> list[str]:
        return []


class Shifted:
    """A tokenizer whose offsets are not those of the text."""

    def __init__(self, by: int) -> None:
        self.by = by

    def encode(self, text: str) -> Any:
        class Encoding:
            ids, tokens = [0], ["x"]
            offsets = [(len(text) - 1 + self.by, len(text) + self.by)]
            special_tokens_mask, attention_mask, overflowing = [0], [1], []

        return Encoding


class Plain:
    def encode(self, text: str) -> list[int]:
        return [1, 2]


WRONG: dict[str, tuple[Any, Any, dict[str, Any], str]] = {
    "a slow tokenizer": (Slow(), ["a"], {}, "Slow does not say which characters"),
    "ids alone": (Plain(), ["a"], {}, "Plain does not say which characters"),
    "no tokenizer": (3, ["a"], {}, "tokenizer is int"),
    "tokens beyond the text": (Shifted(3), ["a b"], {}, "beyond its 3 characters"),
    "tokens beside its words": (Shifted(0), ["a b "], {}, "has no word that has a token"),
    "one text": (None, "a", {}, "give a list of texts"),
    "no text": (None, [3], {}, "texts holds int at 0"),
    "no words": (None, ["  "], {}, "has no words"),
    "empty words": (None, [AnnotatedText("a", ((0, 0),))], {}, "has no words"),
    "longest of 0": (None, ["a"], {"longest": 0}, "longest is 0"),
    "another too_long": (None, ["a"], {"too_long": "cut"}, "too_long is 'cut': give 'raise' or 'leave out'"),
}


@pytest.mark.parametrize("given", WRONG.values(), ids=WRONG)
def test_what_cannot_be_encoded_is_refused(given: tuple[Any, Any, dict[str, Any], str]) -> None:
    tokenizer, texts, options, said = given
    with pytest.raises(HeadwayError, match=said) as error:
        encode(tokenizer or word_pieces(), texts, **options)
    assert "\n" not in str(error.value)


def test_the_tokenizer_of_minilm(weights: Callable[[str], Path]) -> None:
    [found] = encode(hw.checkpoints.tokenizer(weights("minilm")), ["小猫 naïve שלום embeddings"])
    assert [found.text.word(word) if word >= 0 else "" for word in found.word_of] == [
        *("", "小", "猫", "naïve"),
        *("שלום",) * 4,
        *("embeddings",) * 4,
        "",
    ]
    assert found.tokens[-5:] == ("em", "bed", "ding", "s", "[SEP]")
