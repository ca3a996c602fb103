"""The methods of rescaling: the frequencies that their papers write."""

import math
from typing import Any

import pytest
import torch

from headway.coordinates import Coordinates
from headway.positions import NTKAware
from headway.positions._encodings.partial_rope import PartialRoPE
from headway.positions._encodings.rope import RoPE
from headway.positions._rescaling import METHODS

RESCALED = [name for name in METHODS if name != "none"]


def frequencies(encoding: Any, length: int) -> torch.Tensor:
    return encoding.frequencies(Coordinates.span(length)).reshape(-1)


def formulas(method: str, theta: list[float], factor: float, L: int, T: int) -> list[float]:
    """Each method's frequencies as its paper writes them, for a sequence of T tokens."""
    n = len(theta)
    turns = [L * one / (2 * math.pi) for one in theta]
    if method == "linear":
        return [one / factor for one in theta]
    if method == "ntk":
        return [one * factor ** (-c / (n - 1)) for c, one in enumerate(theta)]
    if method == "dynamic":
        return [one * max(1, T / L) ** (-c / (n - 1)) for c, one in enumerate(theta)]
    if method == "yarn":  # the authors' code: the ramp goes over the numbers of the pairs
        base = theta[1] ** -n
        low, high = (n * math.log(L / (2 * math.pi * beta), base) for beta in (32, 1))
        low, high = max(math.floor(low), 0), min(math.ceil(high), 2 * n - 1)
        ramp = [min(max((c - low) / (high - low), 0), 1) for c in range(n)]
        return [one * (1 - r + r / factor) for one, r in zip(theta, ramp, strict=True)]
    if method == "llama3":
        kept = [min(max((r - 1) / 3, 0), 1) for r in turns]
        return [one * (k + (1 - k) / factor) for one, k in zip(theta, kept, strict=True)]
    if method == "longrope-style" and T > L:
        kept = [min(max(math.log(r) / math.log(32), 0), 1) for r in turns]
        return [one / factor ** (1 - k) for one, k in zip(theta, kept, strict=True)]
    return theta


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("length", [100, 512])
@pytest.mark.parametrize("rope", [RoPE(32, base=1e4), PartialRoPE(32, 16, base=500.0, layout="half")], ids=type)
def test_frequencies_are_those_of_the_formula(method: str, rope: Any, length: int) -> None:
    new = METHODS[method](rope, 4.0, 128)
    theta = frequencies(rope, length).tolist()
    expected = torch.tensor(formulas(method, theta, 4.0, 128, length), dtype=torch.float64)
    torch.testing.assert_close(frequencies(new, length), expected, rtol=1e-12, atol=0)
    assert new.layout == rope.layout
    assert new.head_dim == rope.head_dim


@pytest.mark.parametrize("method", RESCALED)
def test_fast_pairs_stay_sharp_and_slow_ones_come_within_known_angles(method: str) -> None:
    """At the extended length the slowest pair turns no further than it did within the window."""
    rope = RoPE(64, base=1e4)
    before, after = (frequencies(one, 1024) for one in (rope, METHODS[method](rope, 4.0, 256)))
    assert after[-1].item() == pytest.approx(before[-1].item() / 4)
    assert bool(((after <= before) & (after >= before / 4 - 1e-15)).all())
    if method != "linear":
        assert after[0] == before[0]


def test_ntk_is_the_encoding_of_that_name() -> None:
    plain = METHODS["ntk"](RoPE(64, base=1e4), 8.0, 256)
    torch.testing.assert_close(frequencies(plain, 9), frequencies(NTKAware(64, 8.0, base=1e4), 9), rtol=1e-12, atol=0)
