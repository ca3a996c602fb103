"""Coreferential heads: constructed ones, figures of literal loops, what is left out."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import headway as hw
from headway.errors import HeadwayError
from headway.inspection import head_roles
from headway.inspection.roles import Batch, HeadRoles
from headway.inspection.roles._antecedents import KINDS
from headway.inspection.roles._table import Coreferential
from headway.inspection.texts import AnnotatedText, Choice, EncodedText, Mention, encode, read_gap
from headway.models import Encoder, TransformerConfig

sys.path.append(str(Path(__file__).parent))
from annotated import Given, Head, between_words, chance, encoded, spans, to_words, weights

NAME, WORD, MENTION = (kind.name for kind in KINDS)


def passages(count: int, seed: int = 0) -> list[EncodedText]:
    """Texts of twelve words with a pronoun and two names of one or two words; every fifth pronoun is neither's."""
    source = torch.Generator().manual_seed(seed)
    found = []
    for number in range(count):
        starts = (torch.randperm(6, generator=source)[:3] * 2).tolist()
        long = torch.randint(1, 3, (2,), generator=source).tolist()
        pronoun, one, other = ((start, start + size) for start, size in zip(starts, (1, *long), strict=True))
        neither = (Choice(pronoun, None, one), Choice(pronoun, None, other))
        choices = neither if number % 5 == 4 else (Choice(pronoun, one, other),)
        found.append(encoded(AnnotatedText("a " * 12, spans(12), choices=choices), source))
    return found


def documents(count: int, seed: int = 0) -> list[EncodedText]:
    """Texts of 16 words, a, b and c, with mentions of three entities, mostly of one that goes with the word."""
    source = torch.Generator().manual_seed(seed)
    found = []
    for _ in range(count):
        written = "".join("abc"[i] + " " for i in torch.randint(3, (16,), generator=source).tolist())
        mentions = []
        for start in range(0, 15, 2):
            if torch.rand(1, generator=source) < 0.6:
                size = 1 + int(torch.randint(2, (1,), generator=source))
                head = start + int(torch.randint(size, (1,), generator=source))
                entity = "abc".index(written[2 * head])
                if torch.rand(1, generator=source) < 0.4:
                    entity = int(torch.randint(3, (1,), generator=source))
                mentions.append(Mention(start, start + size, entity, head))
        mentions.append(Mention(0, 16, 7, 3))  # around all others, alone in its entity
        found.append(encoded(AnnotatedText(written, spans(16), mentions=tuple(mentions)), source))
    return found


def choose(which: int) -> Head:
    """A head that attends from a pronoun to one of the names, by its place in a choice."""

    def links(text: AnnotatedText) -> list[tuple[int, int]]:
        found = []
        for choice in text.choices:
            if choice.right is not None:
                start, stop = choice[which]  # type: ignore[misc]
                found += [(choice.mention[0], word) for word in range(start, stop)]
        return found

    return to_words(links)


def antecedents(text: AnnotatedText, mention: Mention) -> set[int]:
    return {one.head for one in text.mentions if one.entity == mention.entity and one.head < mention.head}


def links_back(text: AnnotatedText) -> list[tuple[int, int]]:
    return [(one.head, word) for one in text.mentions for word in antecedents(text, one)]


def to_mentions_and_beside(text: EncodedText) -> torch.Tensor:
    """To antecedents with most of the weight that mentions get, and with more weight to words that are not mentions."""
    heads = {one.head for one in text.text.mentions}
    found = to_words(links_back)(text)
    word = torch.tensor(text.word_of)
    beside = torch.tensor([w >= 0 and w not in heads for w in text.word_of])
    return found + 1e9 * (beside[None] & (word >= 0)[:, None])


def held(found: HeadRoles, head: int) -> set[str]:
    return {one.candidate for one in found.of(0, head)}


def test_heads_that_choose_names() -> None:
    texts = passages(150)
    found = head_roles(Given(texts, chance, choose(1), choose(2)), texts, "coreferential")
    assert [held(found, head) for head in range(3)] == [set(), {NAME}, set()]
    assert [one.figure for one in found.role("coreferential")][1:] == [1, 0]
    assert Coreferential().left_out(texts) == 30
    assert found.role("coreferential")[0].cases == 60


def test_heads_that_find_antecedents() -> None:
    texts = documents(100)
    heads = (chance, to_words(links_back), to_mentions_and_beside)
    found = head_roles(Given(texts, *heads), texts, "coreferential")
    assert [held(found, head) for head in range(3)] == [set(), {WORD, MENTION}, {MENTION}]


def test_a_head_that_attends_to_itself_alone_finds_nothing() -> None:
    texts = documents(20)
    found = head_roles(Given(texts, lambda text: torch.eye(len(text))), texts, "coreferential").role("coreferential")
    assert [(one.figure, one.cases > 10) for one in found] == [(0, True)] * 2


