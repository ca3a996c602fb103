"""The softmax with one more in its denominator."""

import pytest
import torch

import headway as hw
from headway.errors import HeadwayError
from headway.positions._encodings.softmax_one import SoftmaxOne


def test_it_is_torchs_further_key_and_value_of_zeros() -> None:
    theirs = torch.nn.MultiheadAttention(16, 2, bias=False, add_zero_attn=True, batch_first=True, dtype=torch.float64)
    x = torch.randn(1, 5, 16, dtype=torch.float64)
    q, k, v = (x @ theirs.in_proj_weight.T).view(1, 5, 3, 2, 8).permute(2, 0, 3, 1, 4)
    found = hw.attention(q, k, v, encoding=SoftmaxOne(2)).transpose(1, 2).flatten(2)
    expected, _ = theirs(x, x, x, need_weights=False)
    torch.testing.assert_close(theirs.out_proj(found), expected)


def test_with_nothing_to_say_a_head_says_little() -> None:
    q, v = torch.zeros(1, 1, 1, 4), torch.ones(1, 1, 1, 4)
    torch.testing.assert_close(hw.attention(q, q, v, encoding=SoftmaxOne(1)), v / 2)


def test_no_heads_raise() -> None:
    with pytest.raises(HeadwayError, match="num_heads is 0: give at least 1"):
        SoftmaxOne(0)
