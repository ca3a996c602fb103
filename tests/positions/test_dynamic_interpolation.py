"""Positions pressed together as far as the length needs it."""

import pytest
import torch

from headway.coordinates import Coordinates
from headway.positions._encodings.dynamic_interpolation import DynamicInterpolation
from headway.positions._encodings.position_interpolation import PositionInterpolation

# jquesnelle/yarn (the author's), scaled_rope/LlamaDynamicScaledRotaryEmbedding.py at 995db5b, run in float64:
# dim 8, 64 positions, base 10000, ntk False, a sequence of 160, its last token
COS = [0.719199424842, 0.997051201859, 0.804478116522, 0.997978201646]
SIN = [0.694803704155, 0.0767391742925, 0.593982289329, 0.0635571320949]


def test_numbers_of_the_authors_code() -> None:
    cos, sin = DynamicInterpolation(8, 64).place(Coordinates.span(1, start=159, length=160)).tables
    assert cos.flatten().tolist() == pytest.approx(COS, rel=1e-11)
    assert sin.flatten().tolist() == pytest.approx(SIN, rel=1e-11)


def test_twice_the_length_is_interpolation_by_two() -> None:
    x = torch.randn(1, 1, 20, 8)
    given = DynamicInterpolation(8, 10).prepare(x, Coordinates.span(20))
    assert torch.equal(given, PositionInterpolation(8, 2.0).prepare(x, Coordinates.span(20)))


def test_no_position_leaves_the_trained_range() -> None:
    encoding = DynamicInterpolation(8, 10)
    for n in (3, 10, 11, 1000):
        last = Coordinates.span(1, start=n - 1, length=n)
        assert encoding.phases(last)[0, 0, 0] < 10
