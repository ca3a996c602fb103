"""Wall attention: the authors' numbers, gates that close, caches, shared key heads, long streams."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from headway import attention, decay, encoding, explain
from headway.coordinates import Coordinates
from headway.errors import HeadwayError
from headway.kernels import reference
from headway.masks import Causal, Window
from headway.nn import MultiHeadAttention
from headway.positions._encodings.forgetting import ForgettingGate
from headway.positions._encodings.wall import Wall
from headway.terms import ChannelDecay, TokenBias

PLAIN = [-0.032301, 0.076102, 0.317162, 0.010261, -0.011116, 0.006206]
PLAIN += [0.003608, 0.002241, -0.006258, -0.002337, -0.000442, 0.014372]
WITH_ALL = [-0.003823, 0.090153, 0.275612, -0.026172, -0.124172, 0.062724]
WITH_ALL += [-0.010602, -0.023519, -0.102931, -0.048291, -0.045889, 0.070236]


def wave(*shape: int, a: float) -> Tensor:
    return torch.sin(a * torch.arange(math.prod(shape), dtype=torch.float64)).view(shape)


def literally(q: Tensor, k: Tensor, log_gates: Tensor) -> Tensor:
    """Σ_c q_ic·k_jc·exp(Σ_{t=j+1…i} g_tc) of one head, with the product ⟨qᵢ, kⱼ⟩ for j > i."""
    found = q @ k.T
    for i in range(len(q)):
        for j in range(i):
            found[i, j] = (q[i] * k[j] * log_gates[j + 1 : i + 1].sum(0).exp()).sum()
    return found


@pytest.mark.parametrize("n", [1, 2, 3, 8, 13])
def test_products_of_blocks_of_queries_and_of_pieces(n: int) -> None:
    q, k = torch.randn(2, 1, 2, n, 4, dtype=torch.float64)
    log_gates = -torch.randn(1, 2, n, 4, dtype=torch.float64).abs() * 20
    expected = torch.stack([literally(q[0, h], k[0, h], log_gates[0, h]) for h in range(2)])[None]
    index = torch.arange(n)[None]
    for rows in (torch.arange(n), torch.arange(n - 1, n)):
        found = decay.along(q[:, :, rows], k, rows, log_gates, index, index)
        torch.testing.assert_close(found, expected[:, :, rows], atol=1e-12, rtol=1e-10)
    whole, held = torch.zeros_like(expected), torch.zeros(n, n, dtype=torch.int64)
    pieces = list(decay.in_pieces(q, k, log_gates))
    for piece in pieces:
        first, last = piece.keys()
        pairs = (torch.arange(n) >= first.mT) & (torch.arange(n) < last.mT)
        held += pairs
        whole += (piece.q @ piece.k.mT) * pairs
    assert len(pieces) == 1 + math.ceil(math.log2(n))
    assert torch.equal(held, torch.ones(n, n, dtype=torch.int64).tril())
    torch.testing.assert_close(whole, expected.tril(), atol=1e-12, rtol=1e-10)


@pytest.mark.parametrize("strength", [1, 900])
def test_queries_take_their_place_by_index(strength: float) -> None:
    """Queries before all keys, after all keys, and rows of a batch that stand elsewhere."""
    n, m = 3, 6
    q, k = torch.randn(2, 1, n, 4, dtype=torch.float64), torch.randn(2, 1, m, 4, dtype=torch.float64)
    log_gates = (-strength * torch.rand(1, 1, m, 4, dtype=torch.float64)).requires_grad_()
    q_index, k_index = torch.tensor([[-1, 2, 9], [3, 4, 5]]), torch.arange(m)[None]
    found = decay.along(q, k, torch.arange(n), log_gates, q_index, k_index)
    for b in range(2):
        for i in range(n):
            own = min(int(q_index[b, i]), m - 1)
            for j in range(m):
                kept = log_gates[0, 0, j + 1 : own + 1].sum(0).exp()
                torch.testing.assert_close(found[b, 0, i, j], (q[b, 0, i] * k[b, 0, j] * kept).sum())
    assert torch.autograd.grad(found.sum(), log_gates)[0].isfinite().all()


@pytest.mark.parametrize("kernel", ["auto", "reference"])
def test_the_authors_code(kernel: str) -> None:
    """Numbers of naive_wall_attn, fla-org/flash-linear-attention ops/wall_attn/naive.py @ bc3b101; rows 5, 66, 69."""
    n = 70
    q, k, v = (wave(1, n, heads, 4, a=a).transpose(1, 2) for heads, a in ((4, 0.7), (2, 1.1), (2, 1.9)))
    term = ChannelDecay(F.logsigmoid(4 * wave(1, n, 4, 4, a=1.3)).transpose(1, 2))
    sums = F.logsigmoid(2 + wave(1, n, 4, a=0.9)).transpose(1, 2).cumsum(-1)
    sink = torch.tensor([-1.0, 0.0, 0.5, 1.0], dtype=torch.float64)
    for out, expected in (
        (attention(q, k, v, terms=(term,), mask=Causal(), scale=0.5, kernel=kernel), PLAIN),
        (
            attention(
                q, k, v, terms=(term, TokenBias(sums, -sums)), mask=Window(8, 0), scale=0.5, sink=sink, kernel=kernel
            ),
            WITH_ALL,
        ),
    ):
        assert out[0, :, [5, 66, 69]].sum(-1).T.flatten().tolist() == pytest.approx(expected, abs=5e-6)


def test_starts_and_sizes() -> None:
    wall = Wall(64, 4)
    assert wall.weight.shape == (64, 64)
    assert wall.bias.eq(8).all()
    gates = Wall(6, 2, head_dim=5).log_gates(Coordinates.padded([3], 5), torch.randn(2, 5, 6))
    assert gates.shape == (2, 2, 5, 5)
    assert not gates[:, :, :2].any()
    assert (gates[:, :, 2:] < 0).all()


def test_a_gate_may_close() -> None:
    """Then earlier keys have a product of 0 in this channel, and gradients stay finite."""
    q, k, v = torch.randn(3, 1, 1, 9, 2, dtype=torch.float64)
    for closed in (-math.inf, -1e30, -2000.0):
        log_gates = torch.zeros(1, 1, 9, 2, dtype=torch.float64)
        log_gates[:, :, 4, 0] = closed
        expected = literally(q[0, 0], k[0, 0], log_gates[0, 0])
        assert torch.equal(expected[4:, :4], q[0, 0, 4:, 1:] @ k[0, 0, :4, 1:].T)
        weights = expected.masked_fill(~torch.ones(9, 9).tril().bool(), -math.inf).softmax(-1)
        for kernel, dtype in (("reference", torch.float64), ("auto", torch.float32)):
            leaves = [x.to(dtype).requires_grad_() for x in (q, k, v, log_gates)]
            terms = (ChannelDecay(leaves[3]),)
            out = attention(*leaves[:3], terms=terms, mask=Causal(), scale=1, kernel=kernel)
            torch.testing.assert_close(out[0, 0].double(), weights @ v[0, 0], atol=1e-6, rtol=1e-6)
            assert all(x.isfinite().all() for x in torch.autograd.grad(out.sum(), leaves))


@pytest.mark.parametrize("kernel", ["auto", "reference"])
def test_no_gate_amplifies(kernel: str) -> None:
    """Numbers above 0 count as 0 and have no gradient; a single query, as in decoding, included."""
    q, k, v, log_gates = torch.randn(4, 1, 2, 9, 4)
    log_gates.requires_grad_()
    for rows in (9, 1):
        found, expected = (
            attention(q[:, :, 9 - rows :], k, v, terms=(ChannelDecay(gates),), mask=Causal(), kernel=kernel)
            for gates in (log_gates, log_gates.detach().clamp(max=0))
        )
        torch.testing.assert_close(found, expected)
        (gradient,) = torch.autograd.grad(found.sum(), log_gates)
        assert not gradient[log_gates > 0].any()
        assert gradient[log_gates < 0].any()


def test_a_long_stream_keeps_its_digits() -> None:
    """The sums of logarithms reach −20,000, where float32 rounds by 0.001."""
    n = 4096
    q, k, v = (torch.randn(1, 1, n, 4, generator=torch.Generator().manual_seed(i)) for i in range(3))
    log_gates = torch.full((1, 1, n, 4), -5.0)
    log_gates[..., 0] = -1e-3
    terms = (ChannelDecay(log_gates),)
    found = attention(q, k, v, terms=terms, mask=Causal())
    exact = attention(q.double(), k.double(), v.double(), terms=terms, mask=Causal(), kernel="reference")
    torch.testing.assert_close(found.double(), exact, atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("log_gate", [-1e-5, -1.7e-6, -2e-7])
def test_equal_gates_near_one_keep_their_digits(log_gate: float) -> None:
    """Each rounds as the others do when it becomes a float32: a product of 1,024 would be 1,024 times as far off."""
    n = 1024
    q, k, v = (torch.randn(1, 1, n, 8, generator=torch.Generator().manual_seed(i)) for i in range(3))
    inputs = [q.abs(), k.abs(), v, torch.full((1, 1, n, 8), log_gate)]

    def run(kernel: str, dtype: torch.dtype) -> list[Tensor]:
        leaves = [x.to(dtype).requires_grad_() for x in inputs]
        out = attention(*leaves[:3], terms=(ChannelDecay(leaves[3]),), mask=Causal(), kernel=kernel)
        upstream = wave(*out.shape, a=1.3).to(dtype)
        return [out.detach(), *torch.autograd.grad(out, leaves, upstream)]

    exact = run("reference", torch.float64)
    for found, naive, right in zip(run("auto", torch.float32), run("reference", torch.float32), exact, strict=True):
        error, allowed = ((x.double() - right).abs().mean() for x in (found, naive))
        assert error <= 2 * allowed


def test_a_scalar_gate_beside_it() -> None:
    both = encoding("wall + forgetting", embed_dim=16, num_heads=2)
    x, q = torch.randn(1, 7, 16), torch.randn(1, 2, 7, 8)
    kinds = [type(part) for part in both.modules()]
    assert {Wall, ForgettingGate} <= set(kinds)
    chosen = explain(q, q, q, encoding=both, mask=Causal(), q_input=x, k_input=x)
    assert set(chosen.terms) == {"ChannelDecay", "TokenBias"}


def test_a_layer_with_a_cache_gives_what_a_full_pass_gives(
    monkeypatch: pytest.MonkeyPatch, check_cache: Callable[[MultiHeadAttention, int], None]
) -> None:
    """Left padding, several tokens at once, several blocks of rows and shared key heads included."""
    monkeypatch.setattr(reference, "BLOCK", 64)
    layer = MultiHeadAttention(16, 4, num_kv_heads=2, encoding=Wall(16, 4)).double()
    assert isinstance(layer.encoding, Wall)
    for parameter in layer.encoding.parameters():
        torch.nn.init.normal_(parameter)
    check_cache(layer, 16)


def test_bad_arguments() -> None:
    x, q = torch.randn(1, 3, 16), torch.randn(1, 2, 3, 4)
    with pytest.raises(HeadwayError, match="num_heads"):
        Wall(16, 0)
    with pytest.raises(HeadwayError, match="num_heads=4, head_dim=4: build it with num_heads=2, head_dim=4"):
        attention(q, q, q, encoding=Wall(16, 4), mask=Causal(), q_input=x, k_input=x)
    with pytest.raises(HeadwayError, match=r"masks\.Causal"):
        attention(q, q, q, encoding=Wall(16, 2, head_dim=4), q_input=x, k_input=x)
