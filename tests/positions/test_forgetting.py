"""The forgetting gate: which tokens of a path count, where it starts, and three implementations by others."""

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from headway import attention, attention_steps
from headway.coordinates import Coordinates
from headway.errors import HeadwayError
from headway.masks import Causal, Padding
from headway.positions import RoPE
from headway.positions._compose import Compose
from headway.positions._encodings.forgetting import ForgettingGate
from headway.terms import TokenBias


def wave(*shape: int, a: float) -> Tensor:
    return torch.sin(a * torch.arange(math.prod(shape), dtype=torch.float64)).view(shape)


def bias_of(gate: ForgettingGate, x: Tensor, at: Coordinates | None = None) -> Tensor:
    at = Coordinates.span(x.shape[1]) if at is None else at
    (term,) = gate.terms(at, at, x, x)
    assert isinstance(term, TokenBias)
    assert term.queries is not None
    assert term.keys is not None
    return term.queries[..., :, None] + term.keys[..., None, :]


def test_starts_as_the_authors_code() -> None:
    """Without a bias every gate is near a half: a token is halved for each step that it lies back."""
    gate = ForgettingGate(512, 8)
    assert gate.bias.eq(0).all()
    assert gate.weight.std().item() == pytest.approx(0.02, rel=0.1)
    assert bias_of(gate, torch.zeros(1, 4, 512))[0, 0, 3].tolist() == pytest.approx(
        [-k * math.log(2) for k in (3, 2, 1, 0)]
    )


def test_the_querys_own_gate_counts_and_the_keys_does_not() -> None:
    gate = ForgettingGate(1, 1).double()
    gate.weight.data.fill_(1)
    x = torch.tensor([1.0, 2.0, -3.0], dtype=torch.float64).view(1, 3, 1)
    expected = [sum(math.log(1 / (1 + math.exp(-z))) for z in path) for path in ((2, -3), (-3,), ())]
    assert bias_of(gate, x)[0, 0, 2].tolist() == pytest.approx(expected)


def test_flash_linear_attention() -> None:
    """Numbers of naive_forgetting_attn, fla-org/flash-linear-attention fla/ops/forgetting_attn/naive.py @ bc3b101."""
    q, k, v = (wave(1, 6, 2, 4, a=a).transpose(1, 2) for a in (0.7, 1.1, 1.9))
    sums = F.logsigmoid(2 * wave(1, 6, 2, a=0.9)).cumsum(1).transpose(1, 2)
    found = attention(q, k, v, terms=(TokenBias(sums, -sums),), mask=Causal())[0, :, 5]
    expected = [0.345449, -0.047135, -0.314973, 0.25079, 0.734886, -0.58532, -0.35643, 0.81578]
    assert found.flatten().tolist() == pytest.approx(expected, abs=2e-6)


def test_x_transformers() -> None:
    theirs = pytest.importorskip("x_transformers.x_transformers").DataDependentAlibi(24, 3)
    ours = ForgettingGate(24, 3)
    linear = theirs.to_forget_gates[0]
    ours.load_state_dict({"weight": linear.weight, "bias": linear.bias})
    x = torch.randn(2, 9, 24)
    torch.testing.assert_close(bias_of(ours, x).float().tril(), theirs(x).tril())


def test_padding_in_front_is_not_forgotten_through() -> None:
    """What stands in the padding, even NaN, plays no part."""
    gate, x = ForgettingGate(8, 2).double(), torch.randn(1, 6, 8, dtype=torch.float64)
    dirty = torch.cat([torch.full((1, 3, 8), math.nan, dtype=torch.float64), x], dim=1)
    padded = bias_of(gate, dirty, Coordinates.padded([6], 9))
    torch.testing.assert_close(padded[..., 3:, 3:], bias_of(gate, x))
    q, k, v = torch.randn(3, 1, 2, 9, 4, dtype=torch.float64)
    arguments = {
        "encoding": gate,
        "mask": Causal() & Padding(torch.tensor([6]), "left"),
        "q_input": dirty,
        "k_input": dirty,
    }
    at = Coordinates.padded([6], 9)
    assert attention(q, k, v, q_positions=at, k_positions=at, **arguments).isfinite().all()


def test_a_long_stream_keeps_its_near_past() -> None:
    """100 000 tokens further on the bias between neighbours is the same to 2⁻²⁴ of the sum."""
    gate, x = ForgettingGate(4, 1), torch.zeros(1, 100_000, 4)
    (term,) = gate.terms(Coordinates.span(x.shape[1]), Coordinates.span(x.shape[1]), x, x)
    assert isinstance(term, TokenBias)
    assert term.queries is not None
    assert term.keys is not None
    step = term.queries[0, 0, -1] + term.keys[0, 0, -2]
    assert step.item() == pytest.approx(-math.log(2), abs=1e-9)


def test_it_composes_with_a_rotation() -> None:
    gate, rope, x = ForgettingGate(16, 2), RoPE(8), torch.randn(1, 5, 16)
    q, k, v = torch.randn(3, 1, 2, 5, 8)
    both = attention_steps(q, k, v, encoding=Compose(gate, rope), mask=Causal(), q_input=x, k_input=x)
    alone = attention_steps(q, k, v, encoding=rope, mask=Causal())
    torch.testing.assert_close(both.scaled, alone.scaled + bias_of(gate, x).float())


def test_bad_arguments() -> None:
    with pytest.raises(HeadwayError, match="num_heads is 0"):
        ForgettingGate(8, 0)
    at = Coordinates.span(3)
    with pytest.raises(HeadwayError, match="embed_dim"):
        ForgettingGate(8, 2).terms(at, at, torch.zeros(1, 3, 7), torch.zeros(1, 3, 7))
    with pytest.raises(HeadwayError, match="which is None"):
        ForgettingGate(8, 2).terms(at, at)
