"""Annotated texts refuse what does not fit; words of plain text."""

from __future__ import annotations

from typing import Any

import pytest

from headway.errors import HeadwayError
from headway.inspection.texts import AnnotatedText, Choice, EncodedText, Mention, words_in

CAT = ((0, 3), (4, 7), (8, 14))  # The cat sleeps

WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "a word beyond the text": ({"words": ((0, 3), (4, 99))}, "word 1 at 4 to 99"),
    "words that overlap": ({"words": ((0, 3), (2, 7))}, "word 1 at 2 to 7"),
    "words that fall": ({"words": ((4, 7), (0, 3))}, "word 1 at 0 to 3"),
    "a word that stops before it starts": ({"words": ((3, 0),)}, "word 0 at 3 to 0"),
    "too few tags": ({"tags": ("DET",)}, "3 words and tags of 1"),
    "sentences that fall": ({"sentences": (0, 1, 0)}, "numbers fall"),
    "governors alone": ({"governors": (1, 2, -1)}, "give both or neither"),
    "a governor beyond the words": (
        {"governors": (1, 3, -1), "relations": ("det", "nsubj", "root")},
        "governor 3 of word 1",
    ),
    "its own governor": ({"governors": (0, 2, -1), "relations": ("det", "nsubj", "root")}, "governor 0 of word 0"),
    "a governor below −2": ({"governors": (-3, 2, -1), "relations": ("det", "nsubj", "root")}, "governor -3"),
    "a mention beyond the words": ({"mentions": (Mention(1, 4, 0, 1),)}, "stop=4"),
    "a head outside of its mention": ({"mentions": (Mention(0, 2, 0, 2),)}, "head=2"),
    "an empty mention": ({"mentions": (Mention(1, 1, 0, 1),)}, "start=1, stop=1"),
    "a choice beyond the words": ({"choices": (Choice((2, 3), (0, 2), (3, 4)),)}, "wrong=\\(3, 4\\)"),
}


@pytest.mark.parametrize("given", WRONG.values(), ids=WRONG)
def test_what_does_not_fit_the_text_is_refused(given: tuple[dict[str, Any], str]) -> None:
    fields, said = given
    with pytest.raises(HeadwayError, match=f"a name has.*{said}") as error:
        AnnotatedText(**{"text": "The cat sleeps", "words": CAT, "name": "a name", **fields})
    assert "\n" not in str(error.value)


def test_a_text_without_a_name_is_called_by_its_beginning() -> None:
    with pytest.raises(HeadwayError, match="the text 'The cat sleeps' has word 0"):
        AnnotatedText("The cat sleeps", ((0, 20),))
    with pytest.raises(HeadwayError, match=r"the text 'aaaa.*…' has word 0"):
        AnnotatedText("a" * 100, ((0, 200),))


def test_an_encoded_text_needs_one_of_each_for_each_token() -> None:
    text = AnnotatedText("The cat sleeps", CAT)
    right = EncodedText((1, 2), ("The", "cat"), (0, 1), text)
    assert right.without_tokens == (2,)
    with pytest.raises(HeadwayError, match="2 ids, 2 tokens and words of 1"):
        EncodedText((1, 2), ("The", "cat"), (0,), text)
    with pytest.raises(HeadwayError, match="tokens of words that it does not have"):
        EncodedText((1, 2), ("The", "cat"), (0, 3), text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The cat's mat.", ["The", "cat's", "mat", "."]),
        ("小猫 sleeps，它…", ["小", "猫", "sleeps", "，", "它", "…"]),
        ("  שלום  עולם ", ["שלום", "עולם"]),
        ("هٰذَا كتاب", ["هٰذَا", "كتاب"]),
        ("नमस्ते दुनिया", ["नमस्ते", "दुनिया"]),  # its vowels are marks
        ("e\u0301té\u00a0x\n\ty\u200b", ["e\u0301té", "x", "y"]),
        ("", []),
        (" \n", []),
        ("𠀀𠀁a", ["𠀀", "𠀁", "a"]),
    ],
)
def test_the_words_of_plain_text(text: str, expected: list[str]) -> None:
    assert [text[start:stop] for start, stop in words_in(text)] == expected


def test_words_end_where_they_are_cut() -> None:
    assert words_in("abcdef gh", cuts=[2, 4, 6, 7]) == ((0, 2), (2, 4), (4, 6), (7, 9))
