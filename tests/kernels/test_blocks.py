"""Blocks of a call, by their smallest user: the entropy of each row of weights."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from encoded_calls import IN_ATTENTION, encoded
from torch import Tensor

import headway as hw
from headway import masks as M
from headway import terms as T
from headway.call import make_call
from headway.kernels import Call, reference, score_blocks
from headway.testing import kernels as checks


def entropy(call: Call) -> Tensor:
    """−Σⱼ A·ln A of each query over the keys, in nats: [batch, heads, n]"""
    found = [call.q.new_empty(*call.q.shape[:2], 0, dtype=torch.float64)]
    for block in score_blocks(call):
        weights = block.log_weights.double().exp()
        found.append(-torch.special.xlogy(weights, weights).sum(-1))
    return torch.cat(found, dim=2)


def dense_entropy(weights: Tensor) -> Tensor:
    return -torch.special.xlogy(weights.double(), weights.double()).sum(-1)


def by_name(name: str, **arguments: Any) -> tuple[Call, Tensor]:
    """A call of float64 tensors, and its dense weights."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, heads, tokens, 8, dtype=torch.float64) for heads, tokens in ((4, 9), (2, 13), (2, 13)))
    return make_call(q, k, v, **arguments), hw.attention_weights(q, k, v, **arguments)


CALLS: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"mask": M.Causal()},
    "a window, a sink and a cap": {"mask": M.Window(3, 1), "sink": torch.randn(4).double(), "soft_cap": 2.0},
    "rows and columns without anybody": {"mask": checks.mask_examples(2, 9, 13)["holes"]},
    "dropout": {"dropout": 0.5, "dropout_seed": 1},
    "a normalizer": {"terms": (T.Normalizer(lambda s, a: s.sigmoid().masked_fill(~a, 0)),)},
}


@pytest.mark.parametrize("size", [1, 60, 1 << 21])
@pytest.mark.parametrize("name", CALLS)
def test_entropy_is_that_of_the_dense_weights(name: str, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference, "BLOCK", size)
    call, weights = by_name(name, **CALLS[name])
    torch.testing.assert_close(entropy(call), dense_entropy(weights), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", IN_ATTENTION)
def test_every_encoding(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference, "BLOCK", 150)
    qkv, arguments = encoded(name)
    weights = hw.attention_weights(*qkv, **arguments)
    torch.testing.assert_close(entropy(make_call(*qkv, **arguments)), dense_entropy(weights), rtol=1e-9, atol=1e-9)


def test_a_block_holds_no_more_than_it_may_and_no_graph() -> None:
    q, k, v = (torch.randn(1, 2, 3000, 4, requires_grad=True) for _ in range(3))
    seen = 0
    for block in score_blocks(make_call(q, k, v, mask=M.Window(99, 0))):
        assert block.scores.numel() <= reference.BLOCK
        assert block.scores.shape == block.log_weights.shape
        assert block.scores.shape[2:] == (block.rows.stop - block.rows.start, block.keys.stop - block.keys.start)
        assert not block.scores.requires_grad
        assert torch.is_grad_enabled()
        seen += block.rows.stop - block.rows.start
        assert block.keys.start == max(0, block.rows.start - 99)
    assert seen == 3000


def test_a_query_that_sees_nothing_under_a_sink_that_is_nan() -> None:
    """Its weights are 0, and its scores and their logarithms −∞; so are those of what the others may not see."""
    q, k, v = (torch.randn(1, 2, 5, 4) for _ in range(3))
    seen = torch.rand(5, 5) < 0.7
    seen[2] = False
    sink = torch.randn(1, 2, 5)
    sink[:, :, 2:4] = math.nan
    (block,) = score_blocks(make_call(q, k, v, mask=seen, sink=sink))
    for x in (block.scores, block.log_weights):
        assert (x[:, :, ~seen] == -math.inf).all()
    assert block.log_weights[:, :, 3, seen[3]].isnan().all()
    assert not hw.attention_weights(q, k, v, mask=seen, sink=sink)[:, :, 2].any()
