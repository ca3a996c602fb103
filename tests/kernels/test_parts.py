"""Calls that compute a part of another: of its batch and heads, or of its keys."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from headway import masks as M
from headway import terms as T
from headway.call import make_call
from headway.coordinates import Coordinates
from headway.kernels import KERNELS, Call, _autograd, _ops, reference
from headway.kernels._problem import without_tables
from headway.kernels.cpu import _library

with_library = pytest.mark.skipif(_library._load().c is None, reason="the library is not there")

# Parts of the batch and of the heads ----------------------------------------------------------------------------------

BATCH, HEADS, KV_HEADS, WIDTH = 4, 6, 3, 8
KERNELS_HERE = [pytest.param("cpu", marks=with_library), "reference"]


def dropping(n: int, m: int, rows: slice, heads: slice) -> tuple[Call, list[Tensor]]:
    """A call with dropout on only these rows of the batch and these heads, and its leaves."""
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


# Parts of the keys ----------------------------------------------------------------------------------------------------

TOKENS, EDGES = 241, (0, 130, 130, 137, 241)
"""Keys, and where parts begin and end: one holds none, and none fills a block."""
HOLES = torch.rand(TOKENS, TOKENS, generator=torch.Generator().manual_seed(4)) < 0.3
HOLES[-1, 137:], HOLES[-2], HOLES[-3, :137] = False, False, False  # of one part, of none, of the other
MASKS: dict[str, Callable[[int, int, int], M.Mask | None]] = {
    "none": lambda n, low, high: None,
    "causal": lambda n, low, high: M.Causal(),
    "window": lambda n, low, high: M.Window(30, 9) | M.KeepFirst(2),
    "holes": lambda n, low, high: M.Boolean(HOLES[-n:, low:high]),
}
SINKS: dict[str, tuple[int, ...]] = {"no sink": (), "sink": (4,), "sink by query": (2, 4, TOKENS)}


class Case:
    """Attention of the last n of ``TOKENS`` tokens, over all keys or some; ``leaves``, on which it depends, by name."""

    def __init__(self, n: int, mask: str, sink: str, dropout: float = 0.0, size: float = 1.0) -> None:
        self.n, self.mask, self.dropout = n, mask, dropout
        g = torch.Generator().manual_seed(n)
        shapes = {
            "q": (2, 4, n, 16), "k": (2, 2, TOKENS, 16), "v": (2, 2, TOKENS, 12), "table": (4, 9), "keys": (1, 9, 16),
            "values": (4, 9, 12), "token": (2, 4, TOKENS), "factor": (1, 4, n), "slope": (4,),
        }  # fmt: skip
        self.leaves = {name: torch.randn(shape, generator=g) for name, shape in shapes.items()}
        self.leaves["q"] *= size
        self.leaves["slope"] *= 0.02
        self.up, self.up_lse = torch.randn(2, 4, n, 12, generator=g), torch.randn(2, 4, n, generator=g)
        if SINKS[sink]:
            logits = torch.randn(SINKS[sink], generator=g)
            self.leaves["sink"] = logits if logits.ndim == 1 else logits[..., -n:]

    def call(
        self, low: int = 0, high: int = TOKENS, dtype: torch.dtype = torch.float32
    ) -> tuple[Call, dict[str, Tensor]]:
        """The call on the keys low … high − 1, and its leaves; a part of the keys leaves out the sink."""
        own = dict(self.leaves)
        own["k"], own["v"], own["token"] = (
            own["k"][:, :, low:high],
            own["v"][:, :, low:high],
            own["token"][..., low:high],
        )
        own = {name: x.to(dtype, copy=True) for name, x in own.items()}
        by = T.Clip(-4, 4)
        terms: list[T.Term] = [
            T.QueryScale(own["factor"]),
            T.DistanceBias(T.Rows(own["table"], by)),
            T.DistanceBias(T.Linear(own["slope"], own["slope"])),
            T.RelativeKeys(T.Rows(own["keys"], by)),
            T.RelativeValues(T.Rows(own["values"], by)),
            T.TokenBias(keys=own["token"]),
        ]
        if "sink" in own:
            terms.append(T.Sink(own["sink"]))
        at = Coordinates.of(torch.arange(TOKENS), TOKENS)
        return Call(
            own["q"], own["k"], own["v"], at.rows(TOKENS - self.n, TOKENS), at.rows(low, high), tuple(terms),
            MASKS[self.mask](self.n, low, high), 0.25, self.dropout, torch.tensor([99]), wants_lse=True,
            include_sink=high - low == TOKENS, aligned=False,
        ), own  # fmt: skip

    def exact(self) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Output, log-sum-exp and gradients of the whole in float64."""
        call, own = self.call(dtype=torch.float64)
        for x in own.values():
            x.requires_grad_()
        out, lse = KERNELS["reference"].run(call)
        assert lse is not None
        seen = lse.masked_fill(lse == -math.inf, 0)
        loss = (out * self.up).sum() + (seen * self.up_lse).sum()
        grads = torch.autograd.grad(loss, list(own.values()))
        return out.detach(), lse.detach(), dict(zip(own, grads, strict=True))


