"""RePo with a position for each head: the authors' positions and products."""

import pytest
import torch

from headway import Coordinates, attention
from headway.errors import HeadwayError
from headway.masks import Causal
from headway.positions import Compose, RoPE
from headway.positions._encodings.repo import RePo
from headway.positions._encodings.repo_rope import RePoRoPE

# SakanaAI/repo, OLMo/olmo/model.py, commit 1508a73: q·k of two sequences and two heads after
# dynamic_position_encoding_swigluex_multihead and RotaryEmbedding, rope_theta 500000, weights and inputs as below
PRODUCTS = [
    [[0.81285, -0.67222, -2.3849], [0.98337, 1.42175, -0.37189], [-1.38942, 0.05681, 2.23224]],
    [[0.38851, 1.74566, 1.58608], [-1.31078, -0.19435, 1.47051], [0.38966, -1.72142, -2.30639]],
    [[-1.27225, 1.27557, 1.11851], [1.64634, -1.26011, -1.81799], [-0.63478, 1.08134, 1.30177]],
    [[1.35167, 0.13902, -1.40746], [0.1587, 2.18824, 0.70367], [0.18145, 1.15685, 0.25585]],
]


def waves(rows: int, columns: int, rate: float) -> torch.Tensor:
    return torch.cos(torch.arange(rows * columns).reshape(rows, columns) * rate)


@pytest.fixture
def repo() -> RePoRoPE:
    repo = RePoRoPE(8, 2, hidden_dim=3)
    with torch.no_grad():
        for weight, rate in ((repo.gate, 1.0), (repo.content, 0.7), (repo.assign, 0.3)):
            weight.copy_(waves(*weight.shape, rate))
    return repo


X = torch.sin(torch.arange(2 * 3 * 8).reshape(2, 3, 8) * 0.9)
Q = torch.cos(torch.arange(2 * 2 * 3 * 4).reshape(2, 2, 3, 4) * 1.1)
K = torch.sin(torch.arange(2 * 2 * 3 * 4).reshape(2, 2, 3, 4) * 1.3)


def test_products_are_the_authors(repo: RePoRoPE) -> None:
    at = Coordinates.span(3)
    q_at, k_at = repo.relocate(at, at, X, X)
    found = repo.prepare_query(Q, q_at) @ repo.prepare_key(K, k_at).transpose(-1, -2)
    torch.testing.assert_close(found.flatten(0, 1), torch.tensor(PRODUCTS), atol=2e-5, rtol=0)


def test_one_head_is_repo_read_by_rope(repo: RePoRoPE) -> None:
    shared = RePo(8, 3)
    with torch.no_grad():
        for own, weight in zip(shared.parameters(), repo.parameters(), strict=True):
            own.copy_(weight[: own.shape[0]])
    found = attention(Q, K, K, encoding=repo, q_input=X, k_input=X)[:, 0]
    reader = Compose(shared, RoPE(4, base=500000.0, layout="half"))
    torch.testing.assert_close(found, attention(Q, K, K, encoding=reader, q_input=X, k_input=X)[:, 0])


def test_queries_of_another_sequence_have_positions_of_their_own(repo: RePoRoPE) -> None:
    """In cross-attention the queries are not the last of the keys; more queries than keys are fine."""
    context = torch.randn(2, 2, 8)
    whole = attention(Q, K[:, :, :2], K[:, :, :2], encoding=repo, q_input=X, k_input=context, **places(3, 2))
    last = attention(
        Q[:, :, 2:], K[:, :, :2], K[:, :, :2], encoding=repo, q_input=X[:, 2:], k_input=context, **places(1, 2)
    )
    torch.testing.assert_close(whole[:, :, 2:], last)


def places(n: int, m: int) -> dict[str, Coordinates]:
    return {"q_positions": Coordinates.span(n), "k_positions": Coordinates.span(m)}


def test_fewer_heads_of_keys_share_their_positions_with_their_queries() -> None:
    torch.manual_seed(0)
    grouped = RePoRoPE(8, 4, 4, num_kv_heads=2).double()
    for weight in grouped.parameters():
        torch.nn.init.normal_(weight)
    q, k = torch.randn(1, 4, 3, 4, dtype=torch.float64), torch.randn(1, 2, 3, 4, dtype=torch.float64)
    x = X[:1].double()
    found = attention(q, k, k, encoding=grouped, mask=Causal(), q_input=x, k_input=x)
    single = RePoRoPE(8, 2, 4).double()
    single.load_state_dict(grouped.state_dict())
    expected = attention(q[:, 1::2], k, k, encoding=single, mask=Causal(), q_input=x, k_input=x)
    torch.testing.assert_close(found[:, 1::2], expected)


def test_it_looks_both_ways_and_bad_arguments_raise(repo: RePoRoPE) -> None:
    assert not repo.causal_only
    with pytest.raises(HeadwayError, match="hidden_dim is 0"):
        RePoRoPE(8, 2, hidden_dim=0)
    with pytest.raises(HeadwayError, match="base is 1"):
        RePoRoPE(8, 2, base=1)
    at = Coordinates.span(3)
    with pytest.raises(HeadwayError, match="k_input"):
        repo.relocate(at, at)
