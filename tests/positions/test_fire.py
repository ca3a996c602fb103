"""FIRE: the network as straight pieces, and what distances are measured by."""

import pytest
import torch
from torch import Tensor

import headway as hw
from headway.coordinates import Coordinates
from headway.errors import HeadwayError
from headway.positions._encodings.fire import FIRE
from headway.properties import Pairs


def bias(encoding: FIRE, positions: Tensor) -> Tensor:
    at = Coordinates.of(positions, len(positions))
    zeros = torch.zeros(encoding.num_heads, len(positions), 4, dtype=torch.float64)
    return Pairs(encoding, zeros, zeros, at, at).scores()


def by_the_network(encoding: FIRE, positions: Tensor) -> Tensor:
    """f as two layers and a relu."""
    p = positions.double()
    c, limit = encoding.c.abs(), (encoding.threshold * encoding.multiplier).abs()
    t = torch.log1p(c * (p[:, None] - p).abs()) / (torch.log1p(c * torch.maximum(p, limit)) + 1e-6)[:, None]
    return encoding.outer(encoding.inner(t[..., None]).relu()).movedim(-1, 0)


def waves(*shape: int, at: float) -> Tensor:
    """Numbers that anybody can write down again."""
    return torch.sin(0.7 * torch.arange(torch.Size(shape).numel(), dtype=torch.float64) + at).view(shape)


@pytest.mark.parametrize(
    ("threshold", "last"),
    [
        (
            512.0,
            [
                [-0.03838667, -0.02822554, -0.01657242, -0.00291246, 0.01359212, 0.03444681],
                [-0.41750973, -0.44407931, -0.4745501, -0.51026833, -0.55342519, -0.60795629],
            ],
        ),
        (
            3.0,
            [
                [-0.45638984, -0.32656509, -0.25858063, -0.1801253, -0.08533105, 0.03444681],
                [0.55664986, 0.33429581, 0.15825766, -0.04688877, -0.29475862, -0.60795629],
            ],
        ),
    ],
)
def test_numbers_of_the_papers_listing(threshold: float, last: list[list[float]]) -> None:
    """FIRE of mcleish7/arithmetic, cramming/architectures/embeddings.py at 86022a5: the last of 6 queries, 2 heads."""
    encoding = FIRE(2, hidden=5, threshold=threshold).double()
    for number, parameter in enumerate([*encoding.inner.parameters(), *encoding.outer.parameters()]):
        parameter.data = waves(*parameter.shape, at=0.5 + number)
    encoding.c.data.fill_(0.3)
    encoding.multiplier.data.fill_(1.25)
    found = bias(encoding, torch.arange(6))[:, -1]
    torch.testing.assert_close(found, torch.tensor(last, dtype=torch.float64), atol=5e-7, rtol=0)


def test_it_is_the_network_with_all_its_gradients() -> None:
    """Among the units some that are never on, always on, and without a slope."""
    torch.manual_seed(0)
    encoding, positions = FIRE(3, threshold=6.0).double(), torch.tensor([0, 1, 2, 5, 9, 40, 41, 300])
    with torch.no_grad():
        encoding.inner.weight[:4] = torch.tensor([[0.0], [0.0], [1.0], [-1.0]])
        encoding.inner.bias[:4] = torch.tensor([0.7, -0.7, 9.0, -9.0])
    wanted = list(encoding.parameters())
    found, expected = bias(encoding, positions), by_the_network(encoding, positions)
    torch.testing.assert_close(found, expected)
    upstream = torch.randn_like(found)
    for a, b in zip(
        torch.autograd.grad(found, wanted, upstream), torch.autograd.grad(expected, wanted, upstream), strict=True
    ):
        assert b.any()
        torch.testing.assert_close(a, b)


def test_gradients_through_attention_reach_c_and_the_threshold() -> None:
    torch.manual_seed(1)
    encoding = FIRE(2, threshold=3.0).double()
    q, k, v = torch.randn(3, 1, 2, 9, 4, dtype=torch.float64)
    mask = hw.masks.Causal()
    out = hw.attention(q, k, v, encoding=encoding, mask=mask)
    dense = hw.attention(
        q, k, v, terms=(hw.terms.DenseBias(by_the_network(encoding, torch.arange(9))[None]),), mask=mask
    )
    torch.testing.assert_close(out, dense)
    wanted = [encoding.c, encoding.multiplier]
    pairs = zip(
        torch.autograd.grad(out.square().sum(), wanted), torch.autograd.grad(dense.square().sum(), wanted), strict=True
    )
    for a, b in pairs:
        assert a.abs() > 1e-6
        torch.testing.assert_close(a, b)


def test_the_querys_position_counts_not_the_length() -> None:
    encoding = FIRE(2, threshold=3.0).double()
    whole = bias(encoding, torch.arange(20))
    assert torch.equal(bias(encoding, torch.arange(12)), whole[:, :12, :12])
    assert not torch.allclose(whole[:, 5, 4], whole[:, 15, 14])
    near = bias(FIRE(2, threshold=100.0).double(), torch.arange(20))
    torch.testing.assert_close(near[:, 5, 4], near[:, 15, 14])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"num_heads": 0}, "num_heads is 0"),
        ({"num_heads": 1, "hidden": 0}, "hidden is 0"),
        ({"num_heads": 1, "c": 0.0}, "c is 0.0: give a number above 0"),
        ({"num_heads": 1, "threshold": -1.0}, "threshold is -1.0: give a number above 0"),
    ],
)
def test_wrong_arguments_raise(arguments: dict, said: str) -> None:
    with pytest.raises(HeadwayError, match=said):
        FIRE(**arguments)