Sides = tuple[Tensor, Tensor, Tensor, Tensor]
"""out, the log-sum-exp, row_max and row_sum"""


def forward(call: Call) -> Sides:
    kernel: Any = KERNELS["cpu"]
    found = kernel.forward(kernel.lower(call), True)
    return found.out, found.log_sum_exp, found.row_max, found.row_sum


def backward(structure: Any, given: list[Tensor], wanted: list[int], *upstream: Tensor | None) -> list[Tensor]:
    kernel: Any = KERNELS["cpu"]
    return _autograd.run_backward(kernel, structure, given, wanted, *upstream, partial_keys=True)


def flattened(call: Call) -> tuple[Any, list[Tensor]]:
    tensors: list[Tensor] = []
    return _ops.flatten(without_tables(call), tensors), tensors


def merged(parts: Sequence[Sides], sink: Tensor | None) -> Sides:
    """out, lse, row_max and row_sum over all keys from those of their parts, and the sink once."""
    outs, _, highest, sums = zip(*parts, strict=True)
    row_max = torch.stack(highest).amax(0)
    if sink is not None:
        row_max = torch.maximum(row_max, sink)
    base = row_max.masked_fill(row_max == -math.inf, 0)
    shares = [row_sum * (own - base).exp() for own, row_sum in zip(highest, sums, strict=True)]
    row_sum = sum(shares, torch.zeros_like(row_max))
    if sink is not None:
        row_sum = row_sum + (sink - base).exp()
    divisor = row_sum.masked_fill(row_sum == 0, 1)
    out = sum(x * (share / divisor)[..., None] for x, share in zip(outs, shares, strict=True))
    return torch.as_tensor(out), row_max + row_sum.log(), row_max, row_sum


def close(found: Tensor, expected: Tensor, what: str, tolerance: float = 1e-5) -> None:
    error = (found.double() - expected).abs().max().item()
    assert error <= tolerance * max(1, expected.abs().max().item()), f"{what} is off by {error:.3g}"


def by_parts(case: Case, dtype: torch.dtype = torch.float32) -> tuple[Sides, dict[str, Tensor]]:
    """Merged results and gradients, those of the sink by hand."""
    logits = T.Sink(case.leaves["sink"]).by_query if "sink" in case.leaves else None
    parts = []
    for low, high in itertools.pairwise(EDGES):
        call, own = case.call(low, high)
        own |= {name: own[name].to(dtype) for name in "qkv"}
        parts.append((replace(call, q=own["q"], k=own["k"], v=own["v"]), own))
    results = merged([forward(call) for call, _ in parts], logits)
    out, lse, row_max, row_sum = results
    up_lse = case.up_lse.masked_fill(lse == -math.inf, 0)
    found: dict[str, list[Tensor]] = {name: [] for name in case.leaves}
    for call, own in parts:
        structure, tensors = flattened(call)
        numbers = {name: number for number, x in enumerate(tensors) for name, leaf in own.items() if leaf is x}
        given = [*tensors, out, row_max, row_sum]
        gradients = backward(structure, given, list(numbers.values()), case.up, up_lse)
        for name, gradient in zip(numbers, gradients, strict=True):
            found[name].append(gradient)
    grads = {}
    for name, of_parts in found.items():
        if name in ("k", "v", "token"):
            grads[name] = torch.cat(of_parts, 2)
        elif name == "sink":
            assert not any(part.any() for part in of_parts)
            delta = (case.up * out).sum(-1) - up_lse
            assert logits is not None
            gradient = -(logits - row_max).exp() / row_sum * delta
            grads[name] = gradient if case.leaves[name].ndim == 3 else gradient.sum((0, 2))
        else:
            grads[name] = torch.stack(of_parts).double().sum(0)
    return results, grads


@with_library
@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("sink", SINKS)
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("n", [1, 3, 97])
def test_parts_of_the_keys_take_their_gradients_from_the_whole(n: int, mask: str, sink: str, dropout: float) -> None:
    """Results merge by row_max and row_sum; with those of the whole, gradients of the parts add up to the whole's."""
    case = Case(n, mask, sink, dropout)
    (out, lse, _, _), grads = by_parts(case)
    exact, exact_lse, expected = case.exact()
    close(out, exact, "out")
    seen = torch.isfinite(exact_lse)
    assert torch.equal(torch.isfinite(lse), seen)
    close(lse[seen], exact_lse[seen], "lse")
    assert grads.keys() == expected.keys()
    for name, gradient in grads.items():
        close(gradient, expected[name], f"the gradient of {name}")


