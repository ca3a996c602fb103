"""Content-aware phases: exponents, RoPE as a special case, shared key heads, caches."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from headway import attention
from headway.coordinates import Coordinates
from headway.errors import HeadwayError
from headway.masks import Causal
from headway.nn import MultiHeadAttention
from headway.positions import RoPE
from headway.positions._encodings.carope import CARoPE


def prepared(encoding: CARoPE, q: Tensor, x: Tensor) -> Tensor:
    at = encoding.place(Coordinates.span(x.shape[1]))
    q_at, _ = encoding.relocate(at, at, x, x)
    return encoding.prepare_query(q, q_at)


def test_a_constant_ratio_is_rope() -> None:
    """f = base^(−2/d) for every token: the phases are RoPE's at positions 1, 2, 3 …"""
    encoding, d = CARoPE(1, 1, head_dim=8).double(), 8
    ratio = 10000.0 ** (-2 / d)
    encoding.weight.data.fill_(math.log(math.expm1(1 / ratio - 1)))
    q, x = torch.randn(1, 1, 6, d, dtype=torch.float64), torch.ones(1, 6, 1, dtype=torch.float64)
    expected = RoPE(d).prepare(q, Coordinates.of(torch.arange(1, 7), 6))
    torch.testing.assert_close(prepared(encoding, q, x), expected)


def test_the_first_pair_counts_tokens_and_the_second_their_ratios() -> None:
    encoding = CARoPE(1, 1, head_dim=4).double()
    encoding.weight.data.fill_(1)
    x = torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64)
    q = torch.tensor([1.0, 0, 1, 0], dtype=torch.float64).expand(1, 1, 3, 4)
    ratios = [1 / (1 + math.log1p(math.exp(z))) for z in x.tolist()]
    expected = [
        [math.cos(t + 1), math.sin(t + 1), math.cos(sum(ratios[: t + 1])), math.sin(sum(ratios[: t + 1]))]
        for t in range(3)
    ]
    torch.testing.assert_close(prepared(encoding, q, x.view(1, 3, 1))[0, 0], torch.tensor(expected).double())


def test_starts_near_a_ratio_of_a_half_and_more() -> None:
    encoding = CARoPE(512, 8)
    assert encoding.weight.shape == (8, 512)
    assert encoding.weight.std().item() == pytest.approx(0.02, rel=0.1)


def test_query_heads_take_the_phases_of_their_key_head() -> None:
    few, many = CARoPE(32, 4, num_kv_heads=2).double(), CARoPE(32, 4).double()
    torch.nn.init.normal_(few.weight)
    many.weight.data.copy_(few.weight.data.repeat_interleave(2, 0))
    x = torch.randn(2, 7, 32, dtype=torch.float64)
    q, (k, v) = torch.randn(2, 4, 7, 8, dtype=torch.float64), torch.randn(2, 2, 2, 7, 8, dtype=torch.float64)
    arguments = {"mask": Causal(), "q_input": x, "k_input": x}
    found = attention(q, k, v, encoding=few, **arguments)
    expected = attention(q, k.repeat_interleave(2, 1), v.repeat_interleave(2, 1), encoding=many, **arguments)
    torch.testing.assert_close(found, expected)


def test_a_layer_with_a_cache_gives_what_a_full_pass_gives(
    check_cache: Callable[[MultiHeadAttention, int], None],
) -> None:
    layer = MultiHeadAttention(32, 4, num_kv_heads=2, encoding=CARoPE(32, 4, num_kv_heads=2)).double()
    check_cache(layer, 32)


def test_bad_arguments() -> None:
    with pytest.raises(HeadwayError, match="head_dim is 7"):
        CARoPE(28, 4)
    q, x = torch.randn(1, 3, 5, 8), torch.randn(1, 5, 16)
    with pytest.raises(HeadwayError, match="x has 3 heads but phases are for 2"):
        attention(q, q, q, encoding=CARoPE(16, 2), mask=Causal(), q_input=x, k_input=x)
