"""Rotations: layouts, precision, and dependence only on the distance."""

import cmath
import dataclasses
import math

import pytest
import torch
from torch import Tensor

import headway as hw
from headway.coordinates import Coordinates
from headway.errors import HeadwayError
from headway.positions import Compose, PositionEncoding, RoPE


def test_the_first_pair_turns_by_the_position() -> None:
    q = torch.tensor([1.0, 0, 1, 0])[None, None, None].expand(1, 1, 3, 4)
    turned = RoPE(4).prepare(q, Coordinates.span(3))[0, 0]
    expected = [[math.cos(p), math.sin(p), math.cos(p / 100), math.sin(p / 100)] for p in range(3)]
    torch.testing.assert_close(turned, torch.tensor(expected))


def test_half_pairs_the_two_halves() -> None:
    q = torch.tensor([1.0, 1, 0, 0])[None, None, None]
    turned = RoPE(4, layout="half").prepare(q, Coordinates.of(torch.tensor([2]), 1)).flatten()
    expected = [math.cos(2), math.cos(0.02), math.sin(2), math.sin(0.02)]
    torch.testing.assert_close(turned, torch.tensor(expected))


def test_the_layouts_differ_by_a_permutation_and_by_that_alone() -> None:
    x, at = torch.randn(2, 3, 5, 8, dtype=torch.float64), Coordinates.of(torch.tensor([0, 3, 4, 90, 91]), 5)
    order = [0, 2, 4, 6, 1, 3, 5, 7]
    interleaved, half = RoPE(8).prepare(x, at), RoPE(8, layout="half").prepare(x[..., order], at)
    torch.testing.assert_close(interleaved[..., order], half)
    mixed = RoPE(8, layout="half").prepare(x, at)
    assert not torch.allclose((interleaved @ interleaved.mT), (mixed @ mixed.mT))


def test_a_product_knows_the_distance_alone() -> None:
    q, k = torch.randn(2, 1, 1, 1, 16, dtype=torch.float64)

    def score(i: int, j: int) -> float:
        turned = [RoPE(16).prepare(t, Coordinates.of(torch.tensor([p]), 1)) for t, p in ((q, i), (k, j))]
        return (turned[0] * turned[1]).sum().item()

    assert score(5, 2) == pytest.approx(score(1005, 1002), abs=1e-11)
    assert score(5, 2) != pytest.approx(score(2, 5), abs=1e-3)


def test_the_sign_of_the_turn() -> None:
    """R(p) turns by +p·ω: the score is Re(q̄·k·e^{i(pⱼ−pᵢ)ω}), not its mirror image."""
    q, k = torch.tensor([1.0, 2.0]), torch.tensor([3.0, -1.0])
    at = Coordinates.of(torch.tensor([4, 1]), 2)
    turned = RoPE(2).prepare(torch.stack([q, k])[None, None], at)[0, 0]
    expected = (complex(1, -2) * complex(3, -1) * cmath.exp(-3j)).real
    assert (turned[0] @ turned[1]).item() == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("position", [4096, 131_071, 1_000_000, 10_000_019])
def test_angles_are_exact_far_out(position: int) -> None:
    """Cosines and sines to 1e-6 where float32 angles have long lost them."""
    cos, sin = RoPE(128).place(Coordinates.of(torch.tensor([position]), 1)).tables
    angles = [position * 10000.0 ** (-2 * c / 128) for c in range(64)]
    torch.testing.assert_close(cos.flatten().float(), torch.tensor([math.cos(a) for a in angles]), atol=1e-6, rtol=0)
    torch.testing.assert_close(sin.flatten().float(), torch.tensor([math.sin(a) for a in angles]), atol=1e-6, rtol=0)


def test_float32_angles_would_not_do() -> None:
    rates = 10000.0 ** (-torch.arange(0, 128, 2).double() / 128)
    error = (1e6 * rates).cos() - (1e6 * rates.float()).cos()
    assert error.abs().max() > 1e-2


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_turns_in_float32(dtype: torch.dtype) -> None:
    """The result is the exact one rounded once, give or take the unit that the input costs nobody."""
    x = torch.randn(1, 2, 3, 64).to(dtype)
    at = Coordinates.of(torch.tensor([257, 4097, 1_000_003]), 3)
    exact = RoPE(64).prepare(x.double(), at)
    with torch.autocast("cpu", dtype):
        given = RoPE(64).to(dtype).prepare(x, at)
    assert given.dtype == dtype
    assert within_one_rounding(given, exact)


def within_one_rounding(given: Tensor, exact: Tensor) -> bool:
    rounding = torch.finfo(given.dtype).eps / 2 * exact.abs() + 1e-6
    return bool(((given.double() - exact).abs() <= 1.01 * rounding).all())


def test_tables_are_made_once_for_all_layers() -> None:
    encoding = RoPE(8)
    placed = encoding.place(Coordinates.span(4))
    assert encoding.place(placed) is placed


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"head_dim": 7}, "head_dim is 7: pairs are turned, give an even number, such as 6"),
        ({"head_dim": 0}, "head_dim is 0"),
        ({"head_dim": 8, "base": -3}, "base is -3"),
        ({"head_dim": 8, "layout": "neox"}, "layout is 'neox': give 'interleaved' or 'half'"),
    ],
)
def test_wrong_arguments_raise(arguments: dict, said: str) -> None:
    with pytest.raises(HeadwayError, match=said):
        RoPE(**arguments)


def test_another_head_dim_raises() -> None:
    with pytest.raises(
        HeadwayError, match="with head_dim=8 and is given a last dimension of 6: build it with head_dim=6"
    ):
        RoPE(8).prepare(torch.zeros(1, 1, 2, 6), Coordinates.span(2))


@pytest.mark.parametrize(("base", "first"), [(1e4, 1707), (2.7e4, 4079), (5e5, 18438)])
def test_the_reach_of_a_base(base: float, first: int) -> None:
    """Where Σ cos(δ·ω_c), which tells like from unlike, first falls below 0 (Men et al. 2024, head_dim 128)."""
    at = Coordinates.of(torch.arange(20_000), 20_000)
    cos, _ = RoPE(128, base).place(at).tables
    assert int((cos[0, 0].sum(-1) < 0).nonzero()[0]) == first


class Slower(RoPE):
    """A user's, with frequencies of its own."""

    def frequencies(self, coordinates: Coordinates) -> torch.Tensor:
        return super().frequencies(coordinates) / 2


@pytest.mark.parametrize("start", [0, 5])
@pytest.mark.parametrize("n", [3, 20, 5000])
def test_kept_angles_are_those_computed(n: int, start: int) -> None:
    span, plain = Coordinates.span(n, start=start), Coordinates.of(torch.arange(start, start + n), n)
    for encoding in (RoPE(16), RoPE(16, base=500.0), Slower(16)):
        for found, expected in zip(encoding.place(span).tables, encoding.place(plain).tables, strict=True):
            assert torch.equal(found, expected)


def test_angles_of_positions_that_another_encoding_moves_are_not_those_of_a_span() -> None:
    class Doubled(PositionEncoding):
        def locate(self, coordinates: Coordinates) -> Coordinates:
            return dataclasses.replace(coordinates, position=2 * coordinates.position)

    q = torch.randn(1, 2, 20, 16, dtype=torch.float64)
    at = 2 * torch.arange(20)
    found = hw.attention(q, q, q, encoding=Compose(Doubled(), RoPE(16)))
    torch.testing.assert_close(found, hw.attention(q, q, q, encoding=RoPE(16), q_positions=at, k_positions=at))
