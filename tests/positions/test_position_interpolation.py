"""Positions divided, by way of frequencies."""

import pytest
import torch

from headway.coordinates import Coordinates
from headway.positions import RoPE
from headway.positions._encodings.position_interpolation import PositionInterpolation


@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_it_is_rope_at_divided_positions(layout: str) -> None:
    x, at = torch.randn(1, 2, 4, 8, dtype=torch.float64), torch.tensor([0, 1, 700, 8191])
    given = PositionInterpolation(8, 3.0, layout=layout).prepare(x, Coordinates.of(at, 4))
    expected = RoPE(8, layout=layout).prepare(x, Coordinates.of(at.double() / 3, 4))
    torch.testing.assert_close(given, expected, atol=1e-11, rtol=0)


def test_it_is_rotary_embedding_torchs() -> None:
    package = pytest.importorskip("rotary_embedding_torch")
    theirs = package.RotaryEmbedding(8, interpolate_factor=3.0, cache_if_possible=False)
    q = torch.randn(1, 2, 50, 8)
    given = PositionInterpolation(8, 3.0).prepare(q, Coordinates.span(50))
    torch.testing.assert_close(given, theirs.rotate_queries_or_keys(q), atol=2e-5, rtol=0)
