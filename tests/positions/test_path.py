"""The path: literal products of Householder matrices, the authors' numbers, chunks, caches, shared key heads."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from headway import attention, attention_steps
from headway.coordinates import Coordinates
from headway.errors import HeadwayError
from headway.householder import along
from headway.kernels import reference
from headway.masks import Causal
from headway.nn import MultiHeadAttention
from headway.positions._encodings.path import PaTH
from headway.terms import HouseholderPath


def wave(*shape: int, a: float) -> Tensor:
    return torch.sin(a * torch.arange(math.prod(shape), dtype=torch.float64)).view(shape)


def literally(q: Tensor, k: Tensor, w: Tensor, beta: Tensor) -> Tensor:
    """qᵢᵀ·Hᵢ ⋯ Hⱼ₊₁·kⱼ of one head, matrix by matrix."""
    n, d = q.shape
    found = torch.zeros(n, n, dtype=q.dtype)
    for i in range(n):
        row = q[i]
        for j in range(i, -1, -1):
            found[i, j] = row @ k[j]
            row = row @ (torch.eye(d, dtype=q.dtype) - beta[j] * torch.outer(w[j], w[j]))
    return found


def test_householder_products_over_several_chunks_and_blocks() -> None:
    n = 150
    q, k, w = torch.randn(3, 1, 1, n, 4, dtype=torch.float64)
    w, beta, index = F.normalize(w, dim=-1), 2 * torch.rand(1, 1, n, dtype=torch.float64), torch.arange(n)[None]
    expected = literally(q[0, 0], k[0, 0], w[0, 0], beta[0, 0])
    for rows in (torch.arange(n), torch.arange(60, 75), torch.arange(n - 1, n)):
        found = along(q[:, :, rows], k, rows, w, beta, index, index)[0, 0]
        torch.testing.assert_close(found * (index <= index.T)[rows], expected[rows], atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("kernel", ["auto", "reference"])
def test_the_authors_code(kernel: str) -> None:
    """Numbers of naive_path_attn, fla-org/flash-linear-attention ops/path_attn/naive.py @ bc3b101; rows 5, 66, 69."""
    n = 70
    q, k, v, w = (wave(1, n, 2, 4, a=a).transpose(1, 2) for a in (0.7, 1.1, 1.9, 1.3))
    path = HouseholderPath(F.normalize(w, dim=-1), (1 + wave(1, n, 2, a=0.9)).transpose(1, 2))
    out = attention(q, k, v, terms=(path,), mask=Causal(), scale=0.5, kernel=kernel)
    expected = [0.014433, 0.324943, -0.012989, -0.0219, 0.006643, -0.020755]
    assert out[0, :, [5, 66, 69]].sum(-1).T.flatten().tolist() == pytest.approx(expected, abs=5e-6)


def test_starts_and_sizes() -> None:
    path = PaTH(64, 4)
    assert path.down.shape == (32, 64)
    assert path.up.shape == (64, 32)
    assert path.taps.shape == (64, 3)
    assert not path.beta_bias.any()
    w, beta = path.path(Coordinates.span(5), torch.randn(2, 5, 64))
    assert w.shape == (2, 4, 5, 16)
    assert ((beta > 0) & (beta < 2)).all()
    assert path.path(Coordinates.span(5), torch.zeros(2, 5, 64))[1].eq(1).all()


def test_a_direction_is_bent_by_silu_before_it_is_normed() -> None:
    path = PaTH(1, 1, head_dim=2, rank=1, width=1).double()
    path.up.data.copy_(torch.tensor([[1.0], [-1.0]]))
    path.down.data.fill_(1)
    path.taps.data.fill_(1)
    w, _ = path.path(Coordinates.span(1), torch.full((1, 1, 1), 2.0))
    bent = torch.tensor([2 / (1 + math.exp(-2)), -2 / (1 + math.exp(2))], dtype=torch.float64)
    torch.testing.assert_close(w[0, 0, 0], F.normalize(bent, dim=0), atol=1e-6, rtol=0)


def test_the_convolution_reaches_two_tokens_back_and_stops_at_a_document() -> None:
    path, x = PaTH(8, 2).double(), torch.randn(1, 6, 8, dtype=torch.float64)
    torch.nn.init.normal_(path.taps)
    whole, _ = path.path(Coordinates.span(6), x)
    for t, back, same in ((5, 2, False), (5, 3, True)):
        other = x.clone()
        other[:, t - back] += 1
        assert torch.allclose(path.path(Coordinates.span(6), other)[0][:, :, t], whole[:, :, t]) == same
    packed, _ = path.path(Coordinates.packed([2, 4]), x)
    alone, _ = path.path(Coordinates.span(4), x[:, 2:])
    torch.testing.assert_close(packed[:, :, 2:], alone)
    assert not torch.allclose(whole[:, :, 2:], alone)
    padded, _ = path.path(Coordinates.padded([4], 6), x)
    torch.testing.assert_close(padded[:, :, 2:], alone)
    assert not padded[:, :, :2].any()


def test_query_heads_take_the_path_of_their_key_head() -> None:
    path, x = PaTH(16, 4, num_kv_heads=2).double(), torch.randn(1, 7, 16, dtype=torch.float64)
    for parameter in path.parameters():
        torch.nn.init.normal_(parameter)
    q, k = torch.randn(1, 4, 7, 4, dtype=torch.float64), torch.randn(1, 2, 7, 4, dtype=torch.float64)
    found = attention_steps(q, k, k, encoding=path, mask=Causal(), q_input=x, k_input=x).products[0]
    w, beta = path.path(Coordinates.span(7), x)
    for h in range(4):
        expected = literally(q[0, h], k[0, h // 2], w[0, h // 2], beta[0, h // 2])
        torch.testing.assert_close(found[h].tril(), expected)


def test_a_layer_with_a_cache_gives_what_a_full_pass_gives(
    monkeypatch: pytest.MonkeyPatch, check_cache: Callable[[MultiHeadAttention, int], None]
) -> None:
    """Left padding, several tokens at once and several blocks of rows included."""
    monkeypatch.setattr(reference, "BLOCK", 64)
    layer = MultiHeadAttention(16, 2, encoding=PaTH(16, 2)).double()
    assert isinstance(layer.encoding, PaTH)
    for parameter in layer.encoding.parameters():
        torch.nn.init.normal_(parameter)
    check_cache(layer, 16)


def test_bad_arguments() -> None:
    with pytest.raises(HeadwayError, match="num_kv_heads is 3 of 4 heads"):
        PaTH(16, 4, num_kv_heads=3)
    x, q = torch.randn(1, 3, 16), torch.randn(1, 2, 3, 4)
    with pytest.raises(
        HeadwayError,
        match="num_heads=4, head_dim=4, num_kv_heads=4: build it with num_heads=2, head_dim=4, num_kv_heads=2",
    ):
        attention(q, q, q, encoding=PaTH(16, 4), mask=Causal(), q_input=x, k_input=x)
    with pytest.raises(HeadwayError, match=r"masks\.Causal"):
        attention(q, q, q, encoding=PaTH(16, 2, head_dim=4), q_input=x, k_input=x)
