"""No positions: nothing is done anywhere."""

import torch

from headway.coordinates import Coordinates
from headway.positions import NoPE


def test_it_does_nothing() -> None:
    encoding, at = NoPE(), Coordinates.span(5)
    x, q = torch.randn(2, 5, 8), torch.randn(2, 4, 5, 8)
    assert encoding.acts == frozenset()
    assert encoding.embed(x, at) is x
    assert encoding.prepare_query(q, at) is q
    assert encoding.terms(at, at) == ()
