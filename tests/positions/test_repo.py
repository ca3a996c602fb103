"""RePo: positions are the authors' numbers, and whatever reads them has gradients to what assigned them."""

import pytest
import torch

from headway import Coordinates, attention, explain
from headway.errors import HeadwayError
from headway.masks import Causal
from headway.nn import KeyValueCache, MultiHeadAttention
from headway.positions import ALiBi, Compose, RoPE
from headway.positions._encodings.repo import RePo

# SakanaAI/repo, OLMo/olmo/model.py, commit 1508a73: dynamic_position_encoding_swigluex_multihead of two sequences, for
# the first of two heads, with the weights and inputs below
POSITIONS = [[3.28329, 8.60675, 9.3702], [-6.68562, -10.2635, 1.25851]]


def waves(rows: int, columns: int, rate: float) -> torch.Tensor:
    return torch.cos(torch.arange(rows * columns).reshape(rows, columns) * rate)


@pytest.fixture
def repo() -> RePo:
    """The weights that the authors' code was given; its second head is left out."""
    repo = RePo(8, 3)
    with torch.no_grad():
        for weight, rate in ((repo.gate, 1.0), (repo.content, 0.7)):
            weight.copy_(waves(3, 8, rate))
        repo.assign.copy_(waves(2, 3, 0.3)[:1])
    return repo


X = torch.sin(torch.arange(2 * 3 * 8).reshape(2, 3, 8) * 0.9)


def test_positions_are_the_authors(repo: RePo) -> None:
    at = Coordinates.span(3)
    found = repo.relocate(at, at, X, X)[1].axis()
    assert found.dtype == torch.float64
    torch.testing.assert_close(found.float(), torch.tensor(POSITIONS), atol=2e-5, rtol=0)
    for row, x in zip(POSITIONS, X.double(), strict=True):
        torch.testing.assert_close(repo.oracle_positions(x).axis()[0].float(), torch.tensor(row), atol=2e-5, rtol=0)


def test_rope_reads_the_positions(repo: RePo) -> None:
    q, k, v = torch.randn(3, 2, 1, 3, 4)
    found = attention(q, k, v, encoding=Compose(repo, RoPE(4)), q_input=X, k_input=X)
    expected = attention(q, k, v, encoding=RoPE(4), q_positions=torch.tensor(POSITIONS))
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("reader", [RoPE(4), ALiBi(1)])
def test_what_assigns_positions_learns(repo: RePo, reader: RoPE | ALiBi) -> None:
    """Through angles and through biases; a kernel without a gradient to positions says so and is not taken."""
    q, k, v = torch.randn(3, 2, 1, 3, 4)
    both = Compose(repo, reader)
    attention(q, k, v, encoding=both, mask=Causal(), q_input=X, k_input=X).square().sum().backward()
    for weight in repo.parameters():
        assert weight.grad is not None
        assert weight.grad.abs().max() > 0
    reasons = explain(q, k, v, encoding=both, q_input=X, k_input=X).reasons["cpu"]
    assert any("gradient of positions" in reason for reason in reasons)


def test_the_order_of_tokens_plays_no_part(repo: RePo) -> None:
    at, turned = Coordinates.span(3), Coordinates.of(torch.tensor([9, 4, 0]), 3)
    assert torch.equal(repo.relocate(at, at, X, X)[0].position, repo.relocate(turned, turned, X, X)[0].position)


def test_a_cache_and_another_context_are_read_token_by_token(repo: RePo) -> None:
    torch.manual_seed(0)
    layer = MultiHeadAttention(8, 2, encoding=Compose(repo, RoPE(4))).eval()
    with torch.no_grad():
        cache, whole = KeyValueCache(), layer(X, mask=Causal())
        steps = [layer(X[:, t : t + 1], mask=Causal(), cache=cache) for t in range(3)]
        torch.testing.assert_close(torch.cat(steps, dim=1), whole)
        context = torch.randn(2, 5, 8)
        torch.testing.assert_close(layer(X, context)[:, 1:], layer(X[:, 1:], context))


def test_it_starts_with_all_tokens_near_position_0() -> None:
    at = Coordinates.span(3)
    assert RePo(8).relocate(at, at, X, X)[0].axis().abs().max() < 0.05
    assert RePo(64).gate.abs().max() <= 0.06


def test_bad_arguments_raise(repo: RePo) -> None:
    q, at = torch.zeros(1, 1, 2, 4), Coordinates.span(2)
    with pytest.raises(HeadwayError, match="RePo changes where tokens are and nothing here reads it"):
        attention(q, q, q, encoding=repo, q_input=X[:1, :2], k_input=X[:1, :2])
    with pytest.raises(HeadwayError, match="k_input is None but RePo reads it"):
        repo.relocate(at, at)
    with pytest.raises(HeadwayError, match="built with embed_dim=8 and is given a last dimension of 4"):
        repo.relocate(at, at, q[0], q[0])
    with pytest.raises(HeadwayError, match="hidden_dim is 0"):
        RePo(8, 0)
