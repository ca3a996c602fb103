"""Who may look at whom: every mask against a loop over pairs, its lowering, its reach, and NaN out of sight."""

from __future__ import annotations

import copy
import pickle
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.attention.bias import causal_lower_right

import headway as hw
from headway import masks as M
from headway.kernels import KERNELS
from headway.kernels.cpu import _library
from headway.kernels.lowering.masks import lower_mask
from headway.testing.kernels import widest

BATCH = 2

# ---------------------------------------------------------------- where tokens are


def spans(n: int, m: int) -> tuple[hw.Coordinates, hw.Coordinates]:
    return hw.Coordinates.span(n, start=m - n), hw.Coordinates.span(m)


def from_zero(n: int, m: int) -> tuple[hw.Coordinates, hw.Coordinates]:
    """Both sides start at 0, as in cross-attention."""
    return hw.Coordinates.span(n), hw.Coordinates.span(m)


def padded(side: str) -> Callable[[int, int], tuple[hw.Coordinates, hw.Coordinates]]:
    def make(n: int, m: int) -> tuple[hw.Coordinates, hw.Coordinates]:
        k = hw.Coordinates.padded([m, m // 2], m, side=side)
        return (k if n == m else k.rows(m - n, m)), k

    return make


def packed(n: int, m: int) -> tuple[hw.Coordinates, hw.Coordinates]:
    k = hw.Coordinates.packed([m // 3, m - m // 3])
    return k.rows(m - n, m), k


def from_somewhere(n: int, m: int) -> tuple[hw.Coordinates, hw.Coordinates]:
    """The slots of both sides are in order, and nobody knows where they begin."""
    k = replace(hw.Coordinates.span(m, start=3), start=None)
    return k.rows(m - n, m), k


def gaps(n: int, m: int) -> tuple[hw.Coordinates, hw.Coordinates]:
    """Indices with gaps and in no order: nothing may be taken from the slots."""
    index = (torch.arange(m) * 5 + 2) % (m + 4)
    k = hw.Coordinates(index[None, :, None], index[None], ordered=False)
    return k.rows(m - n, m), k


PLACES: dict[str, Callable[[int, int], tuple[hw.Coordinates, hw.Coordinates]]] = {
    "span": spans,
    "from zero": from_zero,
    "padded left": padded("left"),
    "padded right": padded("right"),
    "packed": packed,
    "from somewhere": from_somewhere,
    "gaps": gaps,
}

# ---------------------------------------------------------------- each mask, by its definition

Pair = Callable[[int, int, int, int, hw.Coordinates, hw.Coordinates], bool]
"""b, slot of the query, slot of the key, keys in all, and where both are."""


def at(side: hw.Coordinates, b: int, slot: int) -> int:
    return int(side.index[min(b, len(side.index) - 1), slot])


def by_index(rule: Callable[[int, int], bool]) -> Pair:
    """A rule of the indices of query and key."""
    return lambda b, i, j, m, q, k: rule(at(q, b, i), at(k, b, j))


IDS = torch.tensor([[0, 0, 1, 1, 1, 2, 2, 0], [4, 4, 4, 4, 7, 7, 4, 4]])


def ids_of(m: int) -> Tensor:
    return IDS[:, :m]


def boolean_of(n: int, m: int) -> Tensor:
    return (torch.arange(BATCH * n * m).view(BATCH, 1, n, m) * 7 % 5) > 1


def cases(n: int, m: int) -> dict[str, tuple[M.Mask, Pair]]:
    """Masks with what they allow. Window counts the keys besides the query's own: left=2 sees i−2, i−1 and i."""
    lengths = [m, max(0, m - 2)]
    in_order = ids_of(m).sort(dim=1).values
    boolean = boolean_of(n, m)
    return {
        "causal": (M.Causal(), by_index(lambda i, j: j <= i)),
        "window": (M.Window(2, 1), by_index(lambda i, j: i - 2 <= j <= i + 1)),
        "window left": (M.Window(left=2), by_index(lambda i, j: j >= i - 2)),
        "window right": (M.Window(right=1), by_index(lambda i, j: j <= i + 1)),
        "window of nothing else": (M.Window(0, 0), by_index(lambda i, j: i == j)),
        "window without ends": (M.Window(), by_index(lambda i, j: True)),
        "chunked": (M.Chunked(3), by_index(lambda i, j: i // 3 == j // 3)),
        "chunked, and two before": (M.Chunked(2, previous=2), by_index(lambda i, j: 0 <= i // 2 - j // 2 <= 2)),
        "prefix": (M.Prefix(2), by_index(lambda i, j: 0 <= j < 2)),
        "prefix by row": (M.Prefix(torch.tensor([1, 3])), lambda b, i, j, m, q, k: 0 <= at(k, b, j) < (1, 3)[b]),
        "keep first": (M.KeepFirst(2), by_index(lambda i, j: 0 <= j < 2)),
        "dilated": (M.Dilated(3), by_index(lambda i, j: (i - j) % 3 == 0)),
        "documents by ids": (
            M.Documents(ids_of(m)),
            lambda b, i, j, m, q, k: bool(IDS[b, m - n + i] == IDS[b, j]),
        ),
        "documents one after another": (
            M.Documents(in_order),
            lambda b, i, j, m, q, k: bool(in_order[b, m - n + i] == in_order[b, j]),
        ),
        "padding behind": (M.Padding(lengths), lambda b, i, j, m, q, k: j < lengths[b]),
        "padding in front": (M.Padding(lengths, "left"), lambda b, i, j, m, q, k: j >= m - lengths[b]),
        "boolean": (M.Boolean(boolean), lambda b, i, j, m, q, k: bool(boolean[b, 0, i, j])),
    }


def far(size: int) -> dict[str, tuple[M.Mask, Pair]]:
    """Masks that count more tokens than there are."""
    return {
        "window": (M.Window(size, size), by_index(lambda i, j: True)),
        "window left": (M.Window(size, 1), by_index(lambda i, j: j <= i + 1)),
        "window right": (M.Window(2, size), by_index(lambda i, j: i - 2 <= j)),
        "chunks": (M.Chunked(size), by_index(lambda i, j: i // size == j // size)),
        "chunks, and one before": (M.Chunked(size, 1), by_index(lambda i, j: 0 <= i // size - j // size <= 1)),
        "chunks, and so many before": (M.Chunked(2, size), by_index(lambda i, j: i // 2 >= j // 2)),
        "prefix": (M.Prefix(size), by_index(lambda i, j: j >= 0)),
        "prefix by row": (
            M.Prefix(torch.tensor([min(size, 2**63 - 1), 3])),
            lambda b, i, j, m, q, k: 0 <= at(k, b, j) < (size, 3)[b],
        ),
        "keep first": (M.KeepFirst(size), by_index(lambda i, j: j >= 0)),
        "dilated": (M.Dilated(size), by_index(lambda i, j: i == j)),
    }


SIZES = [(5, 8), (8, 8), (1, 7), (1, 1)]
NAMES = list(cases(2, 3))


def loop(rule: Pair, n: int, m: int, q: hw.Coordinates, k: hw.Coordinates) -> Tensor:
    found = [[[rule(b, i, j, m, q, k) for j in range(m)] for i in range(n)] for b in range(BATCH)]
    return torch.tensor(found, dtype=torch.bool).view(BATCH, 1, n, m)


def allowed_by(mask: M.Mask, n: int, m: int, q: hw.Coordinates, k: hw.Coordinates) -> Tensor:
    allowed = mask.allowed(q, k)
    assert allowed.dtype == torch.bool
    assert allowed.ndim == 4
    return allowed.expand(BATCH, 1, n, m)


def by_interval(bounds: M.Bounds, n: int, m: int) -> Tensor:
    """The keys between two bounds, by what ``masks.Bound`` says of them."""
    slot = torch.arange(m)
    start, stop = (torch.arange(n)[None] + bound.offset if isinstance(bound, M.Slot) else bound for bound in bounds)
    start, stop = (bound[..., None] if isinstance(bound, Tensor) else bound for bound in (start, stop))
    seen = torch.ones(BATCH, n, m, dtype=torch.bool)
    if start is not None:
        seen &= slot >= start
    return seen if stop is None else seen & (slot < stop)


def by_lowering(mask: M.Mask | None, n: int, m: int, q: hw.Coordinates, k: hw.Coordinates) -> Tensor:
    """What the intervals and the rest allow."""
    intervals, rest = lower_mask(mask, q, k)
    assert len(intervals) <= 2
    seen = torch.full((BATCH, n, m), not intervals)
    for bounds in intervals:
        seen |= by_interval(bounds, n, m)
    return seen[:, None] if rest is None else seen[:, None] & rest.allowed(q, k)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", NAMES)
def test_allows_what_it_says(name: str, size: tuple[int, int], place: str) -> None:
    n, m = size
    mask, rule = cases(n, m)[name]
    agrees(mask, rule, n, m, place)


def agrees(mask: M.Mask, rule: Pair, n: int, m: int, place: str) -> None:
    q, k = PLACES[place](n, m)
    expected = loop(rule, n, m, q, k)
    assert torch.equal(allowed_by(mask, n, m, q, k), expected)
    assert torch.equal(by_lowering(mask, n, m, q, k), expected)
    bounds = mask.interval(q, k)
    if bounds is not None:
        assert torch.equal(by_interval(bounds, n, m)[:, None], expected)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("size", [2**31, 2**62, sys.maxsize, 10**30])
@pytest.mark.parametrize("name", far(8))
def test_more_tokens_than_there_are(name: str, size: int, place: str) -> None:
    mask, rule = far(size)[name]
    for n, m in ((5, 8), (1, 7)):
        agrees(mask, rule, n, m, place)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("name", far(8))
def test_attention_under_masks_of_more_tokens_than_there_are(name: str, kernel: str) -> None:
    """In the order of the slots, where they are intervals, and in another, where they are not."""
    n, m = 5, 8
    q, k, v = (torch.randn(BATCH, 2, t, 4, dtype=widest(kernel)) for t in (n, m, m))
    shuffled = torch.tensor([3, -1, 0, 5, 1, 4, 2, 6])
    other = hw.Coordinates(shuffled[None, :, None], shuffled[None])
    for size in (2**62, sys.maxsize, 10**30):
        mask, rule = far(size)[name]
        for q_at, k_at in (spans(n, m), (other.rows(m - n, m), other)):
            arguments: dict[str, Any] = {"q_positions": q_at, "k_positions": k_at}
            if kernel == "cpu" and hw.explain(q, k, v, mask=mask, **arguments).reasons["cpu"]:
                pytest.skip("it has a node for each of the chunks before")
            found = hw.attention(q, k, v, mask=mask, kernel=kernel, **arguments)
            expected = hw.attention(q, k, v, mask=loop(rule, n, m, q_at, k_at), kernel=kernel, **arguments)
            torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32])
def test_lengths_of_small_dtypes_do_not_wrap_around(dtype: torch.dtype) -> None:
    """Rows are longer than such a number can say."""
    m, lengths = 400, torch.tensor([10, 100])
    small = lengths.to(dtype)
    q = hw.Coordinates.span(m)
    masks: list[Callable[[Tensor], M.Mask]] = [M.Padding, lambda x: M.Padding(x, "left"), M.Prefix]
    for make in masks:
        for first in (0, -300):
            k = hw.Coordinates.span(m, start=first)
            assert torch.equal(make(small).allowed(q, k), make(lengths).allowed(q, k))
            found, expected = (by_lowering(make(x), m, m, q, k) for x in (small, lengths))
            assert torch.equal(found, expected)
            parts = [make(x).of_keys(290, m, m, m).allowed(q, k.rows(290, m)) for x in (small, lengths)]
            assert torch.equal(*parts)
    for side in ("left", "right"):
        found, expected = (hw.Coordinates.padded(x, m, side=side).index for x in (small, lengths))
        assert torch.equal(found, expected)


@pytest.mark.parametrize("place", PLACES)
def test_joined(place: str) -> None:
    n, m = 5, 8
    q, k = PLACES[place](n, m)
    assert torch.equal(by_lowering(None, n, m, q, k), torch.ones(BATCH, 1, n, m, dtype=torch.bool))
    every = cases(n, m)
    for first, rule in every.values():
        for second, other in every.values():
            both, either = loop(rule, n, m, q, k), loop(other, n, m, q, k)
            for mask, expected in ((first & second, both & either), (first | second, both | either)):
                assert torch.equal(allowed_by(mask, n, m, q, k), expected)
                assert torch.equal(by_lowering(mask, n, m, q, k), expected)


def test_what_lowers_to_intervals_needs_no_rest() -> None:
    q, k = spans(5, 8)
    causal = M.Causal()
    for mask, intervals in (
        (causal, 1),
        (causal & M.Window(3), 1),
        (causal | M.Prefix(2), 2),
        (causal & (M.Window(3) | M.KeepFirst(2)), 2),
        (M.Chunked(3) & causal & M.Padding([8, 6]), 1),
    ):
        found, rest = lower_mask(mask, q, k)
        assert len(found) == intervals
        assert rest is None, mask
    for mask in (M.Dilated(2), M.Boolean(torch.ones(5, 8, dtype=torch.bool)), M.Documents(ids_of(8))):
        assert lower_mask(mask, q, k) == ((), mask)
    assert lower_mask(M.Causal(), *gaps(5, 8)) == ((), M.Causal())  # slots in no order are no interval


names = st.sampled_from(NAMES)
trees = st.recursive(names, lambda inner: st.tuples(st.sampled_from("&|"), inner, inner), max_leaves=5)


def grow(tree: Any, every: dict[str, tuple[M.Mask, Pair]]) -> tuple[M.Mask, Pair]:
    if isinstance(tree, str):
        return every[tree]
    (a, rule), (b, other) = grow(tree[1], every), grow(tree[2], every)
    if tree[0] == "&":
        return a & b, lambda *pair: rule(*pair) and other(*pair)
    return a | b, lambda *pair: rule(*pair) or other(*pair)


@settings(max_examples=150)
@given(tree=trees, place=st.sampled_from(list(PLACES)), m=st.integers(1, 8), data=st.data())
def test_any_combination(tree: Any, place: str, m: int, data: st.DataObject) -> None:
    n = data.draw(st.integers(1, m))
    mask, rule = grow(tree, cases(n, m))
    q, k = PLACES[place](n, m)
    expected = loop(rule, n, m, q, k)
    assert torch.equal(allowed_by(mask, n, m, q, k), expected)
    assert torch.equal(by_lowering(mask, n, m, q, k), expected)
    if place in ("span", "packed", "padded left", "padded right", "from somewhere"):  # the queries are the last keys
        start = data.draw(st.integers(0, n - 1))
        stop = data.draw(st.integers(start + 1, n))
        first, last = mask.reach(start, stop, n, m)
        assert 0 <= first <= last <= m
        outside = expected[:, :, start:stop].clone()
        outside[..., first:last] = False
        assert not outside.any(), "reach leaves out a key that is seen"
        cut = mask.block(start, stop, n).allowed(q.rows(start, stop), k).expand(BATCH, 1, stop - start, m)
        assert torch.equal(cut, expected[:, :, start:stop])


def test_reach_is_small_where_it_can_be() -> None:
    assert M.Causal().reach(2, 4, 10, 12) == (0, 6)
    assert M.Window(1, 2).reach(2, 4, 10, 12) == (3, 8)
    assert (M.Causal() & M.Window(1)).reach(2, 4, 10, 12) == (3, 6)
    assert (M.Window(1, 0) | M.Window(0, 3)).reach(2, 4, 10, 12) == (3, 9)


# ---------------------------------------------------------------- documents and padding


def test_documents_by_ids_by_lengths_and_by_coordinates_agree() -> None:
    where = hw.Coordinates.packed([3, 0, 2])
    expected = torch.block_diag(torch.ones(3, 3), torch.ones(2, 2)).bool()
    by_ids, by_lengths = M.Documents(torch.tensor([5, 5, 5, 1, 1])), M.Documents.lengths([3, 0, 2])
    for mask in (by_ids, by_lengths, M.Documents()):
        assert torch.equal(mask.allowed(where, where)[0, 0], expected)
    with pytest.raises(hw.HeadwayError, match=r"Documents\(\) has no ids"):
        M.Documents().allowed(*spans(2, 5))


@pytest.mark.parametrize("kernel", KERNELS)
def test_one_row_of_query_ids_is_for_all(kernel: str) -> None:
    q, k = (torch.randn(2, 2, t, 4, dtype=widest(kernel)) for t in (3, 4))
    ids, query_ids = torch.tensor([0, 1, 0, 1]), torch.tensor([0, 1, 0])
    expected = hw.attention(q, k, k, mask=query_ids[:, None] == ids, kernel="reference")
    for mask in (M.Documents(ids, query_ids), M.Documents(ids[None], query_ids[None].expand(2, -1))):
        torch.testing.assert_close(hw.attention(q, k, k, mask=mask, kernel=kernel), expected)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int32])
def test_documents_by_ids_of_any_whole_dtype(dtype: torch.dtype, kernel: str) -> None:
    q, k = (torch.randn(1, 2, 4, 4, dtype=widest(kernel)) for _ in range(2))
    for ids in (torch.tensor([0, 0, 1, 1]), torch.tensor([1, 0, 1, 0])):
        found = hw.attention(q, k, k, mask=M.Documents(ids.to(dtype)), kernel=kernel)
        dense = M.Boolean(ids[:, None] == ids)
        torch.testing.assert_close(found, hw.attention(q, k, k, mask=dense, kernel=kernel))


def test_padding_by_coordinates_knows_padding_from_positions() -> None:
    """Only rows that were padded hold padding; positions and documents of any length do not."""
    real = torch.tensor([[1, 1, 1, 1], [0, 0, 1, 1]], dtype=torch.bool)
    for side in ("left", "right"):
        where = hw.Coordinates.padded([4, 2], 4, side=side)
        expected = real if side == "left" else real.flip(1)
        assert torch.equal(M.Padding().allowed(where, where)[:, 0, 0], expected)
    for where in (
        hw.Coordinates.packed([3, 2]),
        hw.Coordinates.span(5),
        hw.Coordinates.of(torch.tensor([0, 0, 0, 1, 2]), 5),
        hw.Coordinates.of(torch.linspace(0, 1, 5), 5),
        hw.Coordinates.of(torch.tensor([[-3, -2, -1, 0, 1], [7, 8, 9, 1, 2]]), 5),
    ):
        assert M.Padding().allowed(where, where).all()
        assert by_lowering(M.Padding(), 5, 5, where, where).all()


def test_padding_of_no_rows() -> None:
    q = torch.randn(0, 2, 3, 4)
    assert hw.attention(q, q, q, mask=M.Padding([])).shape == q.shape


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("side", ["left", "right"])
def test_padded_rows_give_what_they_give_alone(side: str, kernel: str) -> None:
    lengths, n = [6, 2, 4], 6
    q, k, v = (torch.randn(3, 2, n, 4, dtype=widest(kernel)) for _ in range(3))
    where = hw.Coordinates.padded(lengths, n, side=side)
    shown = M.Causal() & M.Window(2)
    for mask in (shown & M.Padding(lengths, side), shown & M.Padding(), shown):
        out = hw.attention(q, k, v, mask=mask, q_positions=where, k_positions=where, kernel=kernel)
        for b, length in enumerate(lengths):
            real = slice(n - length, n) if side == "left" else slice(0, length)
            alone = (x[b : b + 1, :, real] for x in (q, k, v))
            torch.testing.assert_close(out[b : b + 1, :, real], hw.attention(*alone, mask=shown, kernel=kernel))


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_of_the_keys_is_hidden_without_a_mask(side: str, kernel: str) -> None:
    """As from a context of padded rows; a mask that joins padding by ``|`` shows none either."""
    lengths, n = [6, 2], 6
    q, k, v = (torch.randn(2, 2, t, 4, dtype=widest(kernel)) for t in (3, n, n))
    at = {"q_positions": hw.Coordinates.span(3), "k_positions": hw.Coordinates.padded(lengths, n, side=side)}
    expected = hw.attention(q, k, v, mask=M.Padding(lengths, side), kernel=kernel)
    for mask in (None, M.Padding(lengths, side) | M.Window(), torch.ones(3, n) > 0):
        torch.testing.assert_close(hw.attention(q, k, v, mask=mask, kernel=kernel, **at), expected)


@pytest.mark.parametrize("join", [lambda mask: mask, lambda mask: M.Causal() & (mask | M.KeepFirst(1))])
@pytest.mark.parametrize(
    ("lengths", "side"), [([6, 3], "right"), ([6, 2], "left"), (torch.tensor([5, 3], dtype=torch.int8), "left")]
)
def test_lengths_that_contradict_the_coordinates_are_refused(
    lengths: Any, side: str, join: Callable[[M.Mask], M.Mask]
) -> None:
    q, at = torch.randn(2, 2, 6, 4), hw.Coordinates.padded([6, 3], 6)
    with pytest.raises(hw.HeadwayError, match=r"Padding has lengths .* with \[6, 3\] tokens: give masks\.Padding\(\)"):
        hw.attention(q, q, q, mask=join(M.Padding(lengths, side)), q_positions=at, k_positions=at)


def test_lengths_that_cannot_be_read_are_those_of_the_coordinates() -> None:
    """On a device with streams nothing is read, and the coordinates are right in every step."""
    at = hw.Coordinates.padded([6, 3], 6)
    stale = M.Causal() & M.Padding(torch.tensor([5, 2], device="meta"), "left")
    mask = M.hiding_padding(stale, at)
    assert mask == M.Causal() & M.Padding()


def test_documents_of_a_cache_have_no_padding() -> None:
    """The index of a packed token counts the row, its length the document."""
    at = hw.Coordinates.packed([5, 3]).append(hw.Coordinates.packed([2], last=[1]))
    assert at.start is None
    assert M.Padding().allowed(at, at).all()


# ---------------------------------------------------------------- where queries stand without positions

ALIGNED: dict[str, tuple[M.Mask, Callable[[int, int], bool]]] = {
    "causal": (M.Causal(), lambda i, j: j <= i),
    "window": (M.Window(1, 1), lambda i, j: i - 1 <= j <= i + 1),
    "causal window": (M.Causal() & M.Window(left=1), lambda i, j: i - 1 <= j <= i),
    "chunked": (M.Chunked(2), lambda i, j: i // 2 == j // 2),
    "dilated": (M.Dilated(3), lambda i, j: (i - j) % 3 == 0),
}


@pytest.mark.filterwarnings("ignore:Lower right causal bias will produce NaNs")
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("name", ALIGNED)
def test_without_positions_the_last_query_stands_at_the_last_key(name: str, kernel: str) -> None:
    """As flash-attention states it: query i of n stands at i + m − n, and one that sees nothing gives zeros."""
    mask, rule = ALIGNED[name]
    for n, m in ((9, 4), (5, 4), (4, 4), (3, 4)):
        seen = torch.tensor([[rule(i + m - n, j) for j in range(m)] for i in range(n)])
        if name == "causal" and n > 1:
            assert torch.equal(seen, causal_lower_right(n, m)._materialize())
        q, k, v = (torch.randn(2, 2, t, 4, dtype=widest(kernel)) for t in (n, m, m))
        slopes = torch.tensor([0.5, 0.25], dtype=torch.float64)
        bias = hw.terms.DistanceBias(hw.terms.Linear(slopes, slopes))
        distance = torch.tensor([[abs(i + m - n - j) for j in range(m)] for i in range(n)])
        scores = q @ k.mT / 2
        for terms, added in ((), 0.0), ((bias,), -slopes.view(2, 1, 1).to(q.dtype) * distance):
            weights = (scores + added).masked_fill(~seen, -1e30).softmax(-1) * seen
            for _ in range(2):  # a short call has a plan in its second time
                found = hw.attention(q, k, v, mask=mask, terms=terms or None, kernel=kernel)
                torch.testing.assert_close(found, weights @ v)


def test_keys_that_stand_somewhere_need_queries_that_do() -> None:
    q, k = torch.randn(1, 1, 2, 4), torch.randn(1, 1, 5, 4)
    with pytest.raises(hw.HeadwayError, match="k_positions are given but q_positions are not, and n = 2"):
        hw.attention(q, k, k, mask=M.Causal(), k_positions=hw.Coordinates.span(5, start=7))


# ---------------------------------------------------------------- in attention


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("name", NAMES)
def test_attention_obeys(name: str, kernel: str) -> None:
    """Output and gradients are those of the keys that are allowed; rows without any are zero."""
    n, m = 5, 8
    mask, rule = cases(n, m)[name]
    allowed = loop(rule, n, m, *spans(n, m))
    q, k, v = (torch.randn(BATCH, 2, t, 4, dtype=widest(kernel)).requires_grad_() for t in (n, m, m))
    found = hw.attention(q, k, v, mask=mask, kernel=kernel)
    weights = (q @ k.mT / 2).masked_fill(~allowed, -1e30).softmax(-1)
    expected = (weights * allowed.any(-1, keepdim=True)) @ v
    torch.testing.assert_close(found, expected)
    upstream = torch.randn_like(found)
    grads = (torch.autograd.grad(out, (q, k, v), upstream) for out in (found, expected))
    torch.testing.assert_close(*grads)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("kv_heads", [1, 2])
@pytest.mark.parametrize("rounded", [False, True])
def test_nan_out_of_sight_never_leaks(kernel: str, kv_heads: int, rounded: bool) -> None:
    """NaN in keys that nobody sees and in queries that see nothing: the same bits as without, both ways."""
    dtype = torch.bfloat16 if rounded else widest(kernel)
    n, m = 5, 8
    allowed = boolean_of(n, m).clone()
    allowed[0, :, 3], allowed[1], allowed[..., 5] = False, False, False
    inputs = [torch.randn(BATCH, h, t, 4).to(dtype) for h, t in ((2, n), (kv_heads, m), (kv_heads, m))]
    poisoned = [x.clone() for x in inputs]
    poisoned[0].masked_fill_(~allowed.any(-1)[..., None], torch.nan)
    poisoned[1].masked_fill_(~allowed.any(-2)[..., None], torch.nan)
    poisoned[2].masked_fill_(~allowed.any(-2)[..., None], torch.inf)
    results = []
    for tensors in (inputs, poisoned):
        q, k, v = (x.requires_grad_() for x in tensors)
        out = hw.attention(q, k, v, mask=allowed, kernel=kernel)
        results.append([out, *torch.autograd.grad(out.square().sum(), (q, k, v))])
    blind = ~allowed.any(-1).expand(BATCH, 2, n)
    assert blind.any()
    for clean, dirty in zip(*results, strict=True):
        assert torch.isfinite(dirty).all()
        assert torch.equal(clean, dirty)
    assert results[1][0][blind].abs().max() == 0
    assert results[1][1][blind].abs().max() == 0


@pytest.mark.parametrize("kernel", KERNELS)
def test_nothing_in_sight(kernel: str) -> None:
    q, k, v = (torch.randn(1, 2, 3, 4).requires_grad_() for _ in range(3))
    out = hw.attention(q, k, v, mask=torch.zeros(3, 3, dtype=torch.bool), kernel=kernel)
    assert out.abs().max() == 0
    for gradient in torch.autograd.grad(out.sum(), (q, k, v)):
        assert gradient.abs().max() == 0


class Diagonal(M.Mask):
    """A user's own mask: no dataclass, no interval, just the rule."""

    def allowed(self, q: hw.Coordinates, k: hw.Coordinates) -> Tensor:
        return (q.index[:, :, None] == k.index[:, None, :])[:, None]


@pytest.mark.parametrize("kernel", ["auto", *KERNELS])
def test_a_users_own_mask(kernel: str) -> None:
    q, k, v = (torch.randn(1, 2, 4, 4) for _ in range(3))
    torch.testing.assert_close(hw.attention(q, k, v, mask=Diagonal(), kernel=kernel), v)
    seen = hw.attention(q, k, v, mask=M.Causal() & Diagonal(), kernel=kernel)
    torch.testing.assert_close(seen, v)
    with pytest.raises(TypeError, match="Blind must define allowed"):
        hw.attention(q, k, v, mask=type("Blind", (M.Mask,), {})(), kernel=kernel)


@pytest.mark.parametrize("name", NAMES)
def test_copies_and_pickles(name: str) -> None:
    n, m = 5, 8
    mask = cases(n, m)[name][0] & M.Causal()
    q, k = spans(n, m)
    expected = allowed_by(mask, n, m, q, k)
    for again in (copy.deepcopy(mask), pickle.loads(pickle.dumps(mask))):
        assert torch.equal(allowed_by(again, n, m, q, k), expected)


# ---------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: M.Window(-1), r"left is -1: give a whole number of at least 0"),
        (lambda: M.Window(1, 0.5), r"right is 0\.5: give a whole number"),
        (lambda: M.Chunked(0), r"size is 0: give a whole number of at least 1"),
        (lambda: M.Chunked(2, previous=-1), r"previous is -1: give a whole number of at least 0"),
        (lambda: M.Prefix(-2), r"length is -2: give a whole number of at least 0"),
        (lambda: M.KeepFirst(-1), r"count is -1: give a whole number of at least 0"),
        (lambda: M.Dilated(0), r"step is 0: give a whole number of at least 1"),
        (lambda: M.Padding([1], "middle"), r"side is 'middle': give 'left' or 'right'"),
        (lambda: M.Boolean(torch.ones(2, 2)), r"float32: a mask is boolean.*terms\.DenseBias"),
        (lambda: M.Boolean(torch.ones(2, 2, 2, dtype=torch.bool)), r"shape \(2, 2, 2\): give \[n, m\]"),
        (lambda: M.Causal() & torch.ones(2, 2, dtype=torch.bool), r"Tensor: wrap tensors in masks\.Boolean"),
        (lambda: M.Causal() | True, r"cannot be joined with a bool"),
    ],
)
def test_bad_masks(make: Callable[[], object], message: str) -> None:
    with pytest.raises(hw.HeadwayError, match=message):
        make()


@pytest.mark.parametrize("joined", [False, True])
@pytest.mark.parametrize(
    ("mask", "message"),
    [
        (
            M.Boolean(torch.ones(4, 3, dtype=torch.bool)),
            r"mask has shape \(4, 3\): it must broadcast to \(2, 2, 3, 4\)",
        ),
        (M.Boolean(torch.ones(3, 1, 1, 4, dtype=torch.bool)), r"mask has shape \(3, 1, 1, 4\)"),
        (M.Padding([1, 2, 3]), r"Padding has lengths of shape \(3,\): give one for each row, \[2\]"),
        (M.Padding([1.5, 2]), r"Padding has lengths of torch\.float32: give whole numbers"),
        (M.Prefix(torch.tensor([1.5, 2])), r"Prefix has length of torch\.float32: give whole numbers"),
        (M.Prefix(torch.ones(2, 1, dtype=torch.long)), r"Prefix has length of shape \(2, 1\)"),
        (M.Documents(torch.zeros(3, dtype=torch.long)), r"Documents has ids of shape \(3,\): .*\[4\] or \[2, 4\]"),
        (M.Documents(torch.zeros(3, 4, dtype=torch.long)), r"Documents has ids of shape \(3, 4\)"),
        (M.Documents(torch.tensor([0, 0.5, 0, 0.5])), r"Documents has ids of torch\.float32: give whole numbers"),
        (
            M.Documents(torch.zeros(4, dtype=torch.long), torch.zeros(1, 3)),
            r"Documents has query_ids of torch\.float32: give whole numbers",
        ),
        (
            M.Documents(torch.zeros(4, dtype=torch.long), torch.zeros(2, 4, dtype=torch.long)),
            r"Documents has query_ids of shape \(2, 4\): give one for each query, \[3\] or \[2, 3\]",
        ),
        (M.Documents(query_ids=torch.zeros(2, 3, dtype=torch.long)), "Documents has query_ids and no ids: give ids"),
    ],
)
def test_masks_that_do_not_fit(mask: M.Mask, message: str, joined: bool) -> None:
    q, k = torch.randn(2, 2, 3, 5), torch.randn(2, 2, 4, 5)
    with pytest.raises(hw.HeadwayError, match=message):
        hw.attention(q, k, k, mask=M.Causal() & (mask | M.Window(1)) if joined else mask)


def test_other_bad_masks_in_attention() -> None:
    q, k = torch.randn(2, 2, 3, 5), torch.randn(2, 2, 2, 5)
    with pytest.raises(hw.HeadwayError, match=r"mask is a tensor of torch\.float32"):
        hw.attention(q, q, q, mask=torch.ones(3, 3))
    with pytest.raises(hw.HeadwayError, match="ids for 2 keys but there are 3 queries: give query_ids"):
        hw.attention(q, k, k, mask=M.Documents(torch.zeros(2, dtype=torch.long)))
    seen = M.Documents(torch.tensor([0, 1]), query_ids=torch.tensor([[0, 1, 2]]))
    assert hw.attention(q, k, k, mask=seen)[:, :, 2].abs().max() == 0


@pytest.mark.parametrize(
    "make",
    [
        lambda lengths: M.Padding(lengths),
        lambda lengths: M.Padding(torch.tensor(lengths), "left"),
        M.Documents.lengths,
        hw.Coordinates.packed,
        lambda lengths: hw.Coordinates.packed(torch.tensor(lengths)),
        lambda lengths: hw.Coordinates.padded(lengths, 5),
    ],
)
def test_negative_lengths_are_refused(make: Callable[[list[int]], object]) -> None:
    with pytest.raises(hw.HeadwayError, match=r"lengths are \[3, -1\]: give numbers of tokens, from 0 up"):
        make([3, -1])
    make([3, 0])


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("mask", [None, M.Padding(), M.Causal()], ids=repr)
def test_stated_padding_is_hidden_whatever_else_the_coordinates_know(side: str, mask: M.Mask | None) -> None:
    at = hw.Coordinates.padded([3, 5], 5, side=side)
    q, v = torch.randn(2, 1, 5, 8), torch.randn(2, 1, 5, 8)
    right = hw.attention(q, q, v, mask=mask, q_positions=at, k_positions=at, encoding=hw.encoding("none"))
    known = [replace(at, document=torch.zeros(2, 5, dtype=torch.long))]
    known += [replace(at, start=0)] if side == "right" else []
    for other in known:
        found = hw.attention(q, q, v, mask=mask, q_positions=other, k_positions=other, encoding=hw.encoding("none"))
        torch.testing.assert_close(found, right, rtol=0, atol=0)
    with pytest.raises(hw.HeadwayError, match="padding 'both'"):
        replace(at, padding="both")


@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize("kernel", ["reference", "sdpa", "cpu", "auto"])
@pytest.mark.parametrize(
    "at",
    [
        hw.Coordinates.padded([5, 2], 9)._with(length=1),
        hw.Coordinates.padded([5, 9], 9, side="right")._with(length=4),
        hw.Coordinates.span(9)._with(length=4, padding="right"),
        hw.Coordinates.span(9)._with(length=torch.tensor([[4], [6]]), padding="right"),
        hw.Coordinates.padded([5, 2], 9)._with(length=None),
    ],
    ids=["left, a number", "right, a number", "span, a number", "span, by row", "no length"],
)
def test_every_kernel_hides_the_padding_that_coordinates_state(at: hw.Coordinates, kernel: str, recorded: bool) -> None:
    if kernel == "cpu" and _library.why_not() is not None:
        pytest.skip("the C++ library is not built")
    stop = at.length if isinstance(at.length, Tensor) else 9 if at.length is None else at.length
    real = ((at.index >= 0) & (at.index < stop))[:, None, None].expand(2, 1, 9, 9)
    q, k, v = (torch.randn(2, 2, 9, 8, requires_grad=recorded) for _ in range(3))
    expected = hw.attention(q, k, v, mask=real, kernel="reference")
    for _ in range(2):
        found = hw.attention(q, k, v, q_positions=at, k_positions=at, kernel=kernel)
        assert torch.allclose(found, expected, atol=1e-5)
