"""Temperatures that grow with the logarithm of the keys in sight."""

import math

import pytest
import torch

from headway import attention, attention_weights
from headway.coordinates import Coordinates
from headway.errors import HeadwayError
from headway.masks import Causal, Documents
from headway.positions import Compose, RoPE
from headway.positions._encodings.log_n import LogN


def factors(encoding: LogN, at: Coordinates) -> list[float]:
    (term,) = encoding.terms(at, at)
    return term.factor.flatten().tolist()


def test_up_to_the_trained_length_nothing_changes_and_then_the_logarithm_counts() -> None:
    """The table of Qwen (QWenAttention, modeling_qwen.py): log(i, seq_length) if i > seq_length else 1, i = 1, 2 …"""
    expected = [math.log(i, 4) if i > 4 else 1 for i in range(1, 20)]
    assert factors(LogN(4), Coordinates.span(19)) == pytest.approx(expected)


def test_without_the_clamp_short_sequences_are_flattened() -> None:
    expected = [math.log(i, 512) for i in range(1, 9)]
    assert factors(LogN(clamp=False), Coordinates.span(8)) == pytest.approx(expected)


def test_in_both_directions_the_whole_stream_counts() -> None:
    encoding = LogN(math.e, clamp=False, bidirectional=True)
    assert factors(encoding, Coordinates.span(3, length=20)) == pytest.approx([math.log(20)])
    packed = [math.log(2)] * 2 + [math.log(5)] * 5
    assert factors(encoding, Coordinates.packed([2, 5])) == pytest.approx(packed)


def test_weights_are_those_of_sharper_scores() -> None:
    q, k = torch.randn(2, 1, 2, 9, 8, dtype=torch.float64)
    found = attention_weights(q, k, k, encoding=LogN(3), mask=Causal())
    sharper = q * torch.tensor(factors(LogN(3), Coordinates.span(9))).double()[:, None]
    torch.testing.assert_close(found, attention_weights(sharper, k, k, mask=Causal()))


def test_it_sharpens_what_another_encoding_turns() -> None:
    q, k = torch.randn(2, 1, 2, 9, 8)
    at = Coordinates.packed([4, 5])
    mask = Causal() & Documents()
    both = Compose(RoPE(8), LogN(3))
    found = attention(q, k, k, encoding=both, mask=mask, q_positions=at, k_positions=at)
    sharper = q * torch.tensor(factors(LogN(3), at))[:, None]
    torch.testing.assert_close(
        found, attention(sharper, k, k, encoding=RoPE(8), mask=mask, q_positions=at, k_positions=at)
    )


@pytest.mark.parametrize("train_length", [1, 0, math.inf])
def test_a_length_that_has_no_logarithm_raises(train_length: float) -> None:
    with pytest.raises(HeadwayError, match=f"train_length is {train_length}: give the tokens"):
        LogN(train_length)
