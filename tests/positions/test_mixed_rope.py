"""Rotary positions with learned frequencies: the authors' numbers and first values, heads that share keys."""

import math

import pytest
import torch
from torch import Tensor

from headway.coordinates import Coordinates
from headway.errors import HeadwayError
from headway.positions._encodings.mixed_rope import MixedRoPE

COLUMN_ROW = torch.tensor([[0, 0], [1, 0], [2, 0], [0, 1], [1, 1], [2, 1]])[None]


def given(seed: int, *shape: int) -> Tensor:
    """((7i + 5·seed) mod 17 − 8)/8, in float64."""
    return (((torch.arange(math.prod(shape)).double() * 7 + seed * 5) % 17 - 8) / 8).view(shape)


def test_the_numbers_of_the_authors() -> None:
    """compute_mixed_cis and apply_rotary_emb of deit/models_v2_rope.py, naver-ai/rope-vit at ce85c2e: head 1, the first
    two queries of an image of 2 rows and 3 columns."""
    expected = [
        [-1.234375, -2.367013, -0.475244, -0.779528, -0.485424, -0.779583],
        [2.259616, -0.734375, -1.379365, -0.793313, 0.569893, -0.919456],
    ]
    encoding = MixedRoPE(2, 8).double()
    encoding.f.data = given(3, 2, 2, 4) + 0.1
    at = Coordinates.of(COLUMN_ROW, 6)
    q, k = given(1, 1, 2, 6, 8), given(2, 1, 2, 6, 8)
    found = (encoding.prepare_query(q, at) @ encoding.prepare_key(k, at).mT)[0, 1, :2].detach()
    torch.testing.assert_close(found, torch.tensor(expected).double(), atol=3e-6, rtol=0)


def test_the_first_values() -> None:
    """As init_random_2d_freqs there: lengths 10^(−4t/8), the second half at right angles, one angle for each head."""
    torch.manual_seed(0)
    f = MixedRoPE(3, 8).f.detach()
    torch.testing.assert_close(f.norm(dim=0), torch.tensor([1, 10**-0.5, 1, 10**-0.5]).expand(3, 4))
    torch.testing.assert_close((f[:, :, :2] * f[:, :, 2:]).sum(0), torch.zeros(3, 2))
    angle = torch.atan2(f[1], f[0])
    torch.testing.assert_close(angle[:, 0], angle[:, 1])
    torch.testing.assert_close((angle[:, 2:] - angle[:, :2]) % (2 * math.pi), torch.full((3, 2), math.pi / 2))
    assert angle[:, 0].unique().numel() == 3
    # theirs, for the angle of head 0 that it has drawn: [cos, sin] of a and of π/2 + a, at length 1
    theirs = torch.tensor([[-0.999723, 0.023518], [-0.023518, -0.999723]])
    turn = math.atan2(theirs[0, 1], theirs[0, 0]) + math.pi / 2
    torch.testing.assert_close(theirs[1], torch.tensor([math.cos(turn), math.sin(turn)]), atol=2e-6, rtol=0)


def test_queries_that_share_keys_share_frequencies() -> None:
    encoding = MixedRoPE(6, 8, num_kv_heads=3)
    at = Coordinates.of(COLUMN_ROW, 6)
    k = torch.randn(1, 3, 6, 8)
    turned = encoding.prepare_key(k, at)
    assert torch.equal(encoding.prepare_query(k.repeat_interleave(2, dim=1), at), turned.repeat_interleave(2, dim=1))
    with pytest.raises(HeadwayError, match=r"x has 3 heads but the encoding learns for 6: .* num_kv_heads=3"):
        MixedRoPE(6, 8).prepare_key(k, at)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((4, 6), "head_dim is 6: .* give a multiple of 4"),
        ((0, 8), "num_heads is 0"),
        ((4, 8, 3), "num_kv_heads is 3: give a divisor of num_heads, 4"),
        ((4, 8, 0), "num_kv_heads is 0"),
        ((4, 8, None, 1.0), "base is 1.0"),
    ],
)
def test_wrong_arguments_raise(arguments: tuple, said: str) -> None:
    with pytest.raises(HeadwayError, match=said):
        MixedRoPE(*arguments)
