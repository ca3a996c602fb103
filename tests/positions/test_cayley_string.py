"""Rotations in a learned basis: numbers of another implementation, torch's own Cayley transform."""

import pytest
import torch
from torch import Tensor

from headway.coordinates import Coordinates
from headway.errors import HeadwayError
from headway.positions._encodings.cayley_string import CayleySTRING
from headway.positions._encodings.mixed_rope import MixedRoPE
from headway.positions._encodings.rope import RoPE

PLACES = torch.tensor([[0, 0], [1, 0], [2, 0], [0, 1], [1, 1], [2, 1]])[None]


def given(seed: int, *shape: int) -> Tensor:
    """((7i + 5·seed) mod 17 − 8)/8, in float64."""
    count = torch.Size(shape).numel()
    return (((torch.arange(count).double() * 7 + seed * 5) % 17 - 8) / 8).view(shape)


def scores(encoding: CayleySTRING, q: Tensor, k: Tensor, positions: Tensor) -> Tensor:
    at = Coordinates.of(positions, positions.shape[1])
    return (encoding.prepare_query(q, at) @ encoding.prepare_key(k, at).mT).detach()


def test_the_numbers_of_another_implementation() -> None:
    """CayleySTRING of lsp_detr/modeling/layers/cayley_string.py, RationAI/lsp-detr at 460614b, where all heads share
    what is learned: head 1, the first two queries."""
    expected = [
        [-1.234375, 0.128501, 1.48069, -0.472133, -1.247821, 0.066724],
        [2.084122, -0.734375, -1.360208, -0.452085, 1.561304, -1.0341],
    ]
    encoding = CayleySTRING(2, 8, num_kv_heads=1).double()
    encoding.f.data, encoding.upper.data = given(3, 2, 1, 4), given(7, 1, 28) / 2
    found = scores(encoding, given(1, 1, 2, 6, 8), given(2, 1, 2, 6, 8), PLACES)[0, 1, :2]
    torch.testing.assert_close(found, torch.tensor(expected).double(), atol=5e-6, rtol=0)


def test_the_basis_is_torchs_cayley_transform() -> None:
    """torch makes (I + A/2)·(I − A/2)⁻¹ of A, the lower triangle less its transpose: here S = −A/2."""
    layer = torch.nn.utils.parametrizations.orthogonal(
        torch.nn.Linear(8, 8, bias=False, dtype=torch.float64), orthogonal_map="cayley", use_trivialization=False
    )
    lower = layer.parametrizations.weight.original.detach().tril(-1)
    encoding = CayleySTRING(1, 8).double()
    row, column = torch.triu_indices(8, 8, 1)
    encoding.upper.data = ((lower.mT - lower) / 2)[row, column][None]
    basis = encoding.waves(Coordinates.of(PLACES, 6))[2][0, 0].detach().mT
    torch.testing.assert_close(basis, layer.weight.detach())
    torch.testing.assert_close(basis @ basis.mT, torch.eye(8, dtype=torch.float64))
    assert not torch.allclose(basis, torch.eye(8, dtype=torch.float64), atol=0.1)


def test_it_begins_as_rope_of_the_sum_of_the_axes() -> None:
    x, encoding = torch.randn(1, 3, 6, 8, dtype=torch.float64), CayleySTRING(3, 8).double()
    plain = RoPE(8).prepare(x, Coordinates.of(PLACES.sum(-1), 6))
    torch.testing.assert_close(encoding.prepare(x, Coordinates.of(PLACES, 6)), plain, atol=1e-6, rtol=0)


def test_scores_know_differences_alone_and_learn_more_than_mixed_rope() -> None:
    encoding = CayleySTRING(3, 8).double()
    encoding.upper.data = given(7, 3, 28)
    encoding.f.data = given(3, 2, 3, 4)
    q, k = torch.randn(2, 1, 3, 6, 8, dtype=torch.float64)
    near = scores(encoding, q, k, PLACES.double())
    torch.testing.assert_close(near, scores(encoding, q, k, PLACES.double() + 0.7))
    mixed = MixedRoPE(3, 8).double()
    mixed.f.data = encoding.f.data
    at = Coordinates.of(PLACES, 6)
    assert not torch.allclose(near, mixed.prepare(q, at) @ mixed.prepare(k, at).mT, atol=0.1)


def test_autocast_rounds_nothing() -> None:
    encoding, x = CayleySTRING(2, 8), torch.randn(1, 2, 6, 8)
    torch.nn.init.normal_(encoding.upper)
    at = Coordinates.of(PLACES, 6)
    plain = encoding.prepare(x, at)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(encoding.prepare(x, at), plain)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"head_dim": 7}, "head_dim is 7"),
        ({"axes": 0}, "axes is 0"),
        ({"num_kv_heads": 3}, "num_kv_heads is 3: give a divisor of num_heads, 4"),
        ({"base": 1.0}, "base is 1.0"),
    ],
)
def test_wrong_arguments_raise(arguments: dict, said: str) -> None:
    with pytest.raises(HeadwayError, match=said):
        CayleySTRING(**({"num_heads": 4, "head_dim": 8} | arguments))
