"""A position that content advances: which gate, whose step counts, the authors' numbers."""

import math

import pytest
import torch
from torch import Tensor

from headway import attention
from headway.coordinates import Coordinates
from headway.errors import HeadwayError
from headway.masks import Causal
from headway.positions._encodings.grape_m import GRAPEM
from headway.positions._encodings.grape_m_contextual import GRAPEMContextual


def wave(*shape: int, a: float, b: float = 0.0) -> Tensor:
    return torch.sin(a * torch.arange(math.prod(shape), dtype=torch.float64) + b).view(shape)


def prepared(encoding: GRAPEMContextual, q: Tensor, k: Tensor, x: Tensor) -> Tensor:
    at = encoding.place(Coordinates.span(x.shape[1]))
    q_at, k_at = encoding.relocate(at, at, x, x)
    return encoding.prepare_query(q, q_at) @ encoding.prepare_key(k, k_at).mT


@pytest.mark.parametrize(
    ("per_head", "gate_scale", "expected"),
    [
        (
            False,
            16.0,
            [
                0.295916,
                -0.052094,
                -0.375108,
                0.348749,
                0.149195,
                -0.91712,
                -0.007246,
                -0.013434,
                -0.49899,
                1.227753,
                -1.695535,
                1.713477,
            ],
        ),
        (
            True,
            2.0,
            [
                0.445021,
                -0.046906,
                -0.781989,
                0.344192,
                0.286857,
                -0.91712,
                0.088567,
                -0.0266,
                -0.074076,
                1.120575,
                -1.970576,
                1.713477,
            ],
        ),
    ],
)
def test_the_authors_code(per_head: bool, gate_scale: float, expected: list[float]) -> None:
    """Numbers of MSGRAPEContextType1, model-architectures/GRAPE model/llama-mha-grape-m-ctx.py @ f5b539f."""
    encoding = GRAPEMContextual(8, 2, per_head=per_head, gate_scale=gate_scale).double()
    encoding.weight.data.copy_(4 * wave(*encoding.weight.shape, a=0.4))
    encoding.bias.data.copy_(wave(*encoding.bias.shape, a=0.9, b=1))
    q, k = (wave(1, 6, 2, 4, a=a).transpose(1, 2) for a in (0.7, 1.1))
    found = prepared(encoding, q, k, wave(1, 6, 8, a=0.6))[0, :, 5]
    assert found.flatten().tolist() == pytest.approx(expected, abs=5e-6)


@pytest.mark.parametrize(("gate", "step"), [("sigmoid", 0.3937), ("softplus", 0.001)])
def test_starts_with_one_step_for_all_tokens(gate: str, step: float) -> None:
    """Then it is GRAPE-M at positions that many times smaller."""
    encoding, plain = GRAPEMContextual(16, 2, gate=gate).double(), GRAPEM(8, log_scale=1.0).double()
    q, k = torch.randn(2, 1, 2, 7, 8, dtype=torch.float64)
    at = Coordinates.of(step * torch.arange(7), 7)
    expected = plain.prepare(q, at) @ plain.prepare(k, at).mT
    torch.testing.assert_close(prepared(encoding, q, k, torch.randn(1, 7, 16)), expected, atol=1e-3, rtol=0)


def test_a_tokens_own_step_moves_what_comes_after_it() -> None:
    encoding = GRAPEMContextual(16, 2)
    torch.nn.init.normal_(encoding.weight)
    q, k = torch.randn(2, 1, 2, 7, 8)
    x = torch.randn(1, 7, 16)
    other = x.clone()
    other[:, 3] += 1
    changed = (prepared(encoding, q, k, x) - prepared(encoding, q, k, other)).abs().amax((0, 1)) > 1e-6
    assert changed.tolist() == [[(i <= 3) != (j <= 3) for j in range(7)] for i in range(7)]


def test_bad_arguments() -> None:
    with pytest.raises(HeadwayError, match="gate is 'relu'"):
        GRAPEMContextual(16, 2, gate="relu")
    with pytest.raises(HeadwayError, match="gate_scale is 0"):
        GRAPEMContextual(16, 2, gate_scale=0)
    q = torch.randn(1, 2, 3, 8)
    with pytest.raises(HeadwayError, match="call relocate first"):
        GRAPEMContextual(16, 2).prepare(q, Coordinates.span(3))
    with pytest.raises(HeadwayError, match="q_input is None"):
        attention(q, q, q, encoding=GRAPEMContextual(16, 2), mask=Causal())
