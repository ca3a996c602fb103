"""Cable: the authors' numbers, and the forgetting gate with the opposite sign."""

import math

import torch
from torch import Tensor

from headway import attention
from headway.masks import Causal
from headway.positions import Cable, ForgettingGate


def wave(*shape: int, a: float) -> Tensor:
    return torch.sin(a * torch.arange(math.prod(shape), dtype=torch.float64)).view(shape)


def drawn(kind: type[ForgettingGate], sign: int = 1) -> ForgettingGate:
    encoding = kind(8, 2).double()
    encoding.weight.data.copy_(sign * wave(2, 8, a=1.3))
    encoding.bias.data.copy_(sign * wave(2, a=1.5))
    return encoding


def out(encoding: ForgettingGate, scale: float | None) -> Tensor:
    x = wave(1, 5, 8, a=0.7)
    projected = x @ wave(24, 8, a=0.9).T + wave(24, a=1.1)
    q, k, v = (part.unflatten(-1, (2, 4)).transpose(1, 2) for part in projected.chunk(3, dim=-1))
    found = attention(q, k, v, encoding=encoding, mask=Causal(), scale=scale, q_input=x, k_input=x)
    return found.transpose(1, 2).flatten(2)[0, 4].detach()


def test_the_authors_numbers() -> None:
    """CausalSelfAttention of axiomlab/Cable, src/Cable.py at 8bc6b83, in float64: the last of 5 tokens, 2 heads."""
    expected = torch.tensor(
        [
            -0.659711785450294,
            2.79146028130368,
            4.10220559466682,
            1.94786357794305,
            -1.94901499564982,
            -4.36727581102777,
            -3.08759117753026,
            0.8592114980474,
        ],
        dtype=torch.float64,
    )
    torch.testing.assert_close(out(drawn(Cable), 1.0), expected, atol=1e-12, rtol=0)


def test_it_is_the_forgetting_gate_with_the_opposite_sign() -> None:
    torch.testing.assert_close(out(drawn(Cable), None), out(drawn(ForgettingGate, -1), None))
    assert not torch.allclose(out(drawn(Cable), None), out(drawn(ForgettingGate), None), atol=0.01)
