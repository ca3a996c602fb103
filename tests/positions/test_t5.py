"""T5's buckets as a rising map of distances, against the formula as the authors' code has it."""

import math

import pytest
import torch
from torch import Tensor

from headway import attention_weights
from headway.coordinates import Coordinates
from headway.errors import HeadwayError
from headway.positions import T5
from headway.terms import Bucketize, DistanceBias, Rows

SETTINGS = [
    (32, 128, True),
    (32, 128, False),
    (64, 256, True),
    (32, 256, False),
    (128, 512, True),
    (4, 3, True),
    (2, 2, False),
    (7, 20, False),
    (64, 33, True),  # more buckets than distances to fill them: some are skipped
]


def literal(delta: int, buckets: int, max_distance: int, bidirectional: bool) -> int:
    """The bucket of key − query = delta, step by step."""
    bucket = 0
    n = -delta
    if bidirectional:
        buckets //= 2
        if n < 0:
            bucket += buckets
        n = abs(n)
    else:
        n = max(n, 0)
    max_exact = buckets // 2
    if n < max_exact:
        return bucket + n
    large = max_exact + int(math.log(n / max_exact) / math.log(max_distance / max_exact) * (buckets - max_exact))
    return bucket + min(large, buckets - 1)


def buckets_of(encoding: T5, delta: Tensor) -> Tensor:
    """The bucket that the encoding's term gives to distances from position 0."""
    encoding.table.data = torch.arange(encoding.num_buckets)[None].expand(encoding.num_heads, -1).double()
    q, k = Coordinates.of(delta.new_zeros(1), 1), Coordinates.of(delta, len(delta))
    (term,) = encoding.terms(q, k)
    assert isinstance(term, DistanceBias)
    assert isinstance(term.values, Rows)
    return term.values.table[0, term.values.map.rows(q, k)[0, 0]].detach().long()


@pytest.mark.parametrize("setting", SETTINGS)
def test_buckets_are_the_literal_ones(setting: tuple[int, int, bool]) -> None:
    delta = torch.arange(-5000, 5001)
    expected = [literal(d, *setting) for d in delta.tolist()]
    assert buckets_of(T5(1, *setting), delta).tolist() == expected


@pytest.mark.parametrize("setting", SETTINGS)
def test_no_boundary_exceeds_the_reach(setting: tuple[int, int, bool]) -> None:
    at = Coordinates.of(torch.arange(3), 3)
    (term,) = T5(1, *setting).terms(at, at)
    assert isinstance(term, DistanceBias)
    assert isinstance(term.values, Rows)
    buckets = term.values.map
    assert isinstance(buckets, Bucketize)
    assert buckets.reach is not None
    assert buckets.boundaries.abs().max() <= buckets.reach


def test_float32_logarithms_give_the_same_buckets() -> None:
    """As published code computes them, in both directions at 32 buckets and a distance of 128."""
    n = torch.arange(8, 5001)
    large = 8 + (torch.log(n.float() / 8) / math.log(128 / 8) * 8).long()
    assert buckets_of(T5(1), -n).tolist() == large.clamp(max=15).tolist()


def test_numbers_by_hand() -> None:
    """Both directions: 8 exact distances a side, the last bucket from 91 on, the future 16 higher."""
    delta = torch.tensor([0, -1, 1, -7, -8, 8, -90, -91, 91, -(10**9)])
    assert buckets_of(T5(1), delta).tolist() == [0, 1, 17, 7, 8, 24, 14, 15, 31, 15]
    assert buckets_of(T5(1, bidirectional=False), torch.tensor([5, 0, -15, -16, -(10**9)])).tolist() == [
        0,
        0,
        15,
        16,
        31,
    ]


def test_of_a_fraction_the_whole_distance_below_counts() -> None:
    delta = torch.tensor([-8.0, -7.99, -0.5, 0.5, 0.999, 1.0, 7.99, 8.0])
    assert buckets_of(T5(1), delta).tolist() == [8, 7, 0, 0, 0, 17, 23, 24]


def test_a_number_for_each_head_and_bucket_is_added_to_the_score() -> None:
    encoding = T5(2).double()
    torch.nn.init.normal_(encoding.table)
    q, k = torch.randn(2, 1, 2, 12, 4, dtype=torch.float64)
    bucket = torch.tensor([[literal(j - i, 32, 128, True) for j in range(12)] for i in range(12)])
    expected = (q @ k.mT + encoding.table[:, bucket]).softmax(-1)
    torch.testing.assert_close(attention_weights(q, k, k, encoding=encoding), expected)


def test_scores_are_not_scaled() -> None:
    assert T5(4).default_scale(64) == 1.0


def test_the_learned_table_gets_its_gradient_by_bucket() -> None:
    encoding, at = T5(2), Coordinates.span(3)
    (term,) = encoding.terms(at, at)
    term.values.table[:, term.values.map.rows(at, at)[0]].sum().backward()
    counts = torch.zeros(32).index_add(0, torch.tensor([0, 1, 2, 17, 18]), torch.tensor([3.0, 2, 1, 2, 1]))
    assert torch.equal(encoding.table.grad, counts.expand(2, 32))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"num_heads": 0}, "num_heads is 0"),
        ({"num_heads": 1, "num_buckets": 31}, "num_buckets is 31 with bidirectional=True: give an even number"),
        ({"num_heads": 1, "num_buckets": 2}, "num_buckets is 2 with bidirectional=True: .* at least 4"),
        ({"num_heads": 1, "num_buckets": 1, "bidirectional": False}, "num_buckets is 1 .* at least 2"),
        ({"num_heads": 1, "max_distance": 8}, "max_distance is 8 .* give at least 9"),
    ],
)
def test_wrong_arguments_raise(arguments: dict, said: str) -> None:
    with pytest.raises(HeadwayError, match=said):
        T5(**arguments)
