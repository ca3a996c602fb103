"""Slopes that content sets: the authors' numbers, ALiBi as a special case, the scale."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from headway import Coordinates, attention, attention_steps, explain
from headway.errors import HeadwayError
from headway.masks import Causal
from headway.positions._encodings.alibi import ALiBi
from headway.positions._encodings.grape_a import GRAPEA


def wave(*shape: int, a: float) -> Tensor:
    return torch.sin(a * torch.arange(math.prod(shape), dtype=torch.float64)).view(shape)


def added(encoding: GRAPEA, q: Tensor, k: Tensor, **arguments: object) -> Tensor:
    steps = attention_steps(q, k, k, encoding=encoding, mask=Causal(), **arguments)  # type: ignore[arg-type]
    return (steps.scaled - q @ k.repeat_interleave(q.shape[1] // k.shape[1], 1).mT / math.sqrt(q.shape[-1])).tril()


@pytest.mark.parametrize(
    ("gate", "expected"),
    [
        (
            "key",
            [
                -0.330321,
                -0.174853,
                -0.039338,
                -0.212024,
                -0.008942,
                0,
                -0.001147,
                -0.01352,
                -0.003347,
                -0.001251,
                -0.004128,
                0,
            ],
        ),
        (
            "both",
            [
                -0.51968,
                -0.32634,
                -0.152953,
                -0.287768,
                -0.046814,
                0,
                -0.008564,
                -0.019454,
                -0.007797,
                -0.004218,
                -0.005612,
                0,
            ],
        ),
    ],
)
def test_the_authors_code(gate: str, expected: list[float]) -> None:
    """Numbers of KeyGatedAdditiveBias and QueryKeyGatedAdditiveBias, model-architectures/GRAPE @ f5b539f, row 5."""
    encoding = GRAPEA(2, 4, gate).double()
    encoding.omega.data.copy_(torch.tensor([0.3, -0.4]))
    encoding.key_weight.data.copy_(wave(2, 4, a=1.7))
    if gate == "both":
        encoding.query_weight.data.copy_(wave(2, 4, a=2.3))
    q, k = (3 * wave(1, 6, 2, 4, a=a).transpose(1, 2) for a in (0.7, 1.1))
    assert added(encoding, q, k)[0, :, 5].flatten().tolist() == pytest.approx(expected, abs=2e-6)


def test_content_that_says_nothing_leaves_alibi() -> None:
    """Keys of zeros open every gate by ln 2, and ω starts with a factor of 1."""
    q, k = torch.randn(1, 6, 5, 8, dtype=torch.float64), torch.zeros(1, 6, 5, 8, dtype=torch.float64)
    alibi = attention_steps(q, k, k, encoding=ALiBi(6)).scaled
    torch.testing.assert_close(added(GRAPEA(6, 8).double(), q, k), math.log(2) * alibi.tril(), atol=1e-6, rtol=0)


def test_only_the_direction_of_the_weights_counts() -> None:
    encoding, (q, k) = GRAPEA(2, 8, "query").double(), torch.randn(2, 1, 2, 5, 8, dtype=torch.float64)
    before = added(encoding, q, k)
    encoding.query_weight.data.mul_(7)
    torch.testing.assert_close(added(encoding, q, k), before)


def test_keys_with_fewer_heads() -> None:
    encoding, q, k = GRAPEA(4, 8).double(), *(torch.randn(1, h, 5, 8, dtype=torch.float64) for h in (4, 2))
    torch.testing.assert_close(added(encoding, q, k), added(encoding, q, k.repeat_interleave(2, 1)))


def test_far_away_the_distance_is_exact() -> None:
    q, k = torch.randn(2, 1, 2, 5, 8)
    at = torch.arange(5) + 16_000_000
    encoding = GRAPEA(2, 8)
    far, near = (
        attention(q, k, k, encoding=encoding, mask=Causal(), q_positions=p, k_positions=p) for p in (at, at - at[0])
    )
    assert torch.equal(far, near)


@pytest.mark.parametrize("gate", ["key", "query", "both"])
@pytest.mark.parametrize(
    "at",
    [
        torch.arange(7).flip(0),
        torch.tensor([0.5, -3.25, 2.0, 2.0, 7.75, 1e6, 1e6 + 0.5], dtype=torch.float64),
        torch.tensor([0, 1, 5, 5, 2, -4, 3]) + 2**40,
        Coordinates.packed([3, 4]),
    ],
    ids=["falling", "fractions", "gaps", "packed"],
)
def test_any_positions(score_gap: Callable[..., float], gate: str, at: Tensor | Coordinates) -> None:
    """Also those that do not rise by one, in the reference kernel and in the CPU kernel."""
    torch.manual_seed(0)
    encoding = GRAPEA(4, 8, gate)
    assert score_gap(encoding, at) < 1e-10
    where = at if isinstance(at, Coordinates) else Coordinates.of(at, 7)
    assert bool((where.position[..., 0].diff() != 1).any())
    q, k, v = torch.randn(3, 1, 4, 7, 8)
    call: Any = {"encoding": encoding, "mask": Causal(), "q_positions": where, "k_positions": where}
    assert explain(q, k, v, **call).kernel in ("cpu", "reference")  # the latter without the library
    torch.testing.assert_close(attention(q, k, v, **call), attention(q, k, v, kernel="reference", **call))


@pytest.mark.parametrize("side", ["left", "right"])
def test_a_padded_row_is_that_row_alone(side: str) -> None:
    q, k, v = torch.randn(3, 2, 4, 7, 8, dtype=torch.float64)
    encoding, at = GRAPEA(4, 8, "both").double(), Coordinates.padded([7, 4], 7, side=side)
    found = attention(q, k, v, encoding=encoding, mask=Causal(), q_positions=at, k_positions=at)
    real = slice(3, 7) if side == "left" else slice(0, 4)
    alone = attention(*(x[1:, :, real] for x in (q, k, v)), encoding=encoding, mask=Causal())
    torch.testing.assert_close(found[1, :, real], alone[0])


def test_bad_arguments() -> None:
    with pytest.raises(HeadwayError, match="gate is 'value'"):
        GRAPEA(2, 8, "value")
    q = torch.randn(1, 3, 5, 8)
    with pytest.raises(HeadwayError, match="num_heads=3"):
        attention(q, q, q, encoding=GRAPEA(2, 8), mask=Causal())
