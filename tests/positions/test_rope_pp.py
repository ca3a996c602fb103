"""RoPE++: heads that score by the imaginary part of the products of RoPE."""

import math

import pytest
import torch
from torch import Tensor

from headway import attention, attention_steps
from headway.coordinates import Coordinates
from headway.errors import HeadwayError
from headway.positions import RoPE, RoPEPP


def wave(*shape: int, a: float) -> Tensor:
    return torch.sin(a * torch.arange(math.prod(shape), dtype=torch.float64)).view(shape)


# LlamaAttention.apply_rotary_pos_emb of OpenMOSS/rope_pp, modeling_llama_rope_pp.py at 91ba335, in float64: scores of
# the last of 6 queries with keys 0 and 3, by head
THEIRS = {
    "imag2": [
        [0.252235257808876, 0.777052039797],
        [0.276291632726338, 0.367669222430906],
        [-0.914610302226449, -0.269624299816521],
        [-0.0401936774966295, -0.289530402266733],
    ],
    "imagh": [[0.252235257808876, 0.777052039797], [-0.0401936774966295, -0.289530402266733]],
    "imagx": [[0.252235257808876, 0.777052039797], [-0.0401936774966295, -0.289530402266733]],
    "imago": [[0.276291632726338, 0.367669222430906], [-0.0401936774966295, -0.289530402266733]],
}


@pytest.mark.parametrize("mode", THEIRS)
def test_the_authors_numbers(mode: str) -> None:
    q, k = wave(1, 2, 6, 8, a=0.7), wave(1, 1, 6, 8, a=1.1)
    q = q.repeat_interleave(2, dim=1) if mode == "imag2" else q
    encoding = RoPEPP(q.shape[1], 8, {"imagh": "second-half", "imago": "all"}.get(mode, "odd"))
    found = attention_steps(q, k, k, encoding=encoding).scaled[0, :, 5, [0, 3]]
    torch.testing.assert_close(found, torch.tensor(THEIRS[mode], dtype=torch.float64), atol=1e-12, rtol=0)


def test_real_heads_are_those_of_rope() -> None:
    q, k = torch.randn(2, 1, 4, 6, 8, dtype=torch.float64)
    found, plain = (attention_steps(q, k, k, encoding=e).scaled for e in (RoPEPP(4, 8), RoPE(8, layout="half")))
    assert torch.equal(found[:, ::2], plain[:, ::2])
    assert not torch.allclose(found[:, 1::2], plain[:, 1::2], atol=0.1)


def test_an_imaginary_head_is_a_real_one_a_quarter_turn_back() -> None:
    """Both parts of one product: their squares sum to that of its size, which RoPE with one pair does not change."""
    q, k = torch.randn(1, 1, 7, 2, dtype=torch.float64).expand(1, 2, 7, 2), torch.randn(1, 1, 7, 2, dtype=torch.float64)
    real, imaginary = attention_steps(q, k, k, encoding=RoPEPP(2, 2), scale=1.0).scaled[0]
    sizes = q[0, 0].norm(dim=-1)[:, None] * k[0, 0].norm(dim=-1)
    torch.testing.assert_close(real**2 + imaginary**2, sizes**2)


@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_one_pass_is_that_of_the_reference(layout: str) -> None:
    q, k, v = torch.randn(1, 4, 6, 8), *torch.randn(2, 1, 2, 6, 8)
    encoding = RoPEPP(4, 8, layout=layout)
    expected = attention(q, k, v, encoding=encoding, kernel="reference")
    torch.testing.assert_close(attention(q, k, v, encoding=encoding), expected)


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(HeadwayError, match="imaginary is 'even': give one of 'odd', 'second-half', 'all'"):
        RoPEPP(4, 8, "even")
    with pytest.raises(HeadwayError, match="q has 3 heads but the encoding was built for 4"):
        RoPEPP(4, 8).prepare_query(torch.zeros(1, 3, 2, 8), Coordinates.span(2))
