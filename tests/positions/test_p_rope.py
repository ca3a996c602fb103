"""p-RoPE: the fast pairs of RoPE, and the same "0.25" meaning another thing than in partial rotary."""

import pytest
import torch

from headway.coordinates import Coordinates
from headway.errors import HeadwayError
from headway.positions import RoPE
from headway.positions._encodings.p_rope import ProportionalRoPE
from headway.positions._encodings.partial_rope import PartialRoPE

AT = Coordinates.span(1)


def test_the_fast_frequencies_are_those_of_rope_and_the_rest_zero() -> None:
    found, rope = ProportionalRoPE(128, fraction=0.25).frequencies(AT), RoPE(128).frequencies(AT)
    assert torch.equal(found[:16], rope[:16])
    assert not found[16:].any()
    assert found[15].item() == pytest.approx(0.1155, rel=1e-3)
    assert PartialRoPE(128, fraction=0.25).frequencies(AT)[15].item() == pytest.approx(1.778e-4, rel=1e-3)


def test_in_halves_two_stretches_of_a_head_are_turned() -> None:
    x, at = torch.randn(1, 1, 3, 16), Coordinates.of(torch.tensor([1, 70, 4000]), 3)
    given = ProportionalRoPE(16, fraction=0.25, layout="half").prepare(x, at)
    changed = (given != x).any(dim=2).flatten().nonzero().flatten().tolist()
    assert changed == [0, 1, 8, 9]
    changed = (ProportionalRoPE(16, fraction=0.25).prepare(x, at) != x).any(dim=2).flatten().nonzero().flatten()
    assert changed.tolist() == [0, 1, 2, 3]


def test_all_of_it_is_rope_and_a_part_of_a_pair_is_none() -> None:
    assert torch.equal(ProportionalRoPE(8, fraction=1.0).frequencies(AT), RoPE(8).frequencies(AT))
    assert ProportionalRoPE(8, fraction=0.7).turned == 2


def test_gemma_4() -> None:
    """theta 1e6, 0.25 of a head of 512: 64 frequencies and 192 zeros."""
    found = ProportionalRoPE(512, fraction=0.25, base=1e6, layout="half").frequencies(AT)
    assert (found > 0).tolist() == [True] * 64 + [False] * 192
    assert found[63].item() == pytest.approx(1e6 ** (-126 / 512), rel=1e-12)


@pytest.mark.parametrize("fraction", [0.0, 0.1, 1.01, -1.0])
def test_wrong_fractions_raise(fraction: float) -> None:
    with pytest.raises(HeadwayError, match=r"of 4 pairs: give at least 0\.25 and at most 1, or take NoPE"):
        ProportionalRoPE(8, fraction=fraction)


def test_wrong_factors_raise() -> None:
    with pytest.raises(HeadwayError, match="factor is 0: give at least 1"):
        ProportionalRoPE(8, factor=0)
