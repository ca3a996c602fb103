"""What tells the interleaved form from the chunked one; the rest is in test_m_rope."""

import torch

from headway.coordinates import Coordinates
from headway.positions._encodings.interleaved_m_rope import InterleavedMRoPE
from headway.positions._encodings.m_rope import MRoPE


def test_each_axis_has_fast_and_slow_pairs() -> None:
    """Of the released sections, only rows turn pairs 1, 4 … 58, and in chunks pairs 16 … 39."""
    at = Coordinates.of(torch.tensor([[[0, 1, 0]]]), 1)
    turned = [kind().phases(at).flatten().nonzero().flatten().tolist() for kind in (InterleavedMRoPE, MRoPE)]
    assert turned == [list(range(1, 60, 3)), list(range(16, 40))]


def test_its_base_is_its_own() -> None:
    assert (InterleavedMRoPE().base, MRoPE().base) == (5_000_000.0, 1_000_000.0)
    at = Coordinates.of(torch.tensor([[[3, 0, 0]]]), 1)
    torch.testing.assert_close(InterleavedMRoPE().phases(at)[0, 0, 63].item(), 3 * 5e6 ** (-126 / 128))
