"""Rare-word heads: constructed ones, figures of literal loops."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import pytest
import torch
from torch import Tensor

from headway.errors import HeadwayError
from headway.inspection import head_roles
from headway.inspection.roles._table import RareWord
from headway.inspection.texts import AnnotatedText, EncodedText

sys.path.append(str(Path(__file__).parent))
from annotated import Given, chance, spans, weights

COUNTS = {id: 10_000 // id for id in range(2, 60)}
"""Ids by falling frequency."""


def sentences(count: int) -> list[EncodedText]:
    """[CLS], different tokens of falling frequency in any order, one of them twice, and [SEP]."""
    source = torch.Generator().manual_seed(0)
    found = []
    for number in range(count):
        n = 8 + number % 2
        ids = (2 + torch.randperm(58, generator=source)[:n]).tolist()
        ids[0] = ids[3]
        text = AnnotatedText("a " * n, spans(n))
        tokens = ("[CLS]", *map(str, ids), "[SEP]")
        found.append(EncodedText((0, *ids, 1), tokens, (-1, *range(n), -1), text))
    return found


def to_rank(rank: int) -> object:
    """A head that attends to [CLS] and [SEP], and else to the token of a rank, from the rarest on."""

    def head(text: EncodedText) -> Tensor:
        wanted = sorted({*text.ids[1:-1]}, reverse=True)[rank]
        found = chance(text) + 1e6 * torch.tensor([id == wanted for id in text.ids])
        found[:, [0, -1]] = 1e8
        return found

    return head


def test_constructed_heads() -> None:
    texts = sentences(60)
    role = RareWord(COUNTS, frequent=10)
    found = head_roles(Given(texts, chance, *(to_rank(rank) for rank in range(3))), texts, role)  # type: ignore[arg-type]
    held = [[one.candidate for one in found.of(0, head)] for head in range(4)]
    assert held == [[], ["rarest", "two rarest"], ["two rarest"], []]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("given", [True, False])
def test_figures_are_those_of_loops(causal: bool, given: bool) -> None:
    texts = sentences(40)
    counts = COUNTS if given else Counter(id for text in texts for id in text.ids[1:-1])
    role = RareWord(COUNTS if given else None, frequent=50)
    found = head_roles(Given(texts, chance, causal=causal), texts, role).role("rare_word")
    frequent = {id for id, count in counts.items() if count >= sorted(counts.values(), reverse=True)[49]}
    for number, one in enumerate(found):
        hits, cases, luck = 0, 0, 0.0
        for text in texts[1::2]:
            rising = sorted({*text.ids[1:-1]}, key=lambda id: counts[id])
            if rising[0] in frequent:
                continue
            rare = {i for i in range(1, len(text) - 1) if counts[text.ids[i]] <= counts[rising[number]]}
            a = weights(chance, text, causal)
            for i in range(1, len(text) - 1):
                seen = [j for j in range(1, len(text) - 1) if not causal or j <= i]
                if rare & {*seen}:
                    cases += 1
                    hits += max(seen, key=lambda j: float(a[i, j])) in rare
                    luck += len(rare & {*seen}) / len(seen)
        assert one.cases == cases > 10
        assert one.figure == pytest.approx(hits / cases)
        assert one.baseline == pytest.approx(luck / cases)


def test_texts_of_few_tokens_do_not_serve() -> None:
    texts = sentences(20)
    found = head_roles(Given(texts, chance), texts, ["rare_word", "broad"])
    known = len({id for text in texts for id in text.ids[1:-1]})
    assert found.not_measured == {"rare_word": f"more than 500 different tokens: they have {known}"}
    assert not head_roles(Given(texts, chance), texts, RareWord(frequent=0)).not_measured
    with pytest.raises(HeadwayError, match="frequent is -1: give at least 0"):
        RareWord(frequent=-1)
    assert "9" not in repr(RareWord(COUNTS))
