"""Rotations by learned generators: the authors' numbers, exact where positions are far, and what commutes."""

import math

import pytest
import torch
from torch import Tensor

from headway import attention
from headway.coordinates import Coordinates
from headway.errors import HeadwayError
from headway.positions._encodings.liere import LieRE
from headway.positions._encodings.mixed_rope import MixedRoPE

PLACES = torch.tensor([[0, 0], [1, 0], [2, 0], [0, 1], [1, 1], [2, 1]])[None]


def given(seed: int, *shape: int) -> Tensor:
    """((7i + 5·seed) mod 17 − 8)/8, in float64."""
    count = torch.Size(shape).numel()
    return (((torch.arange(count).double() * 7 + seed * 5) % 17 - 8) / 8).view(shape)


def scores(encoding: LieRE, q: Tensor, k: Tensor, positions: Tensor) -> Tensor:
    at = Coordinates.of(positions, positions.shape[1])
    return (encoding.prepare_query(q, at) @ encoding.prepare_key(k, at).mT).detach()


def test_the_numbers_of_the_authors() -> None:
    """LierePositionEncoder of models/rope_vit.py, StanfordMIMI/LieRE at b27b41b, generator_dim 4, generators for each
    head: head 1, the first two queries. It holds square matrices of which the upper triangles count."""
    expected = [
        [-1.234375, 0.240307, -0.990192, -1.093911, -0.61225, -1.4155],
        [1.125653, -0.734375, -0.718612, 0.468621, -0.739473, -1.444002],
    ]
    encoding = LieRE(8, block_size=4, num_heads=2, per_head=True).double()
    row, column = torch.triu_indices(4, 4, 1)
    encoding.upper.data = given(4, 2, 2, 2, 4, 4)[..., row, column]
    found = scores(encoding, given(1, 1, 2, 6, 8), given(2, 1, 2, 6, 8), PLACES)[0, 1, :2]
    torch.testing.assert_close(found, torch.tensor(expected).double(), atol=5e-6, rtol=0)


def test_blocks_of_two_are_mixed_rope() -> None:
    """The generator [[0, a], [−a, 0]] turns by −a."""
    ours, theirs = LieRE(8, block_size=2, num_heads=3, per_head=True).double(), MixedRoPE(3, 8).double()
    theirs.f.data = -ours.upper.data[..., 0]
    x, at = torch.randn(1, 3, 6, 8, dtype=torch.float64), Coordinates.of(PLACES * 100.5, 6)
    torch.testing.assert_close(ours.prepare(x, at), theirs.prepare(x, at), atol=1e-10, rtol=0)


def test_lengths_stay_far_from_the_origin() -> None:
    """Rotations of float32 inputs, by generators of the first size, at positions of thousands."""
    x = torch.randn(1, 2, 6, 64)
    turned = LieRE(64).prepare(x, Coordinates.of(PLACES * 5000, 6))
    torch.testing.assert_close(turned.norm(dim=-1), x.norm(dim=-1), rtol=2e-6, atol=0)


@pytest.mark.parametrize(("arguments", "relative"), [({}, False), ({"block_size": 2}, True), ({"axes": 1}, True)])
def test_scores_are_relative_only_where_generators_commute(arguments: dict, relative: bool) -> None:
    encoding = LieRE(8, **arguments).double()
    q, k = torch.randn(2, 1, 1, 2, 8, dtype=torch.float64)
    places = PLACES[:, 1:3, : encoding.axes] * 0.3
    same = torch.allclose(scores(encoding, q, k, places), scores(encoding, q, k, places + 0.7), atol=1e-9)
    assert same == relative


def test_generators_are_shared_by_the_heads_unless_told() -> None:
    first = LieRE(64, num_heads=12).upper
    assert first.shape == (2, 1, 1, 64 * 63 // 2)
    assert 0 <= first.min() < 0.1 < 6.2 < first.max() < 2 * math.pi
    assert LieRE(64, block_size=8, num_heads=12, num_kv_heads=4, per_head=True).upper.shape == (2, 4, 8, 28)
    x = torch.randn(1, 1, 6, 8).expand(1, 5, 6, 8)
    turned = LieRE(8).prepare(x, Coordinates.of(PLACES, 6))
    assert torch.equal(turned, turned[:, :1].expand_as(turned))


def test_queries_that_share_keys_share_generators() -> None:
    encoding, at = LieRE(8, block_size=4, num_heads=6, num_kv_heads=3, per_head=True), Coordinates.of(PLACES, 6)
    q, k = torch.randn(1, 6, 6, 8), torch.randn(1, 3, 6, 8)
    found = attention(q, k, k, encoding=encoding, q_positions=at, k_positions=at)
    wide = k.repeat_interleave(2, dim=1)
    torch.testing.assert_close(attention(q, wide, wide, encoding=encoding, q_positions=at, k_positions=at), found)
    with pytest.raises(HeadwayError, match=r"x has 2 heads but the encoding learns for 3: .* num_kv_heads=2"):
        encoding.prepare(k[:, :2], at)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"head_dim": 8, "block_size": 3}, "block_size is 3: give a divisor of head_dim, 8, of at least 2"),
        ({"head_dim": 8, "block_size": 1}, "block_size is 1"),
        ({"head_dim": 8, "axes": 0}, "axes is 0"),
        ({"head_dim": 8, "num_heads": 4, "num_kv_heads": 3}, "num_kv_heads is 3: give a divisor of num_heads, 4"),
    ],
)
def test_wrong_arguments_raise(arguments: dict, said: str) -> None:
    with pytest.raises(HeadwayError, match=said):
        LieRE(**arguments)