@with_library
@pytest.mark.parametrize("isa", _library.ISAS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("n", [3, 97])
def test_parts_of_the_keys_in_every_dtype_and_instruction_set(n: int, dtype: torch.dtype, isa: str) -> None:
    if isa not in _library.isas():
        pytest.skip(f"{isa} is not on this machine")
    case = Case(n, "holes", "sink by query")
    for name in ("q", "k", "v"):
        case.leaves[name] = case.leaves[name].to(dtype).float()
    with _library.using(isa):
        (out, _, _, _), grads = by_parts(case, dtype)
    exact, _, expected = case.exact()
    close(out, exact, "out", 1e-5 if dtype == torch.float32 else 2e-2)
    for name, gradient in grads.items():
        close(gradient, expected[name], f"the gradient of {name}", 1e-5 if dtype == torch.float32 else 2e-2)


@with_library
@pytest.mark.parametrize("sink", ["sink", "sink by query"])
def test_a_sink_may_stand_in_one_of_the_parts(sink: str) -> None:
    """Its gradient then is of the whole's results too."""
    case = Case(97, "holes", sink)
    (out, _, row_max, row_sum), grads = by_parts(case)
    call, own = case.call(137)
    structure, tensors = flattened(replace(call, include_sink=True))
    number = next(number for number, x in enumerate(tensors) if x is own["sink"])
    given = [*tensors, out, row_max, row_sum]
    (gradient,) = backward(structure, given, [number], case.up, case.up_lse)
    close(gradient, grads["sink"].double(), "the gradient of the sink")


@with_library
@pytest.mark.parametrize("n", [3, 97])
def test_a_part_far_below_the_whole(n: int) -> None:
    """Most of its weights are too small for float32; with the scores of only the part they would be large."""
    case = Case(n, "none", "no sink", size=8.0)
    case.leaves["token"][..., :137] -= 60
    case.leaves["token"][:, 0, 137:] -= 200
    case.up_lse.zero_()
    results = [forward(case.call(low, high)[0]) for low, high in itertools.pairwise(EDGES)]
    out, _, row_max, row_sum = merged(results, None)
    exact, _, expected = case.exact()
    close(out, exact, "out")
    for low, high, name in ((0, 130, "k"), (0, 130, "v"), (130, 137, "k"), (137, TOKENS, "k"), (137, TOKENS, "v")):
        call, own = case.call(low, high)
        structure, tensors = flattened(call)
        number = next(number for number, x in enumerate(tensors) if x is own[name])
        (gradient,) = backward(structure, [*tensors, out, row_max, row_sum], [number], case.up, None)
        close(gradient, expected[name][:, :, low:high], f"the gradient of {name}")


@with_library
@pytest.mark.parametrize("sink", SINKS)
@pytest.mark.parametrize("n", [3, 97])
def test_a_query_of_no_number_that_sees_nothing_gives_no_gradient_to_a_part(n: int, sink: str) -> None:
    case = Case(n, "holes", sink)
    logits = T.Sink(case.leaves["sink"]).by_query if "sink" in case.leaves else None
    grads = []
    for value in (0.0, math.nan):
        case.leaves["q"][:, :, -2] = value
        parts = [case.call(low, high)[0] for low, high in itertools.pairwise(EDGES)]
        out, _, row_max, row_sum = merged([forward(call) for call in parts], logits)
        found = []
        for call in parts:
            structure, tensors = flattened(call)
            wanted = [number for number, x in enumerate(tensors) if x.is_floating_point()]
            given = [*tensors, out, row_max, row_sum]
            found += backward(structure, given, wanted, case.up, case.up_lse)
        grads.append(found)
    for clean, dirty in zip(*grads, strict=True):
        assert torch.equal(clean, dirty)


@with_library
@pytest.mark.parametrize("isa", _library.ISAS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("sink", SINKS)
@pytest.mark.parametrize("n", [3, 97])
def test_what_the_statistics_mean(n: int, sink: str, dtype: torch.dtype, isa: str) -> None:
    """row_max is the largest score in sight, row_sum = Σ exp(s − row_max); nothing in sight: −∞ and 0."""
    if isa not in _library.isas():
        pytest.skip(f"{isa} is not on this machine")
    case = Case(n, "holes", sink)
    for name in ("q", "k", "v"):
        case.leaves[name] = case.leaves[name].bfloat16().float()
    call, _ = case.call()
    call = replace(call, q=call.q.to(dtype), k=call.k.to(dtype), v=call.v.to(dtype))
    exact = reference.steps(reference.computed(case.call(dtype=torch.float64)[0]))[2]
    if "sink" in case.leaves:
        logits = T.Sink(case.leaves["sink"].double()).by_query
        exact = torch.cat([exact, logits[..., None].expand(*exact.shape[:3], 1)], -1)
    row_max = exact.amax(-1)
    row_sum = (exact - row_max.masked_fill(row_max == -math.inf, 0)[..., None]).exp().sum(-1)
    with _library.using(isa):
        _, lse, found_max, found_sum = forward(call)
    within = 1e-5 if dtype == torch.float32 else 3e-2  # there a table is rounded to bfloat16
    assert torch.equal(found_max == -math.inf, row_max == -math.inf)
    assert (sink == "no sink") == bool((found_max == -math.inf).any())
    torch.testing.assert_close(found_max.double(), row_max, rtol=within, atol=within)
    torch.testing.assert_close(found_sum.double(), row_sum, rtol=within, atol=within)
    assert not found_sum[row_max == -math.inf].any()
    torch.testing.assert_close(lse, found_max + found_sum.log())
