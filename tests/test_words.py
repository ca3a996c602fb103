"""What a word is, in many scripts: expected words are those of Unicode's Annex 29, with what differs marked."""

import unicodedata
from random import Random

import pytest

from headway._common.words import is_alphabetic, spelling, words_in
from headway.inspection.texts import words_in as words_of_inspection
from headway.vectors import Words

SCRIPTS = {
    "Latin": ("Naïve cafés — it isn't ‘rock'n'roll’", ["Naïve", "cafés", "it", "isn't", "rock'n'roll"]),
    "Catalan": ("Paral·lel a l'Hospitalet", ["Paral·lel", "a", "l'Hospitalet"]),
    "Turkish": ("İstanbul'da ışık; İyi!", ["İstanbul'da", "ışık", "İyi"]),
    "Vietnamese": ("Tiếng Việt", ["Tiếng", "Việt"]),
    "Greek": ("ΟΔΟΣ Ἀθηνᾶ,", ["ΟΔΟΣ", "Ἀθηνᾶ"]),
    "Cyrillic": ("Объём, ёлка й", ["Объём", "ёлка", "й"]),
    "Devanagari": ("हिन्दी भाषा में ‘विज्ञान’ है।", ["हिन्दी", "भाषा", "में", "विज्ञान", "है"]),
    "Bengali": ("বাংলা ভাষা।", ["বাংলা", "ভাষা"]),
    "Tamil": ("தமிழ் மொழி", ["தமிழ்", "மொழி"]),
    "Malayalam": ("മലയാളം ഭാഷ", ["മലയാളം", "ഭാഷ"]),
    "Sinhala": ("ක්\u200dරම සිංහල", ["ක්\u200dරම", "සිංහල"]),
    "Arabic": ("هٰذَا كِتَابٌ، لَا رَيْبَ", ["هٰذَا", "كِتَابٌ", "لَا", "رَيْبَ"]),
    "Persian": ("می\u200cخواهم، خانه\u200cها", ["می\u200cخواهم", "خانه\u200cها"]),
    "Hebrew": ('שָׁלוֹם "עולם" צה"ל', ["שָׁלוֹם", "עולם", 'צה"ל']),
    "Armenian": ("Ինչո՞ւ ոչ", ["Ինչո՞ւ", "ոչ"]),
    "Georgian": ("ქართული ენა", ["ქართული", "ენა"]),
    "Ethiopic": ("አማርኛ፣ ቋንቋ።", ["አማርኛ", "ቋንቋ"]),
    "Hangul": ("한국어의 낱말.", ["한국어의", "낱말"]),
    "Katakana": ("コーヒー・ラーメン", ["コーヒー", "ラーメン"]),
    "Han": ("二〇人々、国", ["二", "〇", "人", "々", "国"]),
    "Thai": ("ภาษาไทย คำ", ["ภาษาไทย", "คำ"]),  # Annex 29 leaves its words to dictionaries
    "of numbers": ("3.14 and x² or 5,000", ["3", "14", "and", "x²", "or", "5", "000"]),  # of which Annex 29 keeps 3.14
}


@pytest.mark.parametrize("script", SCRIPTS)
def test_words_in_many_scripts(script: str) -> None:
    text, expected = SCRIPTS[script]
    assert [text[start:stop] for start, stop in words_in(text, signs=False)] == expected
    assert [
        word
        for word in map(text.__getitem__, (slice(*one) for one in words_of_inspection(text)))
        if any(unicodedata.category(x)[0] in "LN" for x in word)
    ] == expected
    words = Words(lower=False, chinese="characters")
    assert [spelling(word) for word in expected] == words(text)
    for form in ("NFC", "NFD"):
        for lower in (False, True):
            cut = Words(lower=lower, chinese="characters")
            assert cut(unicodedata.normalize(form, text)) == cut(text)
            assert [cut(word) for word in cut(text)] == [[word] for word in cut(text)]


@pytest.mark.parametrize(
    ("written", "word"),
    [
        ("don’t", "don't"),
        ("don＇t", "don't"),
        ("ｋｉｎｇ２", "king2"),
        ("ｶﾞｷﾞ", "ガギ"),
        ("ﬁnd", "find"),
        ("ﻛﺘﺎب", "كتاب"),  # letters by their place in the word
        ("⼈", "人"),  # a radical
        ("豈", "豈"),  # NFC has one of two
        ("ex\u00adam\u00adple", "example"),
        ("\ufeffking", "king"),
        ("\u200fשלום\u200e", "שלום"),
        ("葛\U000e0100", "葛"),
        ("צה״ל", 'צה"ל'),
        ("क़लम", "क़लम"),
        ("İSTANBUL", "istanbul"),
        ("I\u0307STANBUL", "istanbul"),
        ("ΟΔΟΣ", "οδος"),
        ("x²", "x²"),  # as NFKC has not
        ("ㅋㅋ", "ㅋㅋ"),
        ("คำ", "คำ"),
    ],
)
def test_one_spelling_of_a_word(written: str, word: str) -> None:
    assert spelling(written, lower=True) == word
    assert Words(chinese="characters")(written) == [word]
    assert Words(chinese="characters")(f"({written}!)") == [word]


def test_random_characters_of_all_scripts() -> None:
    """A word is its own word, and the same of composed and decomposed text; nothing but blanks is in no word."""
    random, codes = Random(0), [*range(0x20, 0x3400), *range(0xA000, 0xB000), *range(0xF900, 0x11000)]
    kept = [chr(code) for code in codes if unicodedata.category(chr(code)) != "Cs"]
    for _ in range(400):
        text = "".join(random.choices(kept, k=12) + random.choices("aé's '3i\u0301İ", k=12))
        cut = Words(lower=random.random() < 0.5, chinese="characters")
        words = cut(text)
        assert cut(unicodedata.normalize("NFD", text)) == cut(unicodedata.normalize("NFC", text)) == words
        assert [cut(word) for word in words] == [[word] for word in words]
        inside = {i for start, stop in words_in(text) for i in range(start, stop)}
        outside = {unicodedata.category(x) for i, x in enumerate(text) if i not in inside and x not in "\uff9e\uff9f"}
        assert outside <= {"Cc", "Cf", "Zs", "Zl", "Zp"}


def test_what_has_letters_alone() -> None:
    assert all(map(is_alphabetic, ("cat", "हिन्दी", "e\u0301", "猫", "كِتَابٌ")))
    assert not any(map(is_alphabetic, ("", "x2", "it's", "</s>", "…", "3")))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("👩\u200d👩\u200d👧👍🏽!", ["👩\u200d👩\u200d👧", "👍🏽", "!"]),
        ("_x_ 3.5", ["_", "x", "_", "3", ".", "5"]),
        ("a \u0301\u200b b\x00", ["a", "\u0301", "b"]),
    ],
)
def test_signs_are_words_where_they_are_asked_for(text: str, expected: list[str]) -> None:
    assert [text[start:stop] for start, stop in words_in(text)] == expected
