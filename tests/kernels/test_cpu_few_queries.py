"""The CPU kernel where few queries see many keys: heads that share keys are computed together, from tiles of keys."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

import headway as hw
from headway import masks as M
from headway import terms as T
from headway.kernels.cpu import _library

pytestmark = pytest.mark.skipif(_library._load().c is None, reason="the library is not there")

HEADS, KV_HEADS = 8, 2
TOGETHER, APART = 1, 3
"""Threads with which the heads of a group are one item of work, and with which they are several or share a stage."""
KEYS = 1301
"""So many keys that a packed head takes more memory than a worker keeps."""
QUERIES = (1, 3, 4, 5, 13, 48)


@contextmanager
def threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def drawn(n: int, dtype: torch.dtype, d: int = 64, dv: int = 64, m: int = KEYS) -> list[Tensor]:
    draw = torch.Generator().manual_seed(n)
    shapes = ((2, HEADS, n, d), (2, KV_HEADS, m, d), (2, KV_HEADS, m, dv))
    return [torch.randn(shape, generator=draw).to(dtype) for shape in shapes]


def by_head(n: int, m: int = KEYS) -> M.Boolean:
    """A mask under which some heads see nothing of some tiles, and one head nothing at all."""
    seen = torch.rand(1, HEADS, n, m, generator=torch.Generator().manual_seed(1)) < 0.7
    seen[:, 1, :, 192:700] = False
    seen[:, 2, :, :1000] = False
    seen[:, 5] = False
    return M.Boolean(seen)


def by_other_heads(n: int, m: int = KEYS) -> M.Boolean:
    """A mask under which the first head of a group sees all of a tile, or nothing, and the others some of it."""
    seen = torch.rand(1, HEADS, n, m, generator=torch.Generator().manual_seed(1)) < 0.7
    seen[:, 0] = True
    seen[:, HEADS // KV_HEADS, :, 192:700] = False
    return M.Boolean(seen)


def masks(n: int) -> dict[str, Any]:
    return {
        "none": None,
        "causal": M.Causal(),
        "window": M.Causal() & M.Window(left=300),
        "by head": by_head(n),
        "by other heads": by_other_heads(n),
        "gap": M.Causal() & (M.KeepFirst(3) | M.Window(left=400)),
    }


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Any, **arguments: Any) -> Tensor:
    with torch.no_grad():
        return hw.attention(q, k, v, mask=mask, kernel="cpu", **arguments)


def every_way(q: Tensor, k: Tensor, v: Tensor, mask: Any, **arguments: Any) -> list[Tensor]:
    """The output with heads together, with heads apart, and with keys that no heads share."""
    outputs = []
    for count in (TOGETHER, APART):
        with threads(count):
            outputs.append(attend(q, k, v, mask, **arguments))
    alone = [x.repeat_interleave(HEADS // KV_HEADS, 1) for x in (k, v)]
    return [*outputs, attend(q, *alone, mask, **arguments)]


def same(outputs: list[Tensor]) -> bool:
    return all(torch.equal(outputs[0], other) for other in outputs[1:])


@pytest.mark.parametrize("mask", ["none", "causal", "window", "by head", "by other heads", "gap"])
@pytest.mark.parametrize("n", QUERIES)
def test_heads_together_are_heads_alone(n: int, mask: str) -> None:
    q, k, v = drawn(n, torch.float32)
    outputs = every_way(q, k, v, masks(n)[mask])
    assert same(outputs)
    with torch.no_grad():
        wanted = hw.attention(q.double(), k.double(), v.double(), mask=masks(n)[mask], kernel="reference")
    torch.testing.assert_close(outputs[0].double(), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", _library.ISAS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("n", [2, 7])
def test_every_instruction_set_and_dtype(n: int, dtype: torch.dtype, name: str) -> None:
    if name not in _library.isas():
        pytest.skip(f"{name} is not on this machine")
    q, k, v = drawn(n, dtype)
    with _library.using(name):
        outputs = every_way(q, k, v, M.Causal())
    assert same(outputs)
    with torch.no_grad():
        wanted = hw.attention(q.double(), k.double(), v.double(), mask=M.Causal(), kernel="reference")
    rtol = 1e-4 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(outputs[0].double(), wanted, rtol=rtol, atol=rtol / 10)


@pytest.mark.parametrize("widths", [(40, 24), (33, 64), (64, 7), (32, 32), (128, 128)], ids=str)
@pytest.mark.parametrize("n", [1, 4, 6, 33])
def test_widths_and_layouts(n: int, widths: tuple[int, int]) -> None:
    q, k, v = drawn(n, torch.float32, *widths)
    wanted = every_way(q, k, v, M.Causal())
    assert same(wanted)
    turned = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (k, v)]
    apart = [torch.stack((x, x + 1), -1)[..., 0] for x in (k, v)]
    for keys, values in (turned, apart, (k, apart[1]), (apart[0], v)):
        found = every_way(q, keys, values, M.Causal())
        assert same(found[:2])
        torch.testing.assert_close(found[0], wanted[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("mask", ["window", "gap"])
@pytest.mark.parametrize("n", QUERIES)
def test_what_no_query_sees_stays_unseen(n: int, mask: str, value: float) -> None:
    q, k, v = drawn(n, torch.float32)
    wanted = attend(q, k, v, masks(n)[mask])
    hidden = slice(3, KEYS - 402 - n)
    k[:, :, hidden], v[:, 1, hidden] = value, value
    assert same([wanted, *every_way(q, k, v, masks(n)[mask])])


@pytest.mark.parametrize("n", QUERIES)
def test_keys_hidden_within_a_whole_tile_stay_unseen(n: int) -> None:
    q, k, v = drawn(n, torch.float32, 40)
    hidden = torch.tensor([*range(200, 300, 3), KEYS - 2])
    seen = torch.ones(n, KEYS, dtype=torch.bool)
    seen[:, hidden] = False
    wanted = attend(q, k, v, M.Boolean(seen))
    k[:, :, hidden], v[:, 1, hidden] = math.nan, math.inf
    assert same([wanted, *every_way(q, k, v, M.Boolean(seen))])


@pytest.mark.parametrize("n", QUERIES)
def test_what_one_sequence_hides_the_next_one_sees(n: int) -> None:
    q, k, v = drawn(n, torch.float32)
    mask = M.Padding(lengths=[700, KEYS])
    wanted = attend(q, k, v, mask)
    k[0, :, 700:] = v[0, :, 700:] = math.nan
    assert same([wanted, *every_way(q, k, v, mask)])


def test_an_odd_value_of_a_full_tile_reaches_who_sees_it() -> None:
    q, k, v = drawn(9, torch.float32)
    v[0, 1, 200] = math.nan
    out = attend(q, k, v, M.Causal())
    assert out[0, HEADS // KV_HEADS :].isnan().all()
    assert not out[0, : HEADS // KV_HEADS].isnan().any()
    assert not out[1].isnan().any()


@pytest.mark.parametrize("n", [1, 3, 5, 20])
def test_terms_and_dropout_of_each_head_are_its_own(n: int) -> None:
    q, k, v = drawn(n, torch.float32)
    draw = torch.Generator().manual_seed(2)

    def numbers(*shape: int) -> Tensor:
        return torch.randn(shape, generator=draw)

    terms = (
        T.DistanceBias(T.Rows(numbers(HEADS, 65), T.Clip(-32, 32))),
        T.RelativeKeys(T.Rows(numbers(HEADS, 65, 64) / 8, T.Clip(-32, 32))),
        T.RelativeValues(T.Rows(numbers(HEADS, 65, 64) / 8, T.Clip(-32, 32))),
        T.TokenBias(None, numbers(2, HEADS, KEYS)),
    )
    arguments: dict[str, Any] = {"terms": terms, "dropout": 0.3, "dropout_seed": 4}
    outputs = []
    for count in (TOGETHER, APART):
        with threads(count):
            outputs.append(attend(q, k, v, M.Causal(), **arguments))
    with torch.no_grad():
        wanted = hw.attention(q, k, v, mask=M.Causal(), kernel="reference", **arguments)
    assert same(outputs)
    torch.testing.assert_close(outputs[0], wanted, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("n", [1, 3, 5])
def test_more_heads_than_a_tile_has_rows(n: int) -> None:
    draw = torch.Generator().manual_seed(n)
    q, k, v = (torch.randn(1, heads, size, 64, generator=draw) for heads, size in ((71, n), (1, KEYS), (1, KEYS)))
    with threads(TOGETHER):
        together = attend(q, k, v, None)
    with threads(16):
        assert torch.equal(attend(q, k, v, None), together)
    with torch.no_grad():
        torch.testing.assert_close(together, hw.attention(q, k, v, kernel="reference"), rtol=1e-4, atol=1e-5)
