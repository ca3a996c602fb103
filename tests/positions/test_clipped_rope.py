"""Clipped RoPE: the slowest pairs fade to no rotation."""

import pytest
import torch

from headway.coordinates import Coordinates
from headway.errors import HeadwayError
from headway.positions import ClippedRoPE, RoPE

AT = Coordinates.span(1)
# hrlics/CoPE, modeling_cope.py at bb728e8, its mask of frequencies run in float64: (head_dim, base) → some of them
THEIRS = {
    (128, 1e4): {
        43: 0.002053525026457146,
        44: 0.001778279410038923,
        45: 0.0015294252307239793,
        54: 0.00019343654109373943,
        62: 9.093747109621391e-07,
        63: 0.0,
    },
    (128, 5e5): {43: 0.00014825335432657046, 45: 9.771021437254214e-05, 62: 2.055254846212905e-08},
    (16, 1e4): {0: 1.0, 1: 0.30056956918216976, 3: 0.019329753192691177, 6: 4.9515566048790485e-05, 7: 0.0},
}


@pytest.mark.parametrize("sizes", THEIRS, ids=str)
def test_frequencies_are_those_of_the_authors(sizes: tuple[int, float]) -> None:
    found = ClippedRoPE(sizes[0], base=sizes[1]).frequencies(AT)
    for c, value in THEIRS[sizes].items():
        assert found[c].item() == pytest.approx(value, rel=1e-12, abs=1e-18)


def test_a_single_pair_keeps_its_frequency() -> None:
    assert ClippedRoPE(2).frequencies(AT).tolist() == [1.0]
    with pytest.raises(HeadwayError, match="clipped is 1 of 1 pairs: leave it out"):
        ClippedRoPE(2, clipped=1)


def test_fast_pairs_are_those_of_rope() -> None:
    found, plain = ClippedRoPE(64, clipped=5).frequencies(AT), RoPE(64).frequencies(AT)
    assert torch.equal(found[:28], plain[:28])
    assert bool((found[28:] < plain[28:]).all())


@pytest.mark.parametrize("clipped", [0, 1, 5])
def test_a_number_of_pairs_out_of_range_raises(clipped: int) -> None:
    with pytest.raises(HeadwayError, match=f"clipped is {clipped} of 4 pairs: give at least 2 and at most 4"):
        ClippedRoPE(8, clipped=clipped)
