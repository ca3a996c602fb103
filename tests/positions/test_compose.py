"""Several encodings at once."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from headway.coordinates import Coordinates
from headway.errors import HeadwayError
from headway.positions import T5, ALiBi, Compose, Learned, Pair, PositionEncoding, RoPE, Shaw, Sinusoidal, UnitIndex
from headway.properties import Pairs


class Doubled(PositionEncoding):
    """Positions twice as far apart."""

    def locate(self, coordinates: Coordinates) -> Coordinates:
        return replace(coordinates, position=coordinates.position * 2)


class Shifted(PositionEncoding):
    """Positions three later."""

    def locate(self, coordinates: Coordinates) -> Coordinates:
        return replace(coordinates, position=coordinates.position + 3)


def test_locate_is_chained_in_order() -> None:
    assert Compose(Doubled(), Shifted()).locate(Coordinates.span(3)).axis().tolist() == [[3, 5, 7]]
    assert Compose(Shifted(), Doubled()).locate(Coordinates.span(3)).axis().tolist() == [[6, 8, 10]]


def test_all_parts_read_what_locate_leaves() -> None:
    x, q = torch.zeros(1, 4, 8), torch.randn(1, 2, 4, 8)
    both, at = Compose(Sinusoidal(8), RoPE(8), Doubled()), Coordinates.span(4)
    torch.testing.assert_close(both.embed(x), Sinusoidal(8).embed(x, 2 * torch.arange(4)))
    expected = RoPE(8).prepare(q, Coordinates.of(2 * torch.arange(4), 4))
    torch.testing.assert_close(both.prepare_query(q, at), expected)
    torch.testing.assert_close(both.prepare_key(q, at), expected)


def test_codes_are_summed() -> None:
    x, learned = torch.randn(2, 4, 8), Learned(10, 8)
    both = Compose(Sinusoidal(8), learned)
    torch.testing.assert_close(both.embed(x), x + (Sinusoidal(8).embed(x) - x) + (learned.embed(x) - x))


def test_prepare_is_chained() -> None:
    q, at = torch.randn(1, 2, 4, 8), Coordinates.span(4)
    fast, slow = RoPE(8), RoPE(8, base=500.0)
    torch.testing.assert_close(Compose(fast, slow).prepare_query(q, at), slow.prepare(fast.prepare(q, at), at))


def test_terms_are_joined_in_order() -> None:
    at, shaw = Coordinates.span(3), Shaw(8)
    kinds = [type(term).__name__ for term in Compose(ALiBi(4), shaw, T5(4)).terms(at, at)]
    assert kinds == ["DistanceBias", "RelativeKeys", "RelativeValues", "DistanceBias"]


def test_scores_of_a_rotation_and_a_bias_by_the_oracle(score_gap: Any) -> None:
    assert score_gap(Compose(UnitIndex(), RoPE(8), ALiBi(4))) < 1e-12


def test_compositions_nest() -> None:
    q, at = torch.randn(2, 2, 4, 8).double(), Coordinates.span(4)
    flat, nested = Compose(RoPE(8), ALiBi(2), Doubled()), Compose(Compose(RoPE(8), ALiBi(2)), Doubled())
    flat_scores, nested_scores = (Pairs(e, q[0], q[1], at, at).scores() for e in (flat, nested))
    assert torch.equal(flat_scores, nested_scores)
    assert nested.acts == {"prepare", "terms", "locate"}


def test_the_scale_is_that_of_the_part_that_has_one() -> None:
    assert Compose(RoPE(16), ALiBi(4)).default_scale(16) == 0.25
    assert Compose(RoPE(16), T5(4)).default_scale(16) == 1.0


def test_two_scales_raise() -> None:
    class Fierce(PositionEncoding):
        def default_scale(self, head_dim: int) -> float:
            return 2.0

    with pytest.raises(HeadwayError, match=r"different scales .*T5 1 and Fierce 2.*give scale="):
        Compose(T5(4), Fierce()).default_scale(16)


def test_what_a_cache_must_know_comes_from_the_parts() -> None:
    class Late(PositionEncoding):
        cache_prepared = False
        reads_input = True

    assert Compose(RoPE(8)).cache_prepared
    assert not Compose(RoPE(8), Late()).cache_prepared
    assert Compose(RoPE(8), Late()).reads_input


def test_parameters_are_registered_once() -> None:
    assert list(Compose(Shaw(4), T5(2)).state_dict()) == ["parts.0.keys", "parts.0.values", "parts.1.table"]


def test_wrong_parts_raise() -> None:
    with pytest.raises(HeadwayError, match="no parts"):
        Compose()
    with pytest.raises(HeadwayError, match="a part is 'rope': give encodings"):
        Compose("rope")  # type: ignore[arg-type]
    alibi = ALiBi(4)
    with pytest.raises(HeadwayError, match="stands twice"):
        Compose(alibi, alibi)


def test_two_transforms_have_no_oracle() -> None:
    both, q = Compose(RoPE(8), RoPE(8)), torch.zeros(1, 2, 8)
    with pytest.raises(HeadwayError, match="two parts transform"):
        both.oracle(Pair(0, 0, 1, q, q, None, Coordinates.span(2), 1.0))
