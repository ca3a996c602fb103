"""Every kernel keeps the promise on every term, alone and with sink, cap and log-sum-exp, and obeys every mask."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from headway import masks as M
from headway import terms as T
from headway.coordinates import Coordinates
from headway.kernels import KERNELS, Call, Problem
from headway.testing import kernels as checks

EVERYTHING = "sink, cap and log-sum-exp"
CROSSED = [("none", crossing) for crossing in checks.CROSSINGS]
CROSSED += [(term, EVERYTHING) for term in checks.term_names() if not checks.replaces_softmax(term)]
CROSSED += [(term, "alone") for term in checks.term_names() if term != "none"]
CROSSED += [(term, "cap") for term in checks.term_names() if checks.replaces_softmax(term)]
"""A term is checked with none and with all of sink, cap and log-sum-exp; each of these is checked without a term."""


# Kernels change first: what they are compared with is computed once for all that come in a row.
@pytest.mark.one_in(11)
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(("term", "crossing"), CROSSED)
def test_promise_on_terms(kernel: str, term: str, crossing: str) -> None:
    assert checks.keeps_the_promise(kernel, term, crossing)


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_kernel_takes_a_term_with_everything_or_alone(kernel: str) -> None:
    """Otherwise a crossing that it takes would be in no case of CROSSED."""

    def takes(term: str, crossing: str) -> bool:
        call, _ = checks.build(term, crossing, "window", 0, torch.float32, torch.float32)
        return not KERNELS[kernel].why_not(Problem.of(call))

    crossed = [term for term, crossing in CROSSED if crossing == EVERYTHING]
    for term in crossed:
        assert takes(term, EVERYTHING) or not any(takes(term, crossing) for crossing in checks.CROSSINGS[1:]), term


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("term", [x for x in checks.term_names() if x.startswith(("distance bias", "relative"))])
def test_promise_where_positions_rise_by_one(kernel: str, term: str) -> None:
    assert checks.keeps_the_promise(kernel, term, "sink", positions="rising by one")


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("mask", checks.mask_names())
def test_masks(kernel: str, mask: str) -> None:
    assert checks.obeys_the_mask(kernel, mask)
    assert checks.keeps_the_promise(kernel, "none", "alone", mask)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("term", checks.term_names())
def test_a_single_key(kernel: str, term: str) -> None:
    assert checks.gives_a_single_key_no_gradient(kernel, term)


@pytest.mark.parametrize("mask", ["holes", "window", "scores"])
@pytest.mark.parametrize("n", [3, 60], ids=["few queries", "many queries"])
@pytest.mark.parametrize("kernel", KERNELS)
def test_a_sink_that_is_not_finite_where_nothing_is_in_sight(kernel: str, n: int, mask: str) -> None:
    """A query that sees nothing, or scores of −∞, gives zeros and gradients of zero; its statistics are its sink's."""
    m, blind, nan = 70, 1, math.nan
    g = torch.Generator().manual_seed(n)
    shapes = ((2, 4, n, 8), (2, 2, m, 8), (2, 2, m, 6), (4, 9), (4, 9, 8), (4, 9, 6), (2, 4, n))
    drawn = [torch.randn(shape, generator=g) for shape in shapes]
    up, up_lse = torch.randn(2, 4, n, 6, generator=g), torch.randn(2, 4, n, generator=g)
    up_lse[:, :, blind] = 0
    seen = torch.rand(n, m, generator=g) < 0.5
    seen[blind] = False
    at = torch.arange(n)
    at[blind] = -1000

    def results(logit: float) -> list[Tensor]:
        q, k, v, table, keys, values, sink = (x.clone().requires_grad_() for x in drawn)
        by = T.Clip(-4, 4)
        sink.data[:, :, blind] = logit
        terms = (
            T.DistanceBias(T.Rows(table, by)),
            T.RelativeKeys(T.Rows(keys, by)),
            T.RelativeValues(T.Rows(values, by)),
            T.Sink(sink),
        )
        q_at, k_at = Coordinates(at[None, :, None], at[None]), Coordinates.span(m)
        seeing = M.Window(9, 4) if mask == "window" else M.Boolean(seen | (at == -1000)[:, None] & (mask == "scores"))
        if mask == "scores":  # the query sees keys, and each of its scores is −∞
            unseen = torch.zeros(1, 1, n).masked_fill(at == -1000, -math.inf)
            terms = (*terms, T.TokenBias(queries=unseen))
        call = Call(q, k, v, q_at, k_at, terms, seeing, 0.3, wants_lse=True, aligned=False)
        if reasons := KERNELS[kernel].why_not(Problem.of(call)):
            pytest.skip("; ".join(reasons))
        native: Any = KERNELS[kernel]
        lowered = native.lower(call)
        found = native.forward(lowered, True)
        out, lse = native.run(call)
        assert not out[:, :, blind].any()
        assert not found.out[:, :, blind].any()
        for statistic in (found.row_max, lse):
            torch.testing.assert_close(statistic[:, :, blind], torch.full((2, 4), logit), equal_nan=True)
        if not math.isinf(logit):
            assert found.row_sum[:, :, blind].isnan().all() == math.isnan(logit)
        leaves = [q, k, v, table, keys, values, sink]
        *grads, d_sink = torch.autograd.grad([out, lse], leaves, [up, up_lse])
        others = torch.arange(n) != blind
        return [x[:, :, others] for x in (out, lse, d_sink)] + grads

    finite = results(0.5)
    for logit in (nan, math.inf):
        for found, expected in zip(results(logit), finite, strict=True):
            assert torch.equal(found, expected)
