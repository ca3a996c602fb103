"""Calls that compute a part of another: of its batch and heads, or of its keys."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from headway import masks as M
from headway import terms as T
from headway.call import make_call
from headway.kernels import KERNELS, Call
from headway.kernels.cpu import _library

with_library = pytest.mark.skipif(_library._load().c is None, reason="the library is not there")

# Parts of the batch and of the heads ----------------------------------------------------------------------------------

BATCH, HEADS, KV_HEADS, WIDTH = 4, 6, 3, 8
KERNELS_HERE = [pytest.param("cpu", marks=with_library), "reference"]


def dropping(n: int, m: int, rows: slice, heads: slice) -> tuple[Call, list[Tensor]]:
    """A call with dropout on these rows of the batch and these heads alone, and its leaves."""
    g = torch.Generator().manual_seed(n)
    group = HEADS // KV_HEADS
    kv_heads = slice(heads.start // group, heads.stop // group)
    q, k, v = (torch.randn(BATCH, h, t, WIDTH, generator=g) for h, t in ((HEADS, n), (KV_HEADS, m), (KV_HEADS, m)))
    sink, table, token = (torch.randn(s, generator=g) for s in ((BATCH, HEADS, n), (HEADS, 9), (BATCH, 1, m)))
    parts = q[rows, heads], k[rows, kv_heads], v[rows, kv_heads], sink[rows, heads], table[heads], token[rows]
    leaves = [x.clone().requires_grad_() for x in parts]
    q, k, v, sink, table, token = leaves
    terms = (T.DistanceBias(T.Rows(table, T.Clip(-4, 4))), T.TokenBias(keys=token))
    call = make_call(q, k, v, terms=terms, sink=sink, mask=M.Causal(), dropout=0.5)
    return replace(call, seed=torch.tensor([(3 << 40) + 12345]), wants_lse=True), leaves


def results(call: Call, leaves: list[Tensor], kernel: str, up: Tensor) -> list[Tensor]:
    out, lse = KERNELS[kernel].run(call)
    assert lse is not None
    return [out, lse, *torch.autograd.grad([out, lse], leaves, [up, up[..., 0]])]


@pytest.mark.parametrize("n", [1, 5, 60])
@pytest.mark.parametrize("kernel", KERNELS_HERE)
def test_a_part_of_the_batch_and_of_the_heads_drops_what_the_whole_drops(kernel: str, n: int) -> None:
    m = 70
    rows, heads = slice(1, 3), slice(2, 4)
    up = torch.randn(BATCH, HEADS, n, WIDTH, generator=torch.Generator().manual_seed(1))
    whole, leaves = dropping(n, m, slice(0, BATCH), slice(0, HEADS))
    alone = torch.zeros_like(up)  # so that what rows and heads share has its gradient from the part alone
    alone[rows, heads] = up[rows, heads]
    out, lse, d_q, d_k, d_v, d_sink, d_table, d_token = results(whole, leaves, kernel, alone)
    expected = [x[rows, heads] for x in (out, lse, d_q)] + [x[rows, 1:2] for x in (d_k, d_v)]
    expected += [d_sink[rows, heads], d_table[heads], d_token[rows]]
    call, leaves = dropping(n, m, rows, heads)
    found = results(replace(call, batch_offset=1, head_offset=2), leaves, kernel, up[rows, heads])
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
    for offsets in ({}, {"batch_offset": 1}, {"head_offset": 2}, {"batch_offset": 2, "head_offset": 1}):
        other = results(replace(call, **offsets), leaves, kernel, up[rows, heads])
        assert not torch.allclose(other[0], expected[0], atol=1e-2)


@with_library
def test_both_kernels_drop_the_same_at_any_offset() -> None:
    call, leaves = dropping(60, 70, slice(0, 2), slice(0, 2))
    up = torch.ones(2, 2, 60, WIDTH)
    for batch_offset, head_offset in ((0, 0), (7, 1 << 31), ((1 << 32) - 1, 3), ((1 << 33) + 1, 0)):
        moved = replace(call, batch_offset=batch_offset, head_offset=head_offset)
        for a, b in zip(*(results(moved, leaves, kernel, up) for kernel in ("cpu", "reference")), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
