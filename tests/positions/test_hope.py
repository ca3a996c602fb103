"""HoPE: what does not turn round within the trained length is not turned."""

import math

import pytest
import torch

from headway.coordinates import Coordinates
from headway.errors import HeadwayError
from headway.positions import RoPE
from headway.positions._encodings.hope import HoPE

AT = Coordinates.span(1)
# 0-5788719150923125/praxis, praxis/encoding/hope.py at e7a642e, its choice of frequencies run in float64:
# (head_dim, base, context) → how many are kept, and the last of them
THEIRS = {
    (128, 1e4, 512): (31, 0.01333521432163324),
    (128, 1e4, 4096): (46, 0.0015399265260594918),
    (128, 1e4, 40): (13, 0.17782794100389226),
    (64, 5e5, 512): (11, 0.016560440080994446),
    (64, 5e5, 8192): (18, 0.0009384738703573801),
}


@pytest.mark.parametrize("sizes", THEIRS, ids=str)
def test_the_kept_frequencies_are_those_of_another_implementation(sizes: tuple) -> None:
    head_dim, base, length = sizes
    count, last = THEIRS[sizes]
    found = HoPE(head_dim, length, base).frequencies(AT)
    assert (found > 0).tolist() == [c < count for c in range(head_dim // 2)]
    assert found[count - 1].item() == pytest.approx(last, rel=1e-13)
    assert torch.equal(found[:count], RoPE(head_dim, base).frequencies(AT)[:count])


def test_every_kept_pair_turns_round_and_no_other_does() -> None:
    kept = HoPE(128, 512).frequencies(AT) > 0
    turns = 512 * RoPE(128).frequencies(AT) / (2 * math.pi)
    assert torch.equal(kept, turns >= 1)


def test_what_is_not_turned_knows_no_positions() -> None:
    x, at = torch.randn(1, 1, 2, 8), Coordinates.of(torch.tensor([5, 100_000]), 2)
    given = HoPE(8, 40).prepare(x, at)
    assert torch.equal(given[..., 2:], x[..., 2:])
    assert not torch.equal(given[..., :2], x[..., :2])


def test_a_length_without_a_turn_raises() -> None:
    assert (HoPE(8, 7).frequencies(AT) > 0).tolist() == [True, False, False, False]
    with pytest.raises(HeadwayError, match="max_length is 6: no pair completes a rotation within it, give at least 7"):
        HoPE(8, 6)
