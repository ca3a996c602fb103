"""Axial rotary positions: which axis turns which pairs, and the authors' numbers."""

import pytest
import torch
from torch import Tensor

from headway.coordinates import Coordinates
from headway.errors import HeadwayError
from headway.positions._encodings.axial_rope import AxialRoPE
from headway.positions._encodings.rope import RoPE

COLUMN_ROW = torch.tensor([[0, 0], [1, 0], [2, 0], [0, 1], [1, 1], [2, 1]])[None]


def given(seed: int) -> Tensor:
    """((7i + 5·seed) mod 17 − 8)/8 [1, 2, 6, 8], in float64."""
    return (((torch.arange(96).double() * 7 + seed * 5) % 17 - 8) / 8).view(1, 2, 6, 8)


def scores(encoding: AxialRoPE, q: Tensor, k: Tensor, positions: Tensor) -> Tensor:
    at = Coordinates.of(positions, positions.shape[1])
    return encoding.prepare_query(q, at) @ encoding.prepare_key(k, at).mT


def test_the_numbers_of_the_authors() -> None:
    """compute_axial_cis(8, 3, 2, theta=100) and apply_rotary_emb of deit/models_v2_rope.py, naver-ai/rope-vit at
    ce85c2e: head 1, the first two queries of an image of 2 rows and 3 columns."""
    expected = [
        [-1.234375, -1.755709, 2.602356, -0.959012, -0.146827, 0.327083],
        [2.523811, -0.734375, -0.907462, 0.86665, 0.878373, -0.347117],
    ]
    found = scores(AxialRoPE(8), given(1), given(2), COLUMN_ROW)[0, 1, :2]
    torch.testing.assert_close(found, torch.tensor(expected).double(), atol=3e-6, rtol=0)
    swapped = scores(AxialRoPE(8), given(1), given(2), COLUMN_ROW.flip(-1))[0, 1, :2]
    assert not torch.allclose(swapped, found, atol=0.1)


def test_the_first_half_of_the_pairs_turns_with_the_first_axis() -> None:
    phases = AxialRoPE(8, base=100.0).phases(Coordinates.of(torch.tensor([[[2, 30]]]), 1))
    torch.testing.assert_close(phases.flatten(), torch.tensor([2, 2 / 10, 30, 30 / 10]).double())


def test_one_axis_is_rope() -> None:
    x, positions = given(1), torch.tensor([0, 1, 5, 6, 40, 41])
    at = Coordinates.of(positions, 6)
    for layout in ("interleaved", "half"):
        expected = RoPE(8, layout=layout).prepare(x, at)
        assert torch.equal(AxialRoPE(8, base=10000.0, axes=1, layout=layout).prepare(x, at), expected)


def test_three_axes() -> None:
    phases = AxialRoPE(12, base=100.0, axes=3).phases(Coordinates.of(torch.tensor([[[2, 30, 400]]]), 1))
    torch.testing.assert_close(phases.flatten(), torch.tensor([2, 0.2, 30, 3, 400, 40]).double())


def test_a_product_knows_the_difference_on_each_axis() -> None:
    q, k = given(1)[:, :, :2], given(2)[:, :, :2]
    near = scores(AxialRoPE(8), q, k, torch.tensor([[[0, 0], [3, -2]]]))
    far = scores(AxialRoPE(8), q, k, torch.tensor([[[500, 70], [503, 68]]]))
    torch.testing.assert_close(near, far, atol=1e-10, rtol=0)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"head_dim": 6}, "head_dim is 6 for 2 axes: each has as many pairs, give a multiple of 4"),
        ({"head_dim": 8, "axes": 0}, "axes is 0"),
        ({"head_dim": 8, "base": 0.5}, "base is 0.5"),
    ],
)
def test_wrong_arguments_raise(arguments: dict, said: str) -> None:
    with pytest.raises(HeadwayError, match=said):
        AxialRoPE(**arguments)


def test_positions_on_one_axis_raise() -> None:
    with pytest.raises(HeadwayError, match="positions have 1 axis but AxialRoPE reads 2"):
        AxialRoPE(8).prepare(given(1), Coordinates.span(6))


def test_rotary_embedding_torch_agrees() -> None:
    module = pytest.importorskip("rotary_embedding_torch")
    x = given(1)[:, :1].float()
    theirs = module.RotaryEmbedding(4, freqs_for="lang", theta=100)
    expected = module.apply_rotary_emb(theirs.get_axial_freqs(2, 3), x.view(1, 2, 3, 8)).view(1, 1, 6, 8)
    row_column = COLUMN_ROW.flip(-1)
    torch.testing.assert_close(AxialRoPE(8).prepare(x, Coordinates.of(row_column, 6)), expected, atol=1e-6, rtol=0)
