"""Gopher: Transformer-XL's scheme, in a model without memory."""

import torch

from headway.coordinates import Coordinates
from headway.positions import Gopher, Pair, TransformerXL, citation


def test_it_is_transformer_xls_function() -> None:
    ours, theirs = Gopher(8, 2, 4), TransformerXL(8, 2, 4)
    theirs.load_state_dict(ours.state_dict())
    at, q, k = Coordinates.span(4), torch.randn(2, 4, 4).double(), torch.randn(2, 4, 4).double()
    for j in range(4):
        pair = Pair(1, 2, j, q, k, None, at, 1.0)
        assert ours.oracle(pair) == theirs.oracle(pair)
    (a,), (b,) = ours.terms(at, at), theirs.terms(at, at)
    assert torch.equal(a.rows.weight, b.rows.weight)


def test_it_cites_its_own_paper() -> None:
    assert "2112.11446" in citation("gopher")
    assert "1901.02860" in citation("transformer-xl")
