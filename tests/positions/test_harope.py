"""HARoPE: axial rotary positions in a learned basis for each head."""

import math

import torch
from torch import Tensor

from headway import attention_steps
from headway.coordinates import Coordinates
from headway.positions import AxialRoPE, HARoPE

GRID = torch.tensor([[0, 0], [0, 1], [1, 0], [1, 2]])


def wave(*shape: int, a: float) -> Tensor:
    return torch.sin(a * torch.arange(math.prod(shape), dtype=torch.float64)).view(shape)


def drawn() -> HARoPE:
    encoding = HARoPE(2, 8).double()
    encoding.left.data.copy_(wave(2, 8, 8, a=1.3))
    encoding.right.data.copy_(wave(2, 8, 8, a=1.7))
    encoding.stretch.data.copy_(wave(2, 8, a=2.3))
    return encoding


def scores(encoding: AxialRoPE, positions: Tensor) -> Tensor:
    q, k = wave(1, 2, 4, 8, a=0.7), wave(1, 2, 4, 8, a=1.1)
    at = Coordinates.of(positions[None], 4)
    return attention_steps(q, k, k, encoding=encoding, q_positions=at, k_positions=at).scaled.detach()


def test_the_authors_numbers() -> None:
    """SVDBasedMatrix, RotaryPosEmbed and apply_rotary_emb of Studentxll/HARoPE, model/models_HARoPE.py at bf3d5c9, in
    float64 but for the cosines and sines, which it rounds to float32: the last query of both heads."""
    expected = torch.tensor(
        [[-1.2395519, 1.0356313, -0.56739852, -0.12521081], [-1.3616489, 0.83413365, -0.62897024, 0.037895277]]
    )
    torch.testing.assert_close(scores(drawn(), GRID)[0, :, 3], expected.double(), atol=3e-6, rtol=0)


def test_it_starts_as_axial_rope() -> None:
    expected = scores(AxialRoPE(8, base=10000.0), GRID)
    torch.testing.assert_close(scores(HARoPE(2, 8).double(), GRID), expected, atol=1e-6, rtol=0)
    assert not torch.allclose(scores(drawn(), GRID), expected, atol=0.1)


def test_scores_know_differences_alone() -> None:
    moved = scores(drawn(), GRID + torch.tensor([300, -20]))
    torch.testing.assert_close(moved, scores(drawn(), GRID), atol=1e-10, rtol=0)


def test_at_equal_positions_the_basis_has_no_effect() -> None:
    found = scores(drawn(), torch.full((4, 2), 7))
    expected = wave(1, 2, 4, 8, a=0.7) @ wave(1, 2, 4, 8, a=1.1).mT / math.sqrt(8)
    torch.testing.assert_close(found, expected)
