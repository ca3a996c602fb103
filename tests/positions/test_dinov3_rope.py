"""DINOv3's rotary positions: normalised coordinates, periods, and the changes drawn in training."""

import math

import pytest
import torch
from torch import Tensor

from headway import attention
from headway.coordinates import Coordinates
from headway.errors import HeadwayError
from headway.positions._encodings.dinov3_rope import DINOv3RoPE

ROW_COLUMN = torch.tensor([[0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [1, 2]])[None]


def given(seed: int) -> Tensor:
    """((7i + 5·seed) mod 17 − 8)/8 [1, 2, 6, 8], in float64."""
    return (((torch.arange(96).double() * 7 + seed * 5) % 17 - 8) / 8).view(1, 2, 6, 8)


AUTHORS = [
    (
        {},
        [
            [-1.234375, -1.222683, 0.299974, -0.515904, -1.666399, -0.739402],
            [1.27767, -0.734375, -1.061833, -0.904572, 0.533789, -0.897414],
        ],
    ),
    (
        {"periods": (0.5, 40.0), "normalise": "max"},
        [
            [-1.234375, -0.381071, 0.46339, -1.19377, 0.132195, 0.241132],
            [1.302976, -0.734375, -0.466045, 1.486869, -0.354346, -1.161074],
        ],
    ),
]


@pytest.mark.parametrize(("arguments", "expected"), AUTHORS, ids=["base", "periods"])
def test_the_numbers_of_the_authors(arguments: dict, expected: list) -> None:
    """RopePositionEmbedding of dinov3/layers/rope_position_encoding.py and rope_apply of attention.py,
    facebookresearch/dinov3 at 6876159, on 2 rows and 3 columns: head 1, the first two queries."""
    encoding, at = DINOv3RoPE(8, grid=(2, 3), **arguments), Coordinates.of(ROW_COLUMN, 6)
    found = (encoding.prepare_query(given(1), at) @ encoding.prepare_key(given(2), at).mT)[0, 1, :2]
    torch.testing.assert_close(found, torch.tensor(expected).double(), atol=3e-6, rtol=0)


def test_a_grid_normalises_and_without_one_positions_are_normalised() -> None:
    encoding = DINOv3RoPE(8, grid=(2, 4), normalise="min")
    x = (ROW_COLUMN + 0.5) / 2 * 2 - 1
    expected = DINOv3RoPE(8).phases(Coordinates.of(x, 6))
    torch.testing.assert_close(encoding.phases(Coordinates.of(ROW_COLUMN, 6)), expected)


def test_the_centre_is_not_turned() -> None:
    q = torch.randn(1, 1, 1, 8)
    at = Coordinates.of(torch.tensor([[[0.5, 1.0]]]), 1)
    torch.testing.assert_close(DINOv3RoPE(8, grid=(2, 3)).prepare(q, at), q)


def phases_drawn(seed: int, **arguments: float) -> tuple[Tensor, Tensor]:
    """The angles of both sides in training, the keys standing elsewhere than the queries."""
    torch.manual_seed(seed)
    encoding = DINOv3RoPE(8, grid=(2, 3), base=100.0, **arguments)
    places = (Coordinates.of(p, 6) for p in (ROW_COLUMN, ROW_COLUMN.flip(1)))
    sides = encoding.relocate(*(encoding.place(at) for at in places))
    found = [torch.atan2(side.tables[1], side.tables[0])[0, 0] for side in sides]
    return found[0], found[1]


def test_a_change_is_drawn_for_both_sides_at_once_and_anew_each_time() -> None:
    for arguments in ({"shift": 0.2}, {"jitter": 1.5}, {"rescale": 1.5}):
        q, k = phases_drawn(0, **arguments)
        torch.testing.assert_close(q, k.flip(0))
        assert not torch.allclose(q, phases_drawn(1, **arguments)[0])


def test_what_each_change_does() -> None:
    """On the slower pair of each axis, whose angle is 2π·x/10: x = ±½ for rows, −⅔, 0, ⅔ for columns."""
    plain = DINOv3RoPE(8, grid=(2, 3)).phases(Coordinates.of(ROW_COLUMN, 6))[0, :, 1::2]
    for seed in range(20):
        shifted = phases_drawn(seed, shift=0.2)[0][:, 1::2] - plain
        torch.testing.assert_close(shifted, shifted[:1].expand(6, 2))
        assert shifted.abs().max() <= 2 * math.pi * 0.2 / 10
        assert shifted[0, 0] != pytest.approx(shifted[0, 1].item(), abs=1e-6)
        jittered = (phases_drawn(seed, jitter=1.5)[0][:, 1::2] / plain)[2]
        assert 1 / 1.5 <= jittered.min() < jittered.max() - 1e-6 <= 1.5
        rescaled = (phases_drawn(seed, rescale=1.5)[0][:, 1::2] / plain)[2]
        torch.testing.assert_close(rescaled[0], rescaled[1])
        assert 1 / 1.5 <= rescaled[0] <= 1.5


def test_nothing_is_drawn_outside_training() -> None:
    q, at = torch.randn(1, 2, 6, 8), Coordinates.of(ROW_COLUMN, 6)
    encoding = DINOv3RoPE(8, grid=(2, 3), shift=0.5)
    plain = attention(q, q, q, encoding=DINOv3RoPE(8, grid=(2, 3)), q_positions=at, k_positions=at)

    def out() -> Tensor:
        return attention(q, q, q, encoding=encoding, q_positions=at, k_positions=at)

    assert not encoding.cache_prepared
    assert DINOv3RoPE(8).cache_prepared
    # a shift alone moves nothing relative to anything else
    torch.testing.assert_close(out(), plain)
    encoding.jitter = 3.0
    assert not torch.allclose(out(), plain)
    encoding.eval()
    assert torch.equal(out(), plain)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"head_dim": 6}, "head_dim is 6: both axes have as many pairs, give a multiple of 4"),
        ({"head_dim": 8, "grid": (0, 3)}, r"grid is \(0, 3\): give two numbers above 0"),
        ({"head_dim": 8, "periods": (1.0,)}, r"periods is \(1.0,\)"),
        ({"head_dim": 8, "jitter": 0.5}, "jitter is 0.5: give the largest factor, at least 1"),
        ({"head_dim": 8, "normalise": "both"}, "normalise is 'both': give 'separate', 'max', 'min'"),
    ],
)
def test_wrong_arguments_raise(arguments: dict, said: str) -> None:
    with pytest.raises(HeadwayError, match=said):
        DINOv3RoPE(**arguments)