def literal(kind: str, text: EncodedText, w: list[list[float]], causal: bool) -> tuple[float, int, list[float]]:
    """Hits and cases in one text, and the hits of both guesses."""
    hits, cases, guesses = 0.0, 0, [0.0, 0.0]
    if kind == NAME:
        for mention, right, wrong in text.text.choices:
            if right is None or (causal and max(right[0], wrong[0]) > mention[0]):
                continue
            at = mention[0]
            one, other = (sum(w[at][word] for word in range(*span)) for span in (right, wrong))
            far = [abs(text.text.words[span[0]][0] - text.text.words[at][0]) for span in (right, wrong)]
            long = [sum(span[0] <= word < span[1] for word in text.word_of) for span in (right, wrong)]
            cases += 1
            hits += one > other
            for number, (a, b) in enumerate(((far[1], far[0]), long)):
                guesses[number] += 0.5 if a == b else float(a > b)
        return hits, cases, guesses
    heads = sorted({mention.head for mention in text.text.mentions})
    for mention in text.text.mentions:
        right = antecedents(text.text, mention)
        if right:
            among = [b for b in (heads if kind == MENTION else range(len(w))) if b != mention.head]
            before = [b for b in heads if b < mention.head]
            same = [b for b in before if text.text.word(b) == text.text.word(mention.head)]
            cases += 1
            hits += max(among, key=lambda b: w[mention.head][b]) in right
            guesses[0] += before[-1] in right
            guesses[1] += bool(same) and same[-1] in right
    return hits, cases, guesses


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kind", [NAME, WORD, MENTION])
def test_figures_are_those_of_loops(kind: str, causal: bool) -> None:
    texts: list[EncodedText] = (passages if kind == NAME else documents)(60)
    heads: list[Head] = [chance, choose(1) if kind == NAME else to_words(links_back)]
    found = head_roles(Given(texts, *heads, causal=causal), texts, Coreferential(of=(kind,))).role("coreferential")
    for head, function in enumerate(heads):
        odd, even = (
            [
                literal(kind, text, between_words(weights(function, text, causal), text), causal)
                for text in texts[half::2]
            ]
            for half in (1, 0)
        )
        hits, cases = sum(one[0] for one in odd), sum(one[1] for one in odd)
        assert found[head].cases == cases > 5
        assert found[head].figure == pytest.approx(hits / cases)
        best = max((0, 1), key=lambda guess: sum(one[2][guess] for one in even))
        assert found[head].baseline == pytest.approx(sum(one[2][best] for one in odd) / cases)


@pytest.mark.parametrize("kind", [NAME, WORD, MENTION])
def test_guesses_are_those_of_loops(kind: str) -> None:
    texts: list[EncodedText] = (passages if kind == NAME else documents)(20)
    role, model = Coreferential(of=(kind,)), Given(texts, chance)
    for text in texts:
        batch = Batch([text])
        with hw.capture(model, statistics=role.statistics(batch)) as seen:
            model(batch.ids)
        found = seen.records[0].statistics()
        *_, expected = literal(kind, text, between_words(weights(chance, text), text), causal=False)
        assert role.guesses(batch, found, found)[0, 0, :, 0].tolist() == expected


def test_names_without_tokens_are_no_cases() -> None:
    texts = passages(20)
    cut = []
    for text in texts:
        _, right, wrong = text.text.choices[0]
        name = range(*(right or wrong))
        word_of = tuple(-1 if word in name else word for word in text.word_of)
        cut.append(dataclasses.replace(text, word_of=word_of))
    assert head_roles(Given(cut, chance), cut, "coreferential").role("coreferential")[0].cases == 0


def test_a_tie_is_half_a_hit() -> None:
    """Equal weights choose the name with more tokens, as the second guess does, and of equally long ones neither."""
    texts = passages(40)
    role = Coreferential(of=(NAME,))
    [one] = head_roles(Given(texts, lambda text: torch.ones(len(text), len(text))), texts, role).role("coreferential")
    won = []
    for text in texts[1::2]:
        for _, right, wrong in text.text.choices:
            if right is not None:
                long = [sum(start <= word < stop for word in text.word_of) for start, stop in (right, wrong)]
                won.append((long[0] > long[1]) + 0.5 * (long[0] == long[1]))
    assert 0.5 in won
    assert one.figure == pytest.approx(sum(won) / len(won))


def test_texts_that_do_not_serve() -> None:
    bare = [encoded(AnnotatedText("a " * 5, spans(5)), torch.Generator()) for _ in range(4)]
    found = head_roles(Given(bare, chance), bare, ["coreferential", "broad"])
    assert found.not_measured == {"coreferential": "mentions and choices: read a file of GAP or CoNLL-2012"}
    texts = passages(4)
    found = head_roles(Given(texts, chance), texts, [Coreferential(of=(NAME, WORD)), "broad"])  # type: ignore[list-item]
    assert found.not_measured == {"coreferential": "cases of 'antecedent of all words'"}
    for wrong in ((), "right name", ("name",)):
        with pytest.raises(HeadwayError, match="give some of"):
            Coreferential(of=wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("texts", [passages, documents])
def test_a_model_of_chance_finds_no_antecedents(texts: Callable[[int], list[EncodedText]]) -> None:
    these = texts(100)
    for seed in range(3):
        torch.manual_seed(seed)
        config = TransformerConfig(vocab_size=1000, embed_dim=64, num_heads=8, num_layers=3)
        found = head_roles(Encoder(config, hw.encoding("rope", head_dim=8)), these, "coreferential")
        assert not [one for one in found.role("coreferential") if one.holds]


@pytest.mark.slow
def test_gap(data: Callable[[str], Path], weights: Callable[[str], Path]) -> None:
    """Of the 2,000 passages 227 are left out, and the nearer name is right in 888 of the others."""
    every = read_gap(data("gap-test.tsv"))
    assert Coreferential().left_out(encode(hw.checkpoints.tokenizer(weights("minilm")), every)) == 227
    short = sorted(every, key=lambda text: len(text.text))[:150]
    texts = encode(hw.checkpoints.tokenizer(weights("minilm")), short)
    found = head_roles(hw.load(weights("minilm")), texts, "coreferential", layers=[3])
    [best] = found.best("coreferential")
    assert (best.layer, best.head, best.holds) == ("stack.blocks.3.attention", 1, True)
