"""Llama 3.1's three bands of wavelengths."""

import math

import pytest
import torch

from headway.coordinates import Coordinates
from headway.errors import HeadwayError
from headway.positions import RoPE
from headway.positions._encodings.llama3 import Llama3

AT = Coordinates.span(1)


def test_the_three_bands() -> None:
    plain, found = RoPE(128, 5e5).frequencies(AT), Llama3(128).frequencies(AT)
    wavelength = 2 * math.pi / plain
    short, long = wavelength < 8192 / 4, wavelength > 8192
    assert torch.equal(found[short], plain[short])
    torch.testing.assert_close(found[long], plain[long] / 8, rtol=1e-14, atol=0)
    assert (short.sum().item(), (~short & ~long).sum().item(), long.sum().item()) == (29, 6, 29)


def test_the_band_between_by_hand() -> None:
    """Pair 30 of Llama 3.1: λ = 2π·500000^(60/128) = 2948.4…, m = (8192/λ − 1)/3, worked out on its own."""
    theta = 500000.0 ** (-60 / 128)
    m = (8192 * theta / (2 * math.pi) - 1) / 3
    assert 0.55 < m < 0.6
    assert Llama3(128).frequencies(AT)[30].item() == pytest.approx(theta * (m + (1 - m) / 8), rel=1e-14)


def test_llama_3_2_divides_by_32() -> None:
    slowest = Llama3(64, 32.0).frequencies(AT)[-1].item()
    assert slowest == pytest.approx(500000.0 ** (-62 / 64) / 32, rel=1e-14)


@pytest.mark.parametrize(("low", "high"), [(1.0, 1.0), (4.0, 1.0), (-1.0, 4.0)])
def test_wrong_factors_raise(low: float, high: float) -> None:
    with pytest.raises(HeadwayError, match=f"high_freq_factor is {high} and low_freq_factor {low}: give a high_freq_"):
        Llama3(8, low_freq_factor=low, high_freq_factor=high)
