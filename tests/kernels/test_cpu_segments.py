"""The CPU kernel where a row has several documents: a worker packs the keys of one, and computes its queries."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

import headway as hw
from headway import masks as M
from headway import terms as T
from headway.kernels.cpu import _library

from .agreement import agree, drawn, inputs_of, same_for_any_threads

pytestmark = pytest.mark.skipif(_library._load().c is None, reason="the library is not there")

LENGTHS = (200, 30, 170, 250, 1, 207)
"""Of documents. Those below 192 tokens are computed with the next."""
TOKENS = sum(LENGTHS)
TOGETHER = ((0, 200), (200, 400), (400, 650), (650, TOKENS))
"""The documents that are computed together: a segment ends once it has 192 keys."""
HEADS, KV_HEADS, WIDTH = 4, 2, 16


def documents(*lengths: int) -> M.Mask:
    return M.Documents.lengths(list(lengths))


def by_row() -> M.Mask:
    """Other documents in each row of the batch."""
    rows = (LENGTHS, (TOKENS,), (400, TOKENS - 400))
    return M.Documents(torch.stack([torch.arange(len(row)).repeat_interleave(torch.tensor(row)) for row in rows[::2]]))


def gaps() -> M.Mask:
    """Keys behind a document that nobody sees, and queries that see nothing."""
    start = torch.zeros(1, TOKENS, dtype=torch.long)
    stop = torch.zeros_like(start)
    for low, high in TOGETHER:
        start[:, low : high - 20], stop[:, low : high - 20] = low + 10, high - 40
    return M.Interval(start, stop)


MASKS: dict[str, Callable[[], M.Mask]] = {
    "documents": lambda: documents(*LENGTHS),
    "causal": lambda: M.Causal() & documents(*LENGTHS),
    "window": lambda: M.Window(60, 20) & documents(*LENGTHS),
    "by row": by_row,
    "gaps": gaps,
    "holes": lambda: documents(*LENGTHS) & M.Dilated(3),
    "late": lambda: documents(*LENGTHS) & M.Interval(torch.full((1, TOKENS), 230), None),
    "falling": lambda: documents(*LENGTHS) & M.Interval(torch.arange(TOKENS).flip(0)[None] - 5, None),
}
TERMS: dict[str, tuple[tuple[tuple[int, ...], ...], Callable[..., Sequence[T.Term]]]] = {
    "nothing": ((), lambda: ()),
    "by distance": (
        ((HEADS, 65), (1, 9)),
        lambda table, other: (
            T.DistanceBias(T.Rows(table, T.Clip(-32, 32))),
            T.DistanceBias(T.Rows(other, T.Clip(-4, 4))),
        ),
    ),
    "relative": (
        ((HEADS, 65, WIDTH),) * 3,
        lambda keys, queries, values: (
            T.RelativeKeys(T.Rows(keys, T.Clip(-32, 32))),
            T.RelativeQueries(T.Rows(queries, T.Clip(-32, 32))),
            T.RelativeValues(T.Rows(values, T.Clip(-32, 32))),
        ),
    ),
    "tokens": (
        ((2, HEADS, TOKENS), (2, HEADS, TOKENS), (1, HEADS, TOKENS)),
        lambda queries, keys, sink: (T.TokenBias(queries, keys), T.Sink(sink)),
    ),
    "dense": (((1, HEADS, TOKENS, TOKENS),), lambda values: (T.DenseBias(values),)),
    "shared by heads": (((2, 1, TOKENS, TOKENS),), lambda values: (T.DenseBias(values),)),
    "temperature and cap": (
        ((1, HEADS, TOKENS),),
        lambda factor: (T.QueryScale(factor + 2),),
    ),
}


def tensors(name: str) -> tuple[list[Tensor], Callable[..., Sequence[T.Term]]]:
    shapes, terms = TERMS[name]
    others = [drawn(*shape, seed=number) / 4 for number, shape in enumerate(shapes)]
    return [x.bfloat16().float() for x in inputs_of(TOKENS, TOKENS)] + others, terms


@pytest.mark.parametrize("mask", MASKS)
def test_masks_agree_with_the_reference(mask: str) -> None:
    inputs, terms = tensors("by distance")
    agree(inputs, terms, MASKS[mask]())


@pytest.mark.parametrize("terms", TERMS)
def test_terms_agree_with_the_reference(terms: str) -> None:
    inputs, make = tensors(terms)
    more: dict[str, Any] = {"soft_cap": 3.0} if terms == "temperature and cap" else {}
    agree(inputs, make, MASKS["causal"](), **more)


@pytest.mark.parametrize("name", _library.ISAS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_every_instruction_set_and_dtype(dtype: torch.dtype, name: str) -> None:
    if name not in _library.isas():
        pytest.skip(f"{name} is not on this machine")
    inputs, terms = tensors("by distance")
    with _library.using(name):
        agree([x.to(dtype) for x in inputs[:3]] + inputs[3:], terms, MASKS["causal"]())


def test_dropout_drops_the_same_weights() -> None:
    inputs, terms = tensors("nothing")
    agree(inputs, terms, MASKS["causal"](), dropout=0.3)


@pytest.mark.parametrize("mask", ["causal", "by row"])
@pytest.mark.parametrize("terms", ["by distance", "tokens", "shared by heads"])
def test_results_are_the_same_for_any_threads(terms: str, mask: str) -> None:
    inputs, make = tensors(terms)
    same_for_any_threads(inputs, make, MASKS[mask]())


@pytest.mark.parametrize("mask", ["documents", "causal"])
def test_a_segment_has_the_bits_of_a_call_of_its_own(mask: str) -> None:
    """So that it costs what the same tokens in a row of their own cost: blocks and tiles begin with the segment."""
    (q, k, v), _ = tensors("nothing")
    found = hw.attention(q, k, v, mask=MASKS[mask](), kernel="cpu")
    for low, high in TOGETHER:
        of_part = MASKS[mask]().allowed(*[hw.Coordinates.span(TOKENS)] * 2)[..., low:high, low:high]
        alone = hw.attention(*[x[:, :, low:high] for x in (q, k, v)], mask=M.Boolean(of_part), kernel="cpu")
        assert torch.equal(found[:, :, low:high], alone)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_not_finite_stays_in_its_segment(value: float) -> None:
    inputs, _ = tensors("nothing")
    leaves = [x.requires_grad_() for x in inputs]

    def results() -> list[Tensor]:
        out = hw.attention(*leaves, mask=MASKS["causal"](), kernel="cpu")
        return [out, *torch.autograd.grad(out, leaves, torch.ones_like(out))]

    clean = results()
    with torch.no_grad():
        leaves[1][0, 0, 405], leaves[2][1, 1, 240] = value, value
    for x, same in zip(results(), clean, strict=True):
        for low, high in (TOGETHER[0], TOGETHER[3]):
            assert torch.equal(x[:, :, low:high], same[:, :, low:high])
        assert not x[:, :, 200:650].isfinite().all()


def test_keys_that_nobody_sees_are_not_read_and_have_no_gradient() -> None:
    inputs, _ = tensors("nothing")
    leaves = [x.requires_grad_() for x in inputs]
    wanted = hw.attention(*leaves, mask=gaps(), kernel="cpu")
    seen = torch.zeros(TOKENS, dtype=torch.bool)
    for low, high in TOGETHER:
        seen[low + 10 : high - 40] = True
    with torch.no_grad():
        leaves[1][:, :, ~seen], leaves[2][:, :, ~seen] = math.nan, math.inf
    out = hw.attention(*leaves, mask=gaps(), kernel="cpu")
    assert torch.equal(out, wanted)
    _, d_k, d_v = torch.autograd.grad(out, leaves, torch.ones_like(out))
    assert not d_k[:, :, ~seen].any()
    assert not d_v[:, :, ~seen].any()
    assert d_v[:, :, seen].all()
