"""Stick-breaking: shares of one stick, with and without the query's own token, as the authors' code has it."""

import math

import pytest
import torch
from torch import Tensor

from headway import attention, attention_weights
from headway.masks import Boolean, Causal
from headway.positions._encodings.stick_breaking import StickBreaking


def wave(*shape: int, a: float) -> Tensor:
    return torch.sin(a * torch.arange(math.prod(shape), dtype=torch.float64)).view(shape)


def weights(encoding: StickBreaking, q: Tensor, k: Tensor, mask: object = None) -> Tensor:
    return attention_weights(q, k, k, encoding=encoding, mask=mask or Causal())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("attend_current", "remainder", "expected"),
    [
        (False, False, [0.420501, -0.370941, 0.356522, -0.012807]),
        (False, True, [0.491624, -0.370772, 0.167467, 0.009197]),
        (True, False, [0.458918, -0.231481, -0.205227, 0.523384]),
        (True, True, [0.507055, -0.231374, -0.277003, 0.529942]),
    ],
)
def test_the_authors_code(attend_current: bool, remainder: bool, expected: list[float]) -> None:
    """Numbers of stickbreaking() and 1 − Σ A, shawntan/stickbreaking-attention sb_ref.py @ 3147a38, rows 2 and 5."""
    q, k, v = (wave(1, 2, 6, 4, a=a) for a in (0.7, 1.1, 1.9))
    out = attention(q, k, v, encoding=StickBreaking(attend_current, remainder), mask=Causal())
    assert out[0, :, [2, 5]].sum(-1).flatten().tolist() == pytest.approx(expected, abs=2e-6)


def test_the_nearest_key_takes_its_share_first() -> None:
    """Scores of 0 break the stick in halves, from the query's neighbour on."""
    q = torch.zeros(1, 1, 4, 2, dtype=torch.float64)
    expected = torch.tensor([[0, 0, 0, 0], [0.5, 0, 0, 0], [0.25, 0.5, 0, 0], [0.125, 0.25, 0.5, 0]])
    torch.testing.assert_close(weights(StickBreaking(), q, q)[0, 0], expected.double())
    assert weights(StickBreaking(remainder=True), q, q)[0, 0, 3].tolist() == pytest.approx([0.125, 0.25, 0.5, 0.125])
    own = weights(StickBreaking(attend_current=True), q, q)[0, 0, 3]
    assert own.tolist() == pytest.approx([0.0625, 0.125, 0.25, 0.5])


def test_a_row_sums_to_at_most_one_and_with_the_remainder_to_one() -> None:
    q, k = 3 * torch.randn(2, 2, 3, 20, 4)
    for current in (False, True):
        assert (weights(StickBreaking(current), q, k).sum(-1) <= 1 + 1e-6).all()
        torch.testing.assert_close(weights(StickBreaking(current, True), q, k).sum(-1), torch.ones(2, 3, 20))


def test_what_is_hidden_breaks_nothing_off() -> None:
    """Hidden keys count as if they were not there, and a query hidden from itself is still not its own neighbour."""
    q, k = torch.randn(2, 1, 1, 5, 4, dtype=torch.float64)
    allowed = torch.ones(5, 5, dtype=torch.bool)
    allowed[:, 2] = False
    kept = [0, 1, 3, 4]
    found = weights(StickBreaking(), q, k, Causal() & Boolean(allowed))[..., kept, :][..., kept]
    torch.testing.assert_close(found, weights(StickBreaking(), q[:, :, kept], k[:, :, kept]))
    allowed = ~torch.eye(5, dtype=torch.bool)
    torch.testing.assert_close(
        weights(StickBreaking(), q, k, Causal() & Boolean(allowed)), weights(StickBreaking(), q, k)
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_thousands_of_shares_stay_finite(dtype: torch.dtype) -> None:
    q = torch.full((1, 1, 3000, 4), 40.0, dtype=dtype, requires_grad=True)
    out = attention(q, q, q, encoding=StickBreaking(), mask=Causal())
    out.sum().backward()
    assert out.isfinite().all()
    assert q.grad is not None
    assert q.grad.isfinite().all()
    assert not out[0, 0, 0].any()
