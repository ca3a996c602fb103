"""ReRoPE: distances that stop, or slow down, at a window."""

import math

import pytest
import torch

import headway as hw
from headway.coordinates import Coordinates
from headway.errors import HeadwayError
from headway.positions import RoPE
from headway.positions._encodings.rerope import ReRoPE
from headway.properties import Pairs

# bojone/rerope (the author's), rerope_patch.py and leaky_rerope_patch.py at acfe788, run in float64 on six tokens with
# k = sin(0.7·t)·1.5 of 8, q = k back to front, a causal mask: the last token's weights; window 3, scaling_factor 4
AUTHORS = {
    0.0: [0.2690113096, 0.2285962757, 0.1519584028, 0.04136987728, 0.03338731796, 0.2756768167],
    0.25: [0.2444028936, 0.2304603259, 0.1588378807, 0.04324277902, 0.03489883237, 0.2881572885],
}


def scores(encoding: hw.positions.PositionEncoding, q: torch.Tensor, k: torch.Tensor, at: Coordinates) -> torch.Tensor:
    return Pairs(encoding, q, k, at, at).scores()


@pytest.mark.parametrize("leak", AUTHORS)
def test_numbers_of_the_authors_code(leak: float) -> None:
    k = torch.sin(torch.arange(48, dtype=torch.float64) * 0.7).view(1, 6, 8) * 1.5
    encoding = ReRoPE(8, window=3, leak=leak, layout="half")
    weights = scores(encoding, k.flip(-1), k, Coordinates.span(6))[0, 5].softmax(-1)
    assert weights.tolist() == pytest.approx(AUTHORS[leak], rel=1e-9)


def test_within_the_window_it_is_rope_and_behind_it_all_is_the_same() -> None:
    q, k = torch.randn(2, 2, 1, 8, dtype=torch.float64)
    at = Coordinates.span(9)
    found = scores(ReRoPE(8, window=4), q.expand(2, 9, 8), k.expand(2, 9, 8), at)
    rope = scores(RoPE(8), q.expand(2, 9, 8), k.expand(2, 9, 8), at)
    for d in range(-4, 5):
        torch.testing.assert_close(found.diagonal(d, 1, 2), rope.diagonal(d, 1, 2))
    for d in (5, 8):
        torch.testing.assert_close(found.diagonal(d, 1, 2), rope.diagonal(4, 1, 2)[:, : 9 - d])
        torch.testing.assert_close(found.diagonal(-d, 1, 2), rope.diagonal(-4, 1, 2)[:, : 9 - d])


@pytest.mark.parametrize("leak", [0.0, 0.25])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_distances_are_exact_at_ten_million(leak: float, dtype: torch.dtype) -> None:
    q, k, v = torch.randn(3, 1, 2, 5, 8).to(dtype)
    encoding = ReRoPE(8, window=2, leak=leak).to(dtype)
    far = Coordinates.of(torch.arange(10_000_000, 10_000_005), 5)
    given = hw.attention(q, k, v, encoding=encoding, q_positions=far, k_positions=far)
    near = hw.attention(q, k, v, encoding=encoding)
    torch.testing.assert_close(given, near, atol=1e-6 if dtype == torch.float32 else 1e-2, rtol=0)


def test_keys_are_cached_as_they_are() -> None:
    k = torch.randn(1, 2, 3, 8)
    encoding = ReRoPE(8)
    assert encoding.acts == {"terms"}
    assert encoding.prepare_key(k, Coordinates.span(3)) is k


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"window": 0}, "window is 0: give a distance above 0, such as 512"),
        ({"window": math.inf}, "window is inf"),
        ({"leak": 1.0}, r"leak is 1\.0: give 0, or a number below 1"),
        ({"leak": -0.5}, r"leak is -0\.5"),
        ({"base": 1.0}, "base is"),
    ],
)
def test_wrong_arguments_raise(arguments: dict, said: str) -> None:
    with pytest.raises(HeadwayError, match=said):
        ReRoPE(8, **arguments)


def test_another_head_dim_raises() -> None:
    with pytest.raises(HeadwayError, match="build it with head_dim=6"):
        hw.attention(*torch.zeros(3, 1, 1, 2, 6), encoding=ReRoPE(8))
