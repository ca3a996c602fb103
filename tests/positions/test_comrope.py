"""Commuting generators: the authors' numbers, and scores that depend only on differences."""

import pytest
import torch
from torch import Tensor

from headway.coordinates import Coordinates
from headway.errors import HeadwayError
from headway.positions._encodings.comrope import ComRoPE

PLACES = torch.tensor([[0, 0], [1, 0], [2, 0], [0, 1], [1, 1], [2, 1]])[None]
AUTHORS = {
    "linearly-dependent": [
        [-1.234375, -0.497721, 0.096113, -0.158178, -0.299981, -0.554282],
        [2.261323, -0.734375, -0.11832, 0.091302, 1.2162, -0.998482],
    ],
    "axial-partition": [
        [-1.234375, -1.301877, 0.56832, 0.93238, -1.436428, 1.329082],
        [1.876326, -0.734375, 0.094938, 0.580718, 1.654705, -2.044195],
    ],
}


def given(seed: int, *shape: int) -> Tensor:
    """((7i + 5·seed) mod 17 − 8)/8, in float64."""
    count = torch.Size(shape).numel()
    return (((torch.arange(count).double() * 7 + seed * 5) % 17 - 8) / 8).view(shape)


def scores(encoding: ComRoPE, q: Tensor, k: Tensor, positions: Tensor) -> Tensor:
    at = Coordinates.of(positions, positions.shape[1])
    return (encoding.prepare_query(q, at) @ encoding.prepare_key(k, at).mT).detach()


@pytest.mark.parametrize("variant", AUTHORS)
def test_the_numbers_of_the_authors(variant: str) -> None:
    """ComRoPELDAttention and ComRoPEAPAttention of model.py, Longin-Yu/ComRoPE at 7aeef08, blocks of 2: head 1, the
    first two queries. They hold P, square; here is P − Pᵀ above its diagonal."""
    encoding = ComRoPE(2, 8, variant=variant).double()
    P = given(5, 2, 4, 2, 2)
    encoding.upper.data = (P - P.mT)[..., :1, 1]
    if encoding.theta is not None:
        encoding.theta.data = given(6, 2, 4)
    found = scores(encoding, given(1, 1, 2, 6, 8), given(2, 1, 2, 6, 8), PLACES)[0, 1, :2]
    torch.testing.assert_close(found, torch.tensor(AUTHORS[variant]).double(), atol=5e-6, rtol=0)


@pytest.mark.parametrize("variant", AUTHORS)
def test_scores_know_differences_alone(variant: str) -> None:
    encoding = ComRoPE(3, 16, block_size=4, variant=variant).double()
    q, k = torch.randn(2, 1, 3, 6, 16, dtype=torch.float64)
    near, far = (scores(encoding, q, k, PLACES.double() + shift) for shift in (0.0, 0.7))
    torch.testing.assert_close(near, far, atol=1e-10, rtol=0)
    for axis in (0, 1):
        moved = PLACES.double()
        moved[:, 3:, axis] += 0.5
        assert not torch.allclose(scores(encoding, q, k, moved), near, atol=1e-2)


def test_the_first_values() -> None:
    """P and θ are N(0, 1), so what stands above the diagonal of P − Pᵀ is N(0, 2)."""
    torch.manual_seed(0)
    encoding = ComRoPE(50, 64, block_size=8)
    assert encoding.upper.shape == (50, 8, 28)
    assert encoding.upper.std().item() == pytest.approx(2**0.5, rel=0.03)
    assert encoding.theta is not None
    assert encoding.theta.shape == (2, 8)
    assert ComRoPE(4, 8, variant="axial-partition").theta is None


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"variant": "LD"}, "variant is 'LD': give 'linearly-dependent' or 'axial-partition'"),
        ({"axes": 3, "variant": "axial-partition"}, "there are 4 blocks for 3 axes"),
        ({"block_size": 5}, "block_size is 5: give a divisor of head_dim, 8"),
        ({"num_kv_heads": 3}, "num_kv_heads is 3: give a divisor of num_heads, 4"),
    ],
)
def test_wrong_arguments_raise(arguments: dict, said: str) -> None:
    with pytest.raises(HeadwayError, match=said):
        ComRoPE(4, 8, **arguments)
