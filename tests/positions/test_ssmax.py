"""Scalable softmax, as the paper writes it: powers of the number of keys."""

import math

import pytest
import torch

from headway import attention_weights
from headway.coordinates import Coordinates
from headway.errors import HeadwayError
from headway.masks import Causal
from headway.positions._encodings.ssmax import SSMax


def test_weights_are_powers_of_the_number_of_keys() -> None:
    encoding = SSMax(2, initial=0.43).double()
    q, k = torch.randn(2, 1, 2, 6, 4, dtype=torch.float64)
    found = attention_weights(q, k, k, encoding=encoding, mask=Causal()).detach()
    for i in range(6):
        powers = [(i + 1) ** (0.43 * float(q[0, 1, i] @ k[0, 1, j]) / 2) for j in range(i + 1)]
        assert found[0, 1, i, : i + 1].tolist() == pytest.approx([p / sum(powers) for p in powers])


def test_in_both_directions_all_keys_count() -> None:
    encoding = SSMax(1, initial=0.43, bidirectional=True).double()
    q, k = torch.randn(2, 1, 1, 6, 4, dtype=torch.float64)
    powers = 6 ** (0.43 * (q @ k.mT) / 2)
    found = attention_weights(q, k, k, encoding=encoding)
    torch.testing.assert_close(found, powers / powers.sum(-1, keepdim=True), check_dtype=False)


def test_the_largest_weight_does_not_fade() -> None:
    """The paper's figure 1: one +3 among −2, s = 0.43: near 1 at any size, where softmax fades."""

    def largest(n: int, encoding: SSMax | None) -> float:
        k = torch.full((1, 1, n, 1), -2.0)
        k[..., -1, :] = 3.0
        return attention_weights(torch.ones(1, 1, 1, 1), k, k, encoding=encoding, scale=1.0)[..., -1].item()

    encoding = SSMax(1, initial=0.43, bidirectional=True)
    assert [largest(n, encoding) > 0.99 for n in (100, 1000, 10_000)] == [True] * 3
    assert largest(10_000, None) < 0.02


def test_the_first_value_keeps_scores_as_large_as_they_were() -> None:
    mean = sum(math.log(n) for n in range(1, 1025)) / 1024
    assert SSMax(3).s.tolist() == pytest.approx([1 / mean] * 3, rel=0.005)
    assert SSMax(3).b is None
    assert SSMax(3, bias=True).b is not None


def test_no_heads_raise() -> None:
    with pytest.raises(HeadwayError, match="num_heads is 0"):
        SSMax(0)


@pytest.mark.parametrize(
    ("bias", "expected"),
    [
        (0.0, [[0.131459, 0.240868, 0.10141, 0.18581, 0.340453], [0.178183, 0.326477, 0.137454, 0.251851, 0.106035]]),
        (0.3, [[0.103886, 0.247484, 0.071613, 0.170601, 0.406416], [0.161578, 0.38492, 0.111382, 0.265341, 0.07678]]),
    ],
)
def test_the_numbers_of_scalable_softmax(bias: float, expected: list) -> None:
    """ScalableSoftmax(s=0.43) of the package scalable-softmax 0.1.5, with and without bias, on five scores."""
    scores = (((torch.arange(10).double() * 7 + 5) % 17 - 8) / 8).view(1, 1, 2, 5)
    encoding = SSMax(1, initial=0.43, bias=bool(bias), bidirectional=True).double()
    if encoding.b is not None:
        encoding.b.data.fill_(bias)
    keys, at = torch.eye(5, dtype=torch.float64)[None, None], Coordinates.span(5)
    found = attention_weights(
        scores, keys, keys, encoding=encoding, scale=1.0, q_positions=at.rows(0, 2), k_positions=at
    )
    torch.testing.assert_close(found.detach()[0, 0], torch.tensor(expected).double(), atol=2e-6, rtol=0)
