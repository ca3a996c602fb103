"""A path that fades: whether the scale multiplies the gates."""

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from headway import attention, attention_steps
from headway.masks import Causal
from headway.positions import Compose
from headway.positions._encodings.forgetting import ForgettingGate
from headway.positions._encodings.path import PaTH
from headway.positions._encodings.path_fox import PaTHFoX
from headway.terms import HouseholderPath


def wave(*shape: int, a: float) -> Tensor:
    return torch.sin(a * torch.arange(math.prod(shape), dtype=torch.float64)).view(shape)


@pytest.mark.parametrize("kernel", ["auto", "reference"])
def test_the_authors_code(kernel: str) -> None:
    """Numbers of naive_path_attn with gates, fla-org/flash-linear-attention @ bc3b101, rows 5, 66, 69."""
    n = 70
    q, k, v, w = (wave(1, n, 2, 4, a=a).transpose(1, 2) for a in (0.7, 1.1, 1.9, 1.3))
    beta = (1 + wave(1, n, 2, a=0.9)).transpose(1, 2)
    sums = F.logsigmoid(2 + wave(1, n, 2, a=0.5)).cumsum(1).transpose(1, 2)
    path = HouseholderPath(F.normalize(w, dim=-1), beta, sums, sums)
    out = attention(q, k, v, terms=(path,), mask=Causal(), scale=0.5, kernel=kernel)
    expected = [0.005345, 0.362922, -0.055593, -0.107483, 0.024487, -0.097395]
    assert out[0, :, [5, 66, 69]].sum(-1).T.flatten().tolist() == pytest.approx(expected, abs=5e-6)


@pytest.mark.parametrize("scale", [None, 0.3])
def test_the_scale_multiplies_the_gates_here_and_not_where_two_are_composed(scale: float | None) -> None:
    both = PaTHFoX(16, 2).double()
    path, gate = PaTH(16, 2).double(), ForgettingGate(16, 2).double()
    gate.load_state_dict(both.gate.state_dict())
    path.load_state_dict(both.state_dict(), strict=False)
    x = torch.randn(1, 6, 16, dtype=torch.float64)
    q, k, v = torch.randn(3, 1, 2, 6, 8, dtype=torch.float64)

    def scores(encoding: PaTH | Compose) -> Tensor:
        steps = attention_steps(q, k, v, encoding=encoding, mask=Causal(), scale=scale, q_input=x, k_input=x)
        return steps.scaled

    alone = scores(path)
    composed, authors = scores(Compose(path, gate)) - alone, scores(both) - alone
    torch.testing.assert_close(authors, (8**-0.5 if scale is None else scale) * composed)
