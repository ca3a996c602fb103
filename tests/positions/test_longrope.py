"""LongRoPE: a factor for each pair, two lists, one magnitude."""

import math

import pytest
import torch

from headway.coordinates import Coordinates
from headway.errors import HeadwayError
from headway.positions._encodings.longrope import LongRoPE
from headway.positions._encodings.position_interpolation import PositionInterpolation

SHORT, LONG = [1.0, 1.1, 1.3, 1.7], [1.0, 1.5, 4.0, 7.5]
# microsoft/LongRoPE (the authors'), rope/longrope.py at c9e56aa, run in float64: dim 8, rescale factors 1, 1.5, 4, 7.5,
# lengths 4096·8 and 4096, "su"; cosines and sines of positions 5 and 20000
AUTHORS_MU = 1.118033988749895
COS = [
    [0.317143964671, 1.05649398389, 1.11794664348, 1.1180337403],
    [0.909184893742, 0.301174855417, 1.07886481784, -0.99429733036],
]
SIN = [
    [-1.07210993171, 0.365814791957, 0.0139750609189, 0.000745355937288],
    [0.650678744844, 1.07670502296, -0.293344004234, 0.511246338704],
]


def test_numbers_of_the_authors_code() -> None:
    ours = LongRoPE(8, SHORT, LONG, factor=8.0, use="long")
    assert ours.magnitude == pytest.approx(AUTHORS_MU, rel=1e-15)
    cos, sin = ours.place(Coordinates.of(torch.tensor([5, 20000]), 2)).tables
    assert cos[0, 0].tolist() == [pytest.approx(row, abs=1e-11) for row in COS]
    assert sin[0, 0].tolist() == [pytest.approx(row, abs=1e-11) for row in SIN]


def test_the_length_chooses_the_list() -> None:
    either = LongRoPE(8, SHORT, LONG, factor=8.0, max_length=64)
    for use, length in (("short", 64), ("long", 65)):
        one = LongRoPE(8, SHORT, LONG, factor=8.0, max_length=64, use=use)
        at = Coordinates.span(3, length=length)
        assert torch.equal(either.frequencies(at).flatten(), one.frequencies(at))
        assert one.cache_prepared is True
    assert either.cache_prepared is False


def test_the_magnitude_is_that_of_the_factor_for_both_lists() -> None:
    assert LongRoPE(8, factor=1.0).magnitude == 1
    assert LongRoPE(8, factor=32.0, max_length=4096).magnitude == math.sqrt(1 + 5 / 12)
    assert LongRoPE(8, factor=32.0, attention_factor=1.25).magnitude == 1.25


def test_without_lists_it_interpolates() -> None:
    short, long = (LongRoPE(8, factor=4.0, use=use).frequencies(Coordinates.span(1)) for use in ("short", "long"))
    assert torch.equal(long, PositionInterpolation(8, 4.0).frequencies(Coordinates.span(1)))
    assert torch.equal(short, long * 4)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"short_factor": [1.0, 2.0]}, r"short_factor is \[1.0, 2.0\]: give a number above 0 for each of 4 pairs"),
        ({"long_factor": [1.0, 2.0, 3.0, 0.0]}, r"long_factor is \[1.0, 2.0, 3.0, 0.0\]"),
        ({"use": "both"}, "use is 'both': give 'length', 'short' or 'long'"),
        ({"attention_factor": -1.0}, "attention_factor is -1.0"),
        ({"max_length": 1}, "max_length is 1: give the trained length, at least 2"),
    ],
)
def test_wrong_arguments_raise(arguments: dict, said: str) -> None:
    with pytest.raises(HeadwayError, match=said):
        LongRoPE(8, **arguments)
