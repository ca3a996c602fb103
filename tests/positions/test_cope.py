"""Contextual positions: what counts, what is scaled, and two implementations by others."""

import math

import pytest
import torch
from torch import Tensor

from headway import attention_steps
from headway.errors import HeadwayError
from headway.masks import Causal, Window
from headway.positions._encodings.cope import CoPE


def scores(encoding: CoPE, q: Tensor, k: Tensor, **arguments: object) -> Tensor:
    return attention_steps(q, k, k, encoding=encoding, mask=arguments.pop("mask", Causal()), **arguments).scaled  # type: ignore[arg-type]


def drawn(head_dim: int = 8, max_positions: int = 6) -> CoPE:
    encoding = CoPE(head_dim, max_positions).double()
    torch.nn.init.normal_(encoding.vectors)
    return encoding


def test_starts_without_effect() -> None:
    assert CoPE(8).vectors.shape == (64, 8)
    assert not CoPE(8).vectors.any()


def test_open_gates_count_tokens() -> None:
    """With gates at 1, a key's position is i − j + 1: the query itself is at 1 and the vector 0 is for shut gates."""
    encoding = drawn(1, 4)
    q = torch.ones(1, 1, 5, 1, dtype=torch.float64)
    found = scores(encoding, q, 1000 * q, scale=1.0)[0, 0, 4] - 1000
    e = encoding.vectors.detach().flatten()
    torch.testing.assert_close(found, e[[3, 3, 3, 2, 1]])
    shut = scores(encoding, q, -1000 * q, scale=1.0)[0, 0, 4] + 1000
    torch.testing.assert_close(shut, e[[0] * 5])


def test_gates_read_scaled_scores_and_the_vectors_are_not_scaled() -> None:
    encoding = drawn(4, 3)
    q, k = torch.randn(2, 1, 1, 1, 4, dtype=torch.float64)
    z = (q @ k.mT).item() / 2
    p = 1 / (1 + math.exp(-z))
    low, high = (encoding.vectors[:2] @ q[0, 0, 0]).tolist()
    assert scores(encoding, q, k).item() == pytest.approx(z + (1 - p) * low + p * high)


def test_the_mask_comes_before_the_gates() -> None:
    """A window shuts the gates of what it hides: what a hidden key holds changes nothing."""
    encoding, (q, k) = drawn(), torch.randn(2, 1, 2, 9, 8, dtype=torch.float64)
    other = k.clone()
    other[:, :, 0] += 5
    mask = Causal() & Window(3, 0)
    a, b = (scores(encoding, q, keys, mask=mask)[:, :, 6:, 4:] for keys in (k, other))
    torch.testing.assert_close(a, b)
    assert not torch.allclose(scores(encoding, q, k)[:, :, 8, 0], scores(encoding, q, k, mask=mask)[:, :, 8, 0])


def test_x_transformers() -> None:
    """Theirs wants the scores masked beforehand."""
    theirs = pytest.importorskip("x_transformers.x_transformers").CoPE(dim=8, heads=2, max_pos=6).double()
    ours = drawn()
    theirs.pos_emb.data.copy_(ours.vectors.data)
    q, k = torch.randn(2, 3, 2, 12, 8, dtype=torch.float64)
    z = q @ k.mT / math.sqrt(8)
    hidden = torch.ones(12, 12, dtype=torch.bool).triu(1)
    expected = z + theirs(q, z.masked_fill(hidden, -torch.finfo(z.dtype).max))
    torch.testing.assert_close(scores(ours, q, k).tril(), expected.tril())


def test_bad_arguments() -> None:
    with pytest.raises(HeadwayError, match="max_positions is 1"):
        CoPE(8, 1)
    with pytest.raises(HeadwayError, match="head_dim=4"):
        scores(drawn(), *torch.randn(2, 1, 1, 3, 4, dtype=torch.float64))
