"""The facts that a kernel decides by are those of the call."""

from __future__ import annotations

import pytest
import torch

from headway.call import make_call
from headway.coordinates import Coordinates
from headway.kernels import Problem
from headway.kernels._problem import without_tables
from headway.positions import T5, RoPE


def test_sizes_dtype_device_and_strides() -> None:
    q, k, v = (
        torch.randn(2, tokens, heads, width).transpose(1, 2).half()
        for tokens, heads, width in ((3, 4, 8), (5, 2, 8), (5, 2, 6))
    )
    problem = Problem.of(make_call(q, k, v, encoding=RoPE(8), dropout=0.25))
    assert (problem.batch, problem.heads, problem.kv_heads, problem.n, problem.m) == (2, 4, 2, 3, 5)
    assert (problem.head_dim, problem.v_head_dim, problem.dtype, problem.device) == (8, 6, torch.float16, "cpu")
    assert (problem.dropout, problem.wants_lse, problem.aligned, problem.terms, problem.mask) == (
        0.25,
        False,
        True,
        (),
        None,
    )
    assert problem.strides == (q.stride(), k.stride(), v.stride())
    assert problem.capability is None


def test_rows_of_coordinates() -> None:
    q = torch.randn(3, 2, 4, 8)
    for positions, rows in ((None, 1), (torch.arange(4), 1), (torch.arange(12).view(3, 4), 3)):
        assert Problem.of(make_call(q, q, q, encoding=RoPE(8), q_positions=positions)).coordinate_rows == rows
    at = Coordinates.padded([4, 2, 1], 4)
    assert Problem.of(make_call(q, q, q, q_positions=at)).coordinate_rows == 3


@pytest.mark.parametrize("wanted", [set(), {"q"}, {"k", "v"}, {"terms"}, {"q", "positions"}])
def test_what_wants_a_gradient(wanted: set[str]) -> None:
    q, k, v = (torch.randn(1, 2, 4, 8, requires_grad=name in wanted) for name in "qkv")
    encoding = T5(2).requires_grad_("terms" in wanted)
    positions = torch.arange(4.0, requires_grad="positions" in wanted)
    call = make_call(q, k, v, encoding=encoding, q_positions=positions)
    problem = Problem.of(call)
    assert problem.wanted == wanted
    assert problem.positions_want_gradient is ("positions" in wanted)
    with torch.no_grad():
        assert problem.wanted == frozenset()
        assert not problem.positions_want_gradient
    assert Problem.of(without_tables(call)).wanted == wanted
