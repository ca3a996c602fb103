"""Resonance RoPE: each pair repeats its angles after a whole number of tokens."""

import math

import pytest
import torch

from headway.coordinates import Coordinates
from headway.positions import ResonanceRoPE, RoPE

AT = Coordinates.span(1)
# sheryc/resonance_rope, rotary_resonance.py at 9e903dc, its frequencies in float64: (head_dim, base) → some of them
THEIRS = {
    (128, 1e4): {0: 1.0471975511965976, 1: 0.8975979010256552, 20: 0.05609986881410345, 63: 0.00011547850224553549},
    (64, 5e5): {1: 0.6981317007977318, 3: 0.28559933214452665, 31: 3.0138578243493087e-06},
    (16, 1e4): {1: 0.3141592653589793, 3: 0.03157379551346526, 7: 0.00031623057562935156},
}


@pytest.mark.parametrize("sizes", THEIRS, ids=str)
def test_frequencies_are_those_of_the_authors(sizes: tuple[int, float]) -> None:
    found = ResonanceRoPE(sizes[0], sizes[1]).frequencies(AT)
    for c, value in THEIRS[sizes].items():
        assert found[c].item() == pytest.approx(value, rel=1e-13)


def test_angles_beyond_a_wavelength_are_those_before() -> None:
    """Of the pairs that turn round within 128 tokens; RoPE's own have other angles there."""
    x = torch.randn(1, 1, 1, 64, dtype=torch.float64)
    resonant = ResonanceRoPE(64)
    lengths = 2 * math.pi / resonant.frequencies(AT)
    for c in range(int((lengths <= 128).sum())):
        period = round(lengths[c].item())
        here, there = (Coordinates.span(1, start=start) for start in (3, 3 + 50 * period))
        pair = slice(2 * c, 2 * c + 2)
        near, far = (resonant.prepare(x, at)[..., pair] for at in (here, there))
        torch.testing.assert_close(near, far, rtol=0, atol=1e-11)
        plain = [RoPE(64).prepare(x, at)[..., pair] for at in (here, there)]
        assert not torch.allclose(*plain, atol=1e-3)
