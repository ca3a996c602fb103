"""The n-gram models: their formula written literally, and bad input."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch

from headway.errors import HeadwayError
from headway.study.ngrams import ngram_bits


def literal(train: list[int], order: int, vocabulary: int):
    """P(token | context) of the model, from dictionaries of tuples."""
    levels = []
    for k in range(1, order + 1):
        grams = Counter(tuple(train[i - k : i]) for i in range(k, len(train) + 1))
        if k < order:
            longer = {tuple(train[i - k - 1 : i]) for i in range(k + 1, len(train) + 1)}
            grams = Counter(gram[1:] for gram in longer)
        n = Counter(grams.values())
        y = n[1] / (n[1] + 2 * n[2]) if n[1] and n[2] else 0.5
        discounts = [y, y, y]
        if n[1] and n[2] and n[3] and n[4]:
            discounts = [max(0, m - (m + 1) * y * n[m + 1] / n[m]) for m in (1, 2, 3)]
        levels.append((grams, discounts))

    def probability(context: tuple[int, ...], token: int) -> float:
        found = 1 / vocabulary
        for k in range(len(context) + 1):
            grams, discounts = levels[k]
            h = context[len(context) - k :]
            after = {gram[-1]: count for gram, count in grams.items() if gram[:-1] == h}
            if after:
                cut = {word: discounts[min(count, 3) - 1] for word, count in after.items()}
                own = after.get(token, 0) - cut.get(token, 0)
                found = (own + sum(cut.values()) * found) / sum(after.values())
        return found

    return probability


@pytest.mark.parametrize("size", [30, 600])
@pytest.mark.parametrize("order", [1, 2, 3, 5])
def test_the_loss_is_that_of_the_formula_written_literally(order, size):
    generator = torch.Generator().manual_seed(order)
    train = (torch.rand(size, generator=generator) ** 2 * 9).long()
    text = (torch.rand(25, generator=generator) ** 2 * 10).long()  # id 9 does not occur in train
    probability = literal(train.tolist(), order, 10)
    found = ngram_bits(train, text, order, 10)
    for i in range(len(text)):
        before = tuple(text[max(0, i - order + 1) : i].tolist())
        assert math.isclose(float(found[i]), -math.log2(probability(before, int(text[i]))), rel_tol=1e-12), i


@pytest.mark.parametrize("order", [1, 2, 4])
def test_the_probabilities_of_all_tokens_sum_to_one(order):
    train = torch.randint(7, (200,), generator=torch.Generator().manual_seed(0))
    before = train[40 : 40 + order - 1]
    losses = [ngram_bits(train, torch.cat([before, torch.tensor([token])]), order, 7)[-1] for token in range(7)]
    assert math.isclose(float(sum(2**-loss for loss in losses)), 1.0, rel_tol=1e-12)


def test_ids_of_a_large_vocabulary_and_long_contexts_do_not_overflow():
    generator = torch.Generator().manual_seed(1)
    small = torch.randint(9, (500,), generator=generator)
    large = small * 22_000 + 17  # the same text under other names
    same = ngram_bits(small[:400], small[400:], 8, 200_000)
    assert torch.equal(ngram_bits(large[:400], large[400:], 8, 200_000), same)


def test_bytes_of_a_small_type_are_counted_as_numbers():
    text = torch.frombuffer(bytearray(b"wer wagt, gewinnt; wer wartet, wartet"), dtype=torch.uint8)
    assert torch.equal(ngram_bits(text, text, 3, 256), ngram_bits(text.long(), text.long(), 3, 256))


def test_a_longer_context_helps_on_text_that_repeats():
    text = torch.tensor(list(b"to be or not to be, that is the question. " * 20))
    one, two, five = (float(ngram_bits(text[:600], text[600:], order, 256).mean()) for order in (1, 2, 5))
    assert one > two > five


def test_bad_input():
    ids = torch.tensor([1, 2])
    with pytest.raises(HeadwayError, match="order is 0: give at least 1"):
        ngram_bits(ids, ids, 0, 4)
    with pytest.raises(HeadwayError, match="a text is empty"):
        ngram_bits(ids, ids[:0], 2, 4)
