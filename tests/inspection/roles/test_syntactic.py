"""Syntactic heads: constructed ones, figures of literal loops, causal models, models of chance."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

import headway as hw
from headway.errors import HeadwayError
from headway.inspection import head_roles
from headway.inspection.roles._table import Syntactic
from headway.inspection.texts import AnnotatedText, EncodedText
from headway.models import Encoder, TransformerConfig

sys.path.append(str(Path(__file__).parent))
from annotated import Given, Head, between_words, chance, encoded, spans, to_words, weights

RELATIONS = ("det", "nsubj:pass", "obj", "punct")


def sentences(count: int, seed: int = 0) -> list[EncodedText]:
    """Sentences in which governors are any words, but "det" depends on the next word."""
    source = torch.Generator().manual_seed(seed)
    found = []
    for number in range(count):
        n = 8 + number % 3
        governors, relations = [], []
        for i in range(n):
            name = RELATIONS[int(torch.randint(len(RELATIONS), (1,), generator=source))]
            governors.append((i + int(torch.randint(1, n, (1,), generator=source))) % n)
            relations.append(name)
            if name == "det":
                governors[i], relations[i] = (i + 1, name) if i + 1 < n else (governors[i], "obj")
        root = int(torch.randint(n, (1,), generator=source))
        governors[root], relations[root] = -1, "root"
        text = AnnotatedText("a " * n, spans(n), governors=tuple(governors), relations=tuple(relations))
        found.append(encoded(text, source))
    return found


def arcs(text: AnnotatedText, relation: str) -> list[tuple[int, int]]:
    """Each dependent of a relation and its governor."""
    return [
        (i, g) for i, (g, r) in enumerate(zip(text.governors, text.relations, strict=True)) if g >= 0 and r == relation
    ]


def to_governor(relation: str) -> Head:
    return to_words(lambda text: arcs(text, relation))


def to_dependent(relation: str) -> Head:
    return to_words(lambda text: [(g, i) for i, g in reversed(arcs(text, relation))])


def next_word(text: EncodedText) -> Tensor:
    word = torch.tensor(text.word_of)
    return chance(text) + 1e6 * ((word[None] == word[:, None] + 1) & (word[:, None] >= 0))


HEADS: dict[str, tuple[Head, set[str]]] = {
    "by chance": (chance, set()),
    "to the governor of obj": (to_governor("obj"), {"obj → governor"}),
    "to the governor of nsubj:pass": (to_governor("nsubj:pass"), {"nsubj → governor"}),
    "to the next word": (next_word, set()),  # always right for "det", as the offset +1 is
    "to the governor of det": (to_governor("det"), set()),
    "to the governor of punct": (to_governor("punct"), set()),
}


def test_constructed_heads_follow_exactly_their_relations() -> None:
    texts = sentences(80)
    found = head_roles(Given(texts, *(head for head, _ in HEADS.values())), texts, "syntactic")
    for number, (name, (_, expected)) in enumerate(HEADS.items()):
        assert {one.candidate for one in found.of(0, number)} == expected, name
    [best] = [one for one in found.best("syntactic") if one.candidate == "obj → governor"]
    assert (best.head, best.figure, best.holds) == (1, 1.0, True)
    [det] = [one for one in found.role("syntactic") if one.candidate == "det → governor" and one.head == 3]
    assert det.figure == det.baseline == 1


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("subtypes", [False, True])
def test_figures_are_those_of_loops(causal: bool, subtypes: bool) -> None:
    texts, role = sentences(40), Syntactic(subtypes=subtypes)
    heads: list[Head] = [chance, to_governor("obj"), to_dependent("obj"), next_word]
    found = head_roles(Given(texts, *heads, causal=causal), texts, role).role("syntactic")
    totals: dict[tuple[int, str], list[int]] = {}
    guesses: dict[str, dict[tuple[str, int], list[int]]] = {}
    for number, text in enumerate(texts):
        for head, function in enumerate(heads):
            words = between_words(weights(function, text, causal), text)
            for i, (g, r) in enumerate(zip(text.text.governors, text.text.relations, strict=True)):
                name = r if subtypes else r.split(":")[0]
                if g < 0 or r == "punct":
                    continue
                for a, b, candidate in ((i, g, f"{name} → governor"), (g, i, f"governor → {name}")):
                    if causal and b > a:
                        continue
                    sums = totals.setdefault((head, candidate), [0, 0])
                    top = max((w for w in range(len(words)) if w != a), key=lambda w: words[a][w])
                    if number % 2:
                        sums[0], sums[1] = sums[0] + (top == b), sums[1] + 1
                    if head == 0:
                        for d in [*range(-5, 0), *range(1, 6)]:
                            guesses.setdefault(candidate, {}).setdefault(("by", d), [0, 0])[number % 2] += b - a == d
                        for place in range(3):
                            guesses[candidate].setdefault(("at", place), [0, 0])[number % 2] += b == place
    assert {(one.head, one.candidate) for one in found} >= set(totals)
    for one in found:
        hits, cases = totals.get((one.head, one.candidate), [0, 0])
        assert one.cases == cases
        if cases:
            assert one.figure == pytest.approx(hits / cases), one
            best = max(guesses[one.candidate].values(), key=lambda both: both[0])
            assert one.baseline == pytest.approx(best[1] / cases), one
    odd = Syntactic(subtypes=subtypes, relations=("obj",)).arcs(texts[1::2])
    cases_of_obj = {one.candidate: one.cases for one in found}
    assert odd["obj → governor"] == sum(len(arcs(text.text, "obj")) for text in texts[1::2])
    assert (odd["obj → governor"] > cases_of_obj["obj → governor"]) is causal
    if causal:  # each arc is seen in one of its directions
        both = cases_of_obj["obj → governor"] + cases_of_obj["governor → obj"]
        assert both == odd["obj → governor"]


def test_a_head_that_attends_to_itself_alone_finds_nothing() -> None:
    texts = sentences(20)
    found = head_roles(Given(texts, lambda text: torch.eye(len(text))), texts, "syntactic").role("syntactic")
    assert {one.figure for one in found} == {0}


def test_words_without_tokens_are_no_cases() -> None:
    texts = sentences(10)
    fewer = [
        dataclasses.replace(text, word_of=tuple(-1 if word == 0 else word for word in text.word_of)) for text in texts
    ]
    role = Syntactic(relations=("obj",))
    [all_of, some] = [
        head_roles(Given(these, chance), these, role).role("syntactic")[0].cases for these in (texts, fewer)
    ]
    without = [text for text in texts[1::2] for a, b in arcs(text.text, "obj") if 0 in (a, b)]
    assert some == all_of - len(without) < all_of
    assert role.arcs(fewer[1::2])["obj → governor"] == all_of


def test_relations_may_be_chosen() -> None:
    texts = sentences(80)
    role = Syntactic(relations=("punct",))
    found = head_roles(Given(texts, to_governor("punct")), texts, role)
    assert [one.candidate for one in found.of(0, 0)] == ["punct → governor"]
    assert role.candidates(texts) == ("punct → governor", "governor → punct")


def test_texts_without_relations_do_not_serve() -> None:
    bare = [dataclasses.replace(text, text=AnnotatedText(text.text.text, text.text.words)) for text in sentences(2)]
    found = head_roles(Given(bare, chance), bare, ["syntactic", "broad"])
    assert found.not_measured == {"syntactic": "dependency relations: read a CoNLL-U file"}
    with pytest.raises(HeadwayError, match="offsets is empty"):
        Syntactic(offsets=())


def test_a_model_of_chance_follows_no_relation() -> None:
    texts = sentences(100)
    for seed in range(3):
        torch.manual_seed(seed)
        config = TransformerConfig(vocab_size=1000, embed_dim=64, num_heads=8, num_layers=3)
        found = head_roles(Encoder(config, hw.encoding("rope", head_dim=8)), texts, "syntactic")
        assert not [one for one in found.role("syntactic") if one.holds]


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_figures_are_the_same_with_another_default_dtype(dtype: torch.dtype) -> None:
    texts = sentences(20)
    drawn = {text.ids: chance(text) for text in texts}
    model = Given(texts, lambda text: drawn[text.ids])
    expected = str(head_roles(model, texts, "syntactic").role("syntactic"))
    torch.set_default_dtype(dtype)
    try:
        assert str(head_roles(model, texts, "syntactic").role("syntactic")) == expected
    finally:
        torch.set_default_dtype(torch.float32)


def test_a_causal_head_that_keeps_to_a_place_is_not_syntactic() -> None:
    """Its word is the governor of many, as a subject near the beginning of a sentence is found by chance."""
    source, found = torch.Generator().manual_seed(0), []
    for number in range(60):
        n = 8 + number % 5
        governors = [1, -1, *[1 if number % 2 ^ i % 2 else i - 1 for i in range(2, n)]]
        relations = ["det", "root", *["obl"] * (n - 2)]
        text = AnnotatedText("a " * n, spans(n), governors=tuple(governors), relations=tuple(relations))
        found.append(encoded(text, source))

    def second(text: EncodedText) -> Tensor:
        return torch.tensor([[float(word == 1) for word in text.word_of]]).expand(len(text), -1)

    [figures] = [
        one
        for one in head_roles(Given(found, second, causal=True), found, "syntactic").role("syntactic")
        if one.candidate == "obl → governor"
    ]
    assert figures.figure > 0.5
    assert figures.baseline == pytest.approx(figures.figure)
    assert not figures.holds
