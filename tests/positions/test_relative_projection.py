"""A bias each query mixes for itself: where it ends, and two implementations by others."""

import pytest
import torch
from torch import Tensor

from headway import attention, attention_steps
from headway.coordinates import Coordinates
from headway.errors import HeadwayError
from headway.positions._encodings.relative_projection import RelativeProjection


def bias_of(encoding: RelativeProjection, x: Tensor, at: Coordinates) -> Tensor:
    zero = x.new_zeros(x.shape[0], encoding.num_heads, x.shape[1], 8)
    inputs = {"q_input": x, "k_input": x, "q_positions": at, "k_positions": at}
    return attention_steps(zero, zero, zero, encoding=encoding, **inputs).scaled


def test_it_ends_at_max_distance_and_begins_at_the_query() -> None:
    encoding = RelativeProjection(4, 1, curves=1, max_distance=3)
    encoding.bank.data.copy_(torch.tensor([[1.0, 2.0, 3.0]]))
    torch.nn.init.zeros_(encoding.weight)
    torch.nn.init.ones_(encoding.bias)
    found = bias_of(encoding, torch.zeros(1, 5, 4), Coordinates.span(5))[0, 0]
    assert found[3].tolist() == [0, 3, 2, 1, 0]
    floats = Coordinates.of(torch.tensor([0.0, 0.5, 1.9, 2.0, 4.9]), 5)
    assert bias_of(encoding, torch.zeros(1, 5, 4), floats)[0, 0, 4].tolist() == [0, 0, 0, 3, 1]


def test_it_is_not_scaled() -> None:
    encoding, x = RelativeProjection(16, 2), torch.randn(1, 6, 16)
    q, k, v = torch.randn(3, 1, 2, 6, 8)
    added = [
        attention_steps(q, k, v, encoding=encoding, q_input=x, k_input=x, scale=scale).scaled - scale * (q @ k.mT)
        for scale in (0.0, 2.0)
    ]
    torch.testing.assert_close(added[0], added[1], atol=1e-5, rtol=0)


def test_a_query_alone_among_more_keys() -> None:
    """As across two sequences: only the query's own input is read."""
    encoding = RelativeProjection(16, 2)
    torch.nn.init.normal_(encoding.bank)
    q, k, v = torch.randn(1, 2, 1, 8), *torch.randn(2, 1, 2, 9, 8)
    x, others = torch.randn(1, 1, 16), torch.randn(2, 1, 9, 16)
    a, b = (attention(q, k, v, encoding=encoding, q_input=x, k_input=other) for other in others)
    assert torch.equal(a, b)


def test_x_transformers() -> None:
    """Theirs puts the queries at the end of the keys; its projection has a bias."""
    package = pytest.importorskip("x_transformers.x_transformers")
    theirs = package.RelativeProjPositionalBias(24, 3, num_distance_basis=5, max_dist=6)
    ours = RelativeProjection(24, 3, curves=5, max_distance=6)
    linear = theirs.to_distance_weights[0]
    ours.load_state_dict({"weight": linear.weight, "bias": linear.bias, "bank": theirs.distance_bank})
    x = torch.randn(2, 11, 24)
    torch.testing.assert_close(bias_of(ours, x, Coordinates.span(11)), theirs(x))
    torch.testing.assert_close(bias_of(ours, x, Coordinates.span(11))[:, :, 9:], theirs(x[:, 9:], seq_len_k=11))


def test_hugging_face() -> None:
    """The released model's bank; its projection has no bias."""
    inkling = pytest.importorskip("transformers.models.inkling.modeling_inkling")
    theirs, ours = inkling.InklingRelativeLogits(5, 6), RelativeProjection(24, 3, curves=5, max_distance=6, bias=False)
    theirs.proj.data.copy_(ours.bank.data)
    x, at = torch.randn(2, 11, 24), torch.tensor([0, 1, 2, 5, 6, 7, 8, 11, 12, 13, 30])
    states = (x @ ours.weight.T).unflatten(-1, (3, 5))
    torch.testing.assert_close(bias_of(ours, x, Coordinates.of(at, 11)), theirs(states, at, at))


def test_bad_arguments() -> None:
    with pytest.raises(HeadwayError, match="curves is 0"):
        RelativeProjection(8, 2, curves=0)
    with pytest.raises(HeadwayError, match="embed_dim"):
        bias_of(RelativeProjection(8, 2), torch.zeros(1, 3, 9), Coordinates.span(3))
