"""Sandwich's two grids of frequencies."""

import pytest
import torch
from torch import Tensor

from headway.coordinates import Coordinates
from headway.errors import HeadwayError
from headway.positions._encodings.sandwich import Sandwich
from headway.properties import Pairs


def bias(encoding: Sandwich, positions: list[int]) -> Tensor:
    """What the last position's query gets for each position, [heads, positions]."""
    at, zeros = (
        Coordinates.of(torch.tensor(positions), len(positions)),
        torch.zeros(encoding.num_heads, len(positions), 4, dtype=torch.float64),
    )
    return Pairs(encoding, zeros, zeros, at, at).scores()[:, -1]


def test_numbers_by_hand() -> None:
    """A ratio of 1, eighth of eight heads being the first that 8h/H makes 8: b(0) = 64, b(1), b(1024)."""
    found = 8 * bias(Sandwich(8), [0, 1023, 1024])[7]
    expected = torch.tensor([13.0843, 62.0937, 64.0], dtype=torch.float64)
    torch.testing.assert_close(found, expected, atol=5e-5, rtol=0)


def test_from_zero_is_attention_gyms() -> None:
    """generate_sandwich_bias(2, 2000) of meta-pytorch/attention-gym, attn_gym/mods/sandwich.py at 7fdb85d."""
    expected = [[3.27106667, 11.79625225, 15.52342224, 16.0], [1.63553333, 5.89812613, 7.76171112, 8.0]]
    found = bias(Sandwich(2), [0, 1019, 1023, 1024])
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), atol=2e-4, rtol=0)


def test_from_one_is_nemos_but_for_its_constant() -> None:
    """SandwichRelativePositionEmbedding of NVIDIA/NeMo (2023), 2 heads of 16, 6 tokens; it takes 8 off each sum."""
    expected = [
        [-0.28665559, -0.19666991, -0.11672662, -0.05389414, -0.01378402, 0.0],
        [-0.14332779, -0.09833496, -0.05836331, -0.02694707, -0.00689201, 0.0],
    ]
    ratio = torch.tensor([[4.0], [8.0]], dtype=torch.float64)
    found = bias(Sandwich(2, dimension=16, grid="from-one"), list(range(6))) - 8 / ratio
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), atol=1e-8, rtol=0)


def test_the_grids_are_two_biases() -> None:
    zero, one = (8 * bias(Sandwich(8, grid=grid), [0, 3])[7] for grid in ("from-zero", "from-one"))
    assert (zero - one).diff().abs().item() > 1.5


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"num_heads": 0}, "num_heads is 0"),
        ({"num_heads": 1, "dimension": 7}, "dimension is 7: .* an even one, such as 8"),
        ({"num_heads": 1, "base": 1.0}, "base is 1.0"),
        ({"num_heads": 1, "grid": "nemo"}, "grid is 'nemo': give 'from-zero' or 'from-one'"),
    ],
)
def test_wrong_arguments_raise(arguments: dict, said: str) -> None:
    with pytest.raises(HeadwayError, match=said):
        Sandwich(**arguments)
