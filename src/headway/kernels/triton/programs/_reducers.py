"""Reductions of the weights of a block of queries, which ``forward`` adds while it goes through the keys, in Triton.

Sums of weights are scaled as the output is: exp(score − origin), where the origin is the largest score so far. What is
to be computed comes as ``Wanted`` (``_arguments.py``), whose fields are None where it is not wanted.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from ._blocks import load_statistic, store_statistic, unpacked

UNSET = tl.constexpr(1 << 30)  # above every slot and label
EDGES = tl.constexpr(128)


class Reduced(NamedTuple):
    """What is reduced of the weights so far: a number, or ``width`` numbers, for each query.

    heat = Σ exp(score − origin)·(score − origin),  of which the entropy is (W·ln Z − heat)/Z for the sum W of the
    keys and the sum Z of the keys and the sink
    """

    heat: Any
    visible: Any
    distance: Any
    top: Any
    top_keys: Any
    at: Any
    labels: Any
    ranges: Any
    matched: Any
    matches: Any


@triton.jit
def no_sums(wanted, rows: tl.constexpr, width: tl.constexpr):
    """The state before the first block of keys."""
    zeros, none = tl.zeros([rows], tl.float32), tl.zeros([rows], tl.int32)
    if width == 0:
        return zeros
    else:
        wide = tl.zeros([rows, width], tl.float32)
        column = tl.arange(0, width)[None, :] + tl.zeros([rows, 1], tl.int32)
        top = wide
        if wanted.top is not None:  # columns that are not wanted are never the smallest
            top = tl.where(column < unpacked(wanted.top_count), float("-inf"), float("inf"))
        return Reduced(zeros, none, zeros, top, -1 - column, wide, wide, wide, zeros, none)


@triton.jit
def scaled(state, sums, largest, origin, shrink):
    """The state for another origin, of sums Σ exp(score − largest) so far; shrink is exp(largest − origin)."""
    heat = tl.where(shrink == 0, 0.0, shrink * (state.heat + sums * (largest - origin)))
    each = shrink[:, None]
    return Reduced(
        heat, state.visible, state.distance * shrink, state.top, state.top_keys, state.at * each, state.labels * each,
        state.ranges * each, state.matched * shrink, state.matches,
    )  # fmt: skip


@triton.jit
def add_block(state, wanted, score, weight, origin, tile, width: tl.constexpr):
    """Adds a block of scores [queries, keys] and of weights exp(score − origin)."""
    b, q, k, n, m = tile.head.b, tile.q, tile.k, tile.head.n, tile.head.m
    heat, visible, distance, top, top_keys, at, labels, ranges, matched, matches = state
    column = tl.arange(0, width)[None, :]
    seen = score != float("-inf")
    if wanted.entropy is not None:
        heat += tl.sum(tl.where(weight == 0, 0.0, weight * (score - origin[:, None])), 1)
    if wanted.visible is not None:
        visible += tl.sum(seen.to(tl.int32), 1)
    if wanted.q_index is not None:
        q_index = load_statistic(wanted.q_index, b, q.at, q.inside, n, 0)
        apart = load_statistic(wanted.k_index, b, k.at, k.inside, m, 0)[None, :] - q_index[:, None]
        if wanted.distance is not None:
            distance += tl.sum(weight * tl.abs(apart).to(tl.float32), 1)
        if wanted.ranges is not None:
            count, inside = unpacked(wanted.range_count), q.inside[:, None] & k.inside[None, :]
            first = _range_of(tl.min(tl.where(inside, apart, 1 << 62)), wanted.edges, count)
            last = _range_of(tl.max(tl.where(inside, apart, -(1 << 62))), wanted.edges, count)
            for one in range(tl.maximum(first, 0), tl.minimum(last + 1, count)):
                low, high = tl.load(wanted.edges + one), tl.load(wanted.edges + one + 1)
                part = tl.sum(tl.where((apart >= low) & (apart < high), weight, 0.0), 1)
                ranges += tl.where(column == one, part[:, None], 0.0)
        if wanted.matched is not None:
            q_label = load_statistic(wanted.q_label, b, q.at, q.inside, n, -1)
            k_label = load_statistic(wanted.k_label, b, k.at, k.inside, m, -1)
            same = (q_label[:, None] == k_label[None, :]) & (q_label >= 0)[:, None]
            same = same & seen & (apart <= unpacked(wanted.most))
            matched += tl.sum(tl.where(same, weight, 0.0), 1)
            matches += tl.sum(same.to(tl.int32), 1)
    if wanted.labels is not None:
        label = load_statistic(wanted.label, b, k.at, k.inside, m, -1)
        for one in range(tl.min(tl.where(label >= 0, label, UNSET), 0), tl.max(label, 0) + 1):
            part = tl.sum(tl.where((label == one)[None, :], weight, 0.0), 1)
            labels += tl.where(column == one, part[:, None], 0.0)
    if wanted.at is not None:
        count = unpacked(wanted.at_count)
        place = wanted.keys + b.to(tl.int64) * unpacked(wanted.keys_b) + q.at.to(tl.int64)[:, None] * count + column
        slot = tl.load(place, mask=q.inside[:, None] & (column < count), other=-1)
        here = (slot >= tl.min(k.at, 0)) & (slot <= tl.max(k.at, 0))
        found = tl.gather(weight, tl.where(here, slot - tl.min(k.at, 0), 0).to(tl.int32), 1)
        at += tl.where(here, found, 0.0)
    if wanted.top is not None:
        top, top_keys = _with_largest(top, top_keys, score, k.at)
    return Reduced(heat, visible, distance, top, top_keys, at, labels, ranges, matched, matches)


@triton.jit
def _range_of(distance, edges, count):
    """The number of the range that holds a distance: −1 below the first of the edges, count from the last one on."""
    at = tl.arange(0, EDGES)
    return tl.sum((tl.load(edges + at, mask=at <= count, other=1 << 62) <= distance).to(tl.int32), 0) - 1


@triton.jit
def _with_largest(top, top_keys, score, j):
    """The largest scores so far, in any order, after those of a block: its largest one by one, while any is larger.

    Of equal scores that of the lowest slot is larger.
    """
    best, at, last, larger = _compared(top, top_keys, score, j)
    while tl.max(larger.to(tl.int32), 0) != 0:
        leaves = larger[:, None] & (top_keys == last[:, None])
        top = tl.where(leaves, best[:, None], top)
        top_keys = tl.where(leaves, at[:, None], top_keys)
        score = tl.where(larger[:, None] & (j[None, :] == at[:, None]), float("-inf"), score)
        best, at, last, larger = _compared(top, top_keys, score, j)
    return top, top_keys


@triton.jit
def _compared(top, top_keys, score, j):
    """Of each query the largest score of a block, its key, the key to be left out for it, and whether it is larger."""
    best, lowest = tl.max(score, 1), tl.min(top, 1)
    at = tl.min(tl.where(score == best[:, None], j[None, :], UNSET), 1)
    last = tl.max(tl.where(top == lowest[:, None], top_keys, -UNSET), 1)
    return best, at, last, (best > lowest) | ((best == lowest) & (at < last) & (best > float("-inf")))


@triton.jit
def store_sums(state, wanted, keys_sum, row_sum, head, q, width: tl.constexpr):
    """Stores what was reduced, from the sums of exp(score − origin) of the keys, and of keys and sink."""
    which, n = head.which, head.n
    whole = tl.where(row_sum == 0, 1.0, row_sum)
    if wanted.entropy is not None:
        entropy = (keys_sum * tl.log(whole) - state.heat) / whole
        store_statistic(wanted.entropy, which, q.at, q.inside, n, tl.where(entropy < 0, 0.0, entropy))
    if wanted.visible is not None:
        store_statistic(wanted.visible, which, q.at, q.inside, n, state.visible.to(tl.int64))
    if wanted.distance is not None:
        store_statistic(wanted.distance, which, q.at, q.inside, n, state.distance / whole)
    if wanted.matched is not None:
        store_statistic(wanted.matched, which, q.at, q.inside, n, state.matched / whole)
        store_statistic(wanted.matches, which, q.at, q.inside, n, state.matches.to(tl.int64))
    if wanted.top is not None:
        _store_wide(wanted.top, wanted.top_count, head, q, state.top, width)
        _store_wide(wanted.top_keys, wanted.top_count, head, q, state.top_keys.to(tl.int64), width)
    if wanted.at is not None:
        _store_wide(wanted.at, wanted.at_count, head, q, state.at / whole[:, None], width)
    if wanted.labels is not None:
        _store_wide(wanted.labels, wanted.label_count, head, q, state.labels / whole[:, None], width)
    if wanted.ranges is not None:
        _store_wide(wanted.ranges, wanted.range_count, head, q, state.ranges / whole[:, None], width)


@triton.jit
def _store_wide(x, count, head, q, value, width: tl.constexpr):
    column = tl.arange(0, width)[None, :]
    place = x + (head.which.to(tl.int64) * head.n + q.at)[:, None] * unpacked(count) + column
    tl.store(place, value, mask=q.inside[:, None] & (column < unpacked(count)))
