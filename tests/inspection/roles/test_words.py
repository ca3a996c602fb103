"""Weights between words against the rule of Clark et al., written word by word over dense weights in float64."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

import headway as hw
from headway import masks
from headway.call import make_call
from headway.errors import HeadwayError
from headway.inspection import statistics_of
from headway.inspection.roles._words import BetweenWords, MostAttendedWord

WORDS = torch.tensor([[-1, 0, 0, 2, 1, 1, 3, -1], [0, 1, 1, 1, -1, 3, 4, 4]])
"""Of two texts of 4 and 5 words: one word in three tokens, one whose tokens come after the next word's, one in none."""
COUNT = 5


def literally(weights: Tensor, word_of: list[int], a: int, b: int) -> float:
    """The mean over the tokens of word a of the sum over those of word b."""
    mine = [i for i, word in enumerate(word_of) if word == a]
    other = [j for j, word in enumerate(word_of) if word == b]
    return sum(float(weights[i, j]) for i in mine for j in other) / len(mine) if mine else 0.0


@pytest.mark.parametrize("mask", [None, masks.Causal(), masks.Window(2, 1)])
@pytest.mark.parametrize("kernel", ["auto", "reference"])
@pytest.mark.parametrize("among", [None, torch.tensor([[1, 0, 1, 1, 0], [0, 0, 1, 1, 1]]).bool()])
def test_the_most_attended_word(mask: Any, kernel: str, among: Tensor | None) -> None:
    q, k = (torch.randn(2, 3, 8, 4, dtype=torch.float64) * 2 for _ in range(2))
    call = make_call(q, k, k, mask=mask)
    found = statistics_of(call, [MostAttendedWord(WORDS, COUNT, among)], kernel=kernel).most_attended_word
    weights = hw.attention_weights(q, k, k, mask=mask)
    for row in range(2):
        tokens = WORDS[row].tolist()
        for head in range(3):
            for a in range(COUNT):
                of = {
                    b: literally(weights[row, head], tokens, a, b)
                    for b in range(COUNT)
                    if b != a and (among is None or among[row, b])
                }
                best = max(of, key=lambda b: of[b])
                assert found.word[row, head, a] == (best if of[best] > 0 else -1)
        for a in range(COUNT):
            for b in range(COUNT):
                sees = literally((weights[row, 0] > 0).double(), tokens, a, b) > 0
                assert found.sees[row, a, b] == sees


@dataclass(frozen=True, eq=False)
class Weights(BetweenWords):
    """All of them."""

    name = "weights between words"

    word_of: Tensor
    count: int

    def reduced(self, weights: Tensor, sees: Tensor) -> Tensor:
        return weights


def test_weights_between_words() -> None:
    q, k = (torch.randn(2, 3, 8, 4, dtype=torch.float64) for _ in range(2))
    found = statistics_of(make_call(q, k, k), [Weights(WORDS, COUNT)])["weights between words"]
    dense = hw.attention_weights(q, k, k)
    words = range(COUNT)
    expected = [
        [[[literally(of_head, tokens, a, b) for b in words] for a in words] for of_head in of_row]
        for of_row, tokens in zip(dense, WORDS.tolist(), strict=True)
    ]
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64))


def test_a_head_that_attends_to_no_other_word_has_none() -> None:
    q = k = torch.eye(4)[None, None] * 100  # each token attends to itself alone: other weights underflow to 0
    call = make_call(q, k, k, scale=1.0)
    found = statistics_of(call, [MostAttendedWord(torch.tensor([[0, 1, 2, 2]]), 3)]).most_attended_word
    assert found.word.tolist() == [[[-1, -1, -1]]]
    assert found.sees.all()


def test_only_one_layer_of_weights_is_held() -> None:
    """What a capture keeps of a layer grows with the words, not with their square in each head."""
    q = k = torch.randn(1, 8, 64, 4)
    found = statistics_of(make_call(q, k, k), [MostAttendedWord(torch.arange(64)[None], 64)]).most_attended_word
    assert found.word.shape == (1, 8, 64)
    assert found.sees.shape == (1, 64, 64)


def test_other_tokens_are_refused() -> None:
    q = k = torch.randn(2, 3, 7, 4)
    with pytest.raises(HeadwayError, match=r"words of \[2, 8\] tokens, and the layer has \[2, 7\] queries and 7 keys"):
        statistics_of(make_call(q, k, k), [MostAttendedWord(WORDS, COUNT)])
