"""Divided positions, for whatever reads them."""

from dataclasses import replace

import pytest
import torch

from headway.coordinates import Coordinates
from headway.errors import HeadwayError
from headway.positions import ALiBi, Compose, RoPE, Sinusoidal
from headway.positions._encodings.interpolated import Interpolated
from headway.positions._encodings.position_interpolation import PositionInterpolation


def test_with_rope_it_is_position_interpolation() -> None:
    x, at = torch.randn(1, 2, 4, 8, dtype=torch.float64), Coordinates.of(torch.tensor([0, 1, 700, 10_000_000]), 4)
    given = Compose(Interpolated(3.0), RoPE(8)).prepare_query(x, at)
    torch.testing.assert_close(given, PositionInterpolation(8, 3.0).prepare(x, at), atol=1e-8, rtol=0)


def test_other_encodings_read_it_too() -> None:
    x, at = torch.zeros(1, 3, 8), torch.tensor([0.0, 4.0, 6.0])
    given = Compose(Interpolated(), Sinusoidal(8)).embed(x, at)
    torch.testing.assert_close(given, Sinusoidal(8).embed(x, at / 4))


def test_order_and_length_stay() -> None:
    at = Coordinates.packed([3, 2])
    located = Interpolated(2.0).place(at)
    assert located.position.flatten().tolist() == [0, 0.5, 1, 0, 0.5]
    assert located.position.dtype == torch.float64
    assert located.index is at.index
    assert located.length is at.length


def test_every_axis_is_divided() -> None:
    at = replace(Coordinates.span(2), position=torch.tensor([[[0, 6], [3, 9]]]))
    assert Interpolated(3.0).locate(at).position.tolist() == [[[0, 2], [1, 3]]]
    assert torch.equal(Interpolated(3.0).oracle_locate(at).position, Interpolated(3.0).locate(at).position)


def test_scores_are_the_oracles(score_gap) -> None:
    assert score_gap(Compose(Interpolated(3.0), ALiBi(4))) < 1e-12
    assert score_gap(Compose(Interpolated(3.0), RoPE(8)), torch.tensor([5, 0, 90])) < 1e-12


def test_wrong_factors_raise() -> None:
    with pytest.raises(HeadwayError, match=r"factor is 0\.5: give at least 1"):
        Interpolated(0.5)
