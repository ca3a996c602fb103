"""Tokens laid out in a text, and words that never end inside of a grapheme."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from pathlib import Path

import pytest
from decoded import reports_of
from reports import FORMS, seen

from headway.inspection.report._first import Link, Opening, is_content, opening
from headway.inspection.report._words import graphemes, layout
from headway.inspection.roles import Finding, HeadRoles

ZWJ = "\u200d"
FAMILY = f"\U0001f468{ZWJ}\U0001f469{ZWJ}\U0001f467"
CLUSTERS = [
    ["a", "b", " ", "c"],
    ["\r\n", "\n", "a"],
    ["e\u0301", "x"],
    [FAMILY, "\U0001f44b\U0001f3fd", "!"],
    ["\U0001f1e9\U0001f1ea", "\U0001f1e8\U0001f1f3", "\U0001f1eb"],
    ["\u0928", "\u092e", "\u0938\u094d\u0924\u0947"],  # न म स्ते
    ["\u0643", "\u064e\u062a"[1:], "\u05e9\u05c1"],
    ["\u1112\u1161\u11ab", "\ud55c", "\ud55c\u11ab"],
    ["\u4e2d", "\u6587"],
    ["1\ufe0f\u20e3", "2"],
]


@pytest.mark.parametrize("clusters", CLUSTERS, ids=map(repr, CLUSTERS))
def test_graphemes(clusters: list[str]) -> None:
    text = "".join(clusters)
    ends = [len("".join(clusters[: i + 1])) for i in range(len(clusters))]
    assert graphemes(text) == ends


def test_pieces_of_a_grapheme_belong_to_the_first() -> None:
    """As a byte-level tokenizer divides 中 into three tokens that all stand for the character."""
    text = "a \u4e2d\u6587"
    found = layout(text, ["a", "Ġ", "x", "y", "z", "文"], [(0, 1), (1, 2), (2, 3), (2, 3), (2, 3), (3, 4)])
    assert found.spans == ((0, 1), (1, 2), (2, 3), (3, 3), (3, 3), (3, 4))
    assert found.words == (1, 1, 3, 1)
    assert found.labels == {}  # which would be shown beside the character


def test_a_grapheme_is_not_divided() -> None:
    text = f"{FAMILY} ok"
    found = layout(text, ["1", "2", "3", "4"], [(0, 1), (1, 3), (3, 5), (6, 8)])
    assert found.spans == ((0, 5), (5, 5), (5, 5), (6, 8))
    assert found.words == (3, 1)
    gaps, lengths = found.gaps_and_lengths(text)
    assert lengths == [8, 0, 0, 2]
    assert gaps == [0, 0, 0, 1]


def test_tokens_that_the_model_adds_are_words_of_their_own() -> None:
    found = layout("The cat", ["[CLS]", "The", "ca", "t", "[SEP]"], [(0, 0), (0, 3), (4, 6), (6, 7), (0, 0)])
    assert found.words == (1, 1, 2, 1)
    assert found.labels == {0: "[CLS]", 4: "[SEP]"}
    assert found.spans[4] == (7, 7)


def test_white_space_and_lines_are_no_words() -> None:
    text = "if x:\n    y = 1\n"
    spans = [(0, 2), (2, 4), (4, 5), (5, 6), (6, 10), (10, 11), (11, 13), (13, 15), (15, 16)]
    found = layout(text, [text[a:b] for a, b in spans], spans)
    assert found.spans == tuple(spans)
    assert found.words == (1,) * 9


def test_words_that_are_given() -> None:
    found = layout("don't", ["do", "n't"], [(0, 2), (2, 5)], [0, 1])
    assert found.words == (1, 1)
    assert layout("don't", ["do", "n't"], [(0, 2), (2, 5)]).words == (2,)


# ---------------------------------------------------------------- what opens first

LINKS = [
    [Link(0, 1, 0.9), Link(3, 2, 0.5)],
    [Link(3, 4, 0.4), Link(4, 3, 0.3)],
    [Link(4, 3, 0.6)],
]


def test_a_content_word_of_a_head_with_a_role_opens() -> None:
    content = {3: 3, 4: 4}
    for whole in (set[int](), {3, 4}):
        assert opening(LINKS, {1}, (), content, whole) == Opening(1, 3, 4)
        assert opening(LINKS, {0, 1}, (), content, whole) == Opening(
            1, 3, 4
        )  # head 0 has no link between content words
        assert opening(LINKS, set(), (), content, whole) == Opening(2, 4, 3)
    assert opening(LINKS, {1}, (), {3: 3}, {3}) == Opening(1, 3, 4)
    assert opening(LINKS, {2}, (), {3: 3}, {3}) == Opening(0, 3, 2)  # head 2 has no link from a content word
    assert opening(LINKS, {1}, (), {}, ()) == Opening(1, 3, 4)
    assert opening(LINKS, (), (), {}, ()) == Opening(0, 0, 1)
    within = content | {3: 4}  # the tokens 3 and 4 are one word
    assert opening(LINKS, (), (), within, ()) == Opening(0, 3, 2)
    assert opening([[], []], {1}, (), content, {3, 4}) == Opening(0, 0, 0)


def test_a_head_that_looks_at_any_words_opens_last() -> None:
    content = {3: 3, 4: 4}
    assert opening(LINKS, set(), {2}, content, content) == Opening(1, 3, 4)  # of head 1 nothing is known
    assert opening(LINKS, {1}, {2}, content, content) == Opening(1, 3, 4)
    assert opening(LINKS, set(), {0, 1, 2}, content, content) == Opening(2, 4, 3)


def test_whole_words_open_before_parts_of_words() -> None:
    content = {2: 2, 3: 3, 4: 3, 5: 4}  # the tokens 3 and 4 are one word
    links = [[Link(4, 2, 0.9), Link(5, 3, 0.8)], [Link(5, 2, 0.1)], [Link(2, 5, 0.05)]]
    assert opening(links, {0, 2}, (), content, {2, 5}) == Opening(2, 2, 5)
    assert opening(links, {0}, (), content, {2, 5}) == Opening(1, 5, 2)
    assert opening(links[:1], {0}, (), content, {2, 5}) == Opening(0, 4, 2)  # nothing better is there


@pytest.mark.parametrize(
    ("text", "ends", "whole"),
    [
        ("With commonalty doth general agree", (4, 11, 15, 17, 20, 28, 34), {5, 6}),
        ("小猫的苹果", (1, 2, 3, 4, 5), {0, 1, 3, 4}),
    ],
    ids=["English", "Chinese"],
)
def test_a_report_opens_with_whole_words(text: str, ends: tuple[int, ...], whole: set[int], tmp_path: Path) -> None:
    """However weak their links are beside those of parts of words."""
    found, starts = seen(len(ends), **FORMS["none"]), [0, *ends[:-1]]
    offsets = [(start + (text[start] == " "), end) for start, end in zip(starts, ends, strict=True)]
    path = found.report(tmp_path / "report.html", text=text, offsets=offsets)
    _, head, query, key = max(
        (float(found.weights(layer, head)[0][query, key]), 4 * layer + head, query, key)
        for layer, head, query, key in itertools.product(range(2), range(4), whole, whole)
        if query != key > 0  # no link leads to the first token
    )
    report = reports_of(path.read_text(encoding="utf-8"))[0].json
    assert report["open"] == {"head": head, "token": query, "key": key}


class Held(HeadRoles):
    """Roles of some of the heads of two layers, by layer and head."""

    def __init__(self, layers: list[str], roles: Mapping[tuple[int, int], tuple[str, ...]]) -> None:
        super().__init__([(layer, head) for layer in layers for head in range(4)], {}, {})
        self.held = {(layers[layer], head): names for (layer, head), names in roles.items()}

    def of(self, layer: int | str, head: int) -> list[Finding]:
        names = self.held.get((str(layer), head), ())
        return [Finding(name, "", str(layer), head, 0.95, 0.9, 1.0, 0.1, 99, holds=True) for name in names]


@pytest.mark.parametrize("role", ["positional", "local", "block", "sink"])
@pytest.mark.parametrize("text", ["kettle lantern marble orchard", "茶壶 灯笼 石头 果园"], ids=["English", "Chinese"])
def test_a_report_opens_with_a_head_whose_role_depends_on_words(text: str, role: str, tmp_path: Path) -> None:
    offsets = [match.span() for match in re.finditer(r"\S+", text)]
    found = seen(len(offsets), **FORMS["none"])

    def opened(roles: Mapping[tuple[int, int], tuple[str, ...]]) -> tuple[int, int]:
        path = found.report(tmp_path / "page.html", text=text, offsets=offsets, roles=Held(found.layers, roles))
        return divmod(reports_of(path.read_text(encoding="utf-8"))[0].json["open"]["head"], 4)

    strongest = opened({})
    assert opened({strongest: (role,)}) != strongest
    assert opened({(layer, head): (role,) for layer in range(2) for head in range(4)}) == strongest
    assert opened({strongest: ("rare_word", role)}) == strongest
    other = (1 - strongest[0], 0)
    assert opened({strongest: (role,), other: ("rare_word",)}) == other


@pytest.mark.parametrize(
    ("word", "is_one"),
    [
        *(("asleep", True), ("the", False), ("That", False), ("x = 1", False), ("2024", False), (" ", False)),
        *(
            ("猫", True),
            ("小猫", True),
            ("的", False),
            ("因为", False),
            ("如果", False),
            ("果", True),
            ("能力", True),
            ("बिल्ली", True),
            ("पर", False),
        ),
    ],
)
def test_content_words(word: str, is_one: bool) -> None:
    assert is_content(word) is is_one
