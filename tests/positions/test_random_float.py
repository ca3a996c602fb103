"""Random float sampling: real positions of one range at any length."""

import pytest
import torch

from headway.coordinates import Coordinates
from headway.errors import HeadwayError
from headway.positions import Compose, RoPE
from headway.positions._encodings.random_float import RandomFloat


def test_evaluation_spreads_tokens_over_the_range() -> None:
    fixed = RandomFloat(4).eval()
    assert fixed.locate(Coordinates.span(4)).axis().tolist() == [[1 / 8, 3 / 8, 5 / 8, 7 / 8]]
    assert fixed.locate(Coordinates.span(2)).axis().tolist() == [[1 / 8, 3 / 8]]
    assert fixed.locate(Coordinates.span(8)).axis()[0, [0, 7]].tolist() == [1 / 16, 15 / 16]
    lengths = Coordinates.padded([8, 2], 8, side="right")
    assert fixed.locate(lengths).axis()[:, 1].tolist() == [3 / 16, 3 / 8]
    assert RandomFloat(4, span=100.0).eval().locate(Coordinates.span(4)).axis()[0, 0] == 12.5


def test_training_draws_order_statistics() -> None:
    torch.manual_seed(0)
    at = Coordinates.of(torch.arange(3).expand(4000, 3), 3)
    u = RandomFloat(span=2.0).train().locate(at).axis() / 2
    assert (u.diff(dim=1) > 0).all()
    assert u.min() >= 0
    assert u.max() < 1
    torch.testing.assert_close(u.mean(0), torch.tensor([1, 2, 3], dtype=torch.float64) / 4, atol=0.015, rtol=0)


def test_each_document_has_all_of_the_range_and_padding_none() -> None:
    torch.manual_seed(1)
    at = Coordinates.packed([300, 500])
    u = RandomFloat().train().locate(at).axis()[0]
    for part in u.split([300, 500]):
        assert (part.diff() > 0).all()
        assert part[0] < 0.05
        assert part[-1] > 0.95
    for side in ("left", "right"):
        padded = Coordinates.padded([2] * 2000, 20, side=side)
        u = RandomFloat().train().locate(padded).axis()
        real = u[:, -2:] if side == "left" else u[:, :2]
        torch.testing.assert_close(real.mean(0), torch.tensor([1 / 3, 2 / 3]).double(), atol=0.02, rtol=0)


def test_the_smallest_draw_goes_to_the_smallest_position() -> None:
    at = Coordinates.of(torch.tensor([40, 3, 17]), 3)
    u = RandomFloat().train().locate(at).axis()[0]
    assert u[1] < u[2] < u[0]


def test_a_seed_repeats_it_and_evaluation_draws_nothing() -> None:
    at = Coordinates.span(6)
    torch.manual_seed(2)
    first = RandomFloat().train().locate(at).axis()
    torch.manual_seed(2)
    assert torch.equal(RandomFloat().train().locate(at).axis(), first)
    before = torch.get_rng_state()
    RandomFloat().eval().locate(at)
    assert torch.equal(torch.get_rng_state(), before)


def test_it_compiles_in_training() -> None:
    both = Compose(RandomFloat(), RoPE(8)).train()
    compiled = torch.compile(
        lambda k: both.prepare_key(k, Coordinates.span(k.shape[2])), fullgraph=True, backend="eager"
    )
    k = torch.randn(1, 1, 5, 8)
    assert not torch.equal(compiled(k), compiled(k))


def test_bad_arguments_raise() -> None:
    with pytest.raises(HeadwayError, match="train_length is 0: give at least 1"):
        RandomFloat(0)
    with pytest.raises(HeadwayError, match="span is 0: give the upper end"):
        RandomFloat(span=0)
