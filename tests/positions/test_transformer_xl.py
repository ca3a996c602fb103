"""Transformer-XL's relative keys, and its biases."""

from typing import Any

import pytest
import torch

from headway.coordinates import Coordinates
from headway.errors import HeadwayError
from headway.positions import TransformerXL
from headway.terms import RelativeKeys


def test_far_positions_are_as_exact_as_near_ones(score_gap: Any) -> None:
    assert score_gap(TransformerXL(32, 4, 8), torch.tensor([10**6, 10**6 + 3, 10**6 + 70])) < 1e-9


def test_u_joins_the_content_and_v_the_position() -> None:
    encoding, at = TransformerXL(8, 2, 4), Coordinates.span(3)
    q = torch.randn(1, 2, 3, 4)
    assert torch.equal(encoding.prepare_query(q, at), q + encoding.u[:, None])
    assert torch.equal(encoding.prepare_key(q, at), q)
    (term,) = encoding.terms(at, at)
    assert isinstance(term, RelativeKeys)
    assert term.query_bias is encoding.v


def test_a_half_precision_query_stays_so() -> None:
    q = torch.randn(1, 2, 3, 4, dtype=torch.bfloat16)
    assert TransformerXL(8, 2, 4).prepare_query(q, Coordinates.span(3)).dtype == torch.bfloat16


def test_frequencies_are_the_papers_in_float64() -> None:
    (term,) = TransformerXL(8, 2, 4).terms(Coordinates.span(1), Coordinates.span(1))
    expected = torch.tensor([1, 0.1, 0.01, 0.001], dtype=torch.float64)
    torch.testing.assert_close(term.rows.frequencies, expected, rtol=1e-15, atol=0)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((9, 2, 4), "embed_dim is 9: .* an even one"),
        ((8, 0, 4), "num_heads is 0"),
        ((8, 2, 0), "head_dim is 0"),
        ((8, 2, 4, 0.5), "base is 0.5"),
    ],
)
def test_wrong_arguments_raise(arguments: tuple, said: str) -> None:
    with pytest.raises(HeadwayError, match=said):
        TransformerXL(*arguments)


@pytest.mark.parametrize("shape", [(1, 3, 5, 4), (1, 2, 5, 8)])
def test_queries_of_another_size_raise(shape: tuple[int, ...]) -> None:
    with pytest.raises(HeadwayError, match=f"build it with num_heads={shape[1]}, head_dim={shape[3]}"):
        TransformerXL(8, 2, 4).prepare_query(torch.zeros(shape), Coordinates.span(5))
