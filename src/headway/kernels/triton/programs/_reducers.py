"""Reductions of the weights of a block of queries, which ``forward`` adds while it goes through the keys, in Triton.

Sums of weights are scaled as the output is: exp(score − origin), where the origin is the largest score so far. What is
to be computed comes as ``Wanted`` (``_arguments.py``), whose fields are None where it is not wanted. A state has a
number, or ``width`` numbers, for each query:

    heat, visible, distance, top, top_keys, at, labels, ranges, matched, matches

    heat = Σ exp(score − origin)·(score − origin),  of which the entropy is (W·ln Z − heat)/Z for the sum W of the keys
    and the sum Z of the keys and the sink
"""

import triton
import triton.language as tl

from ._blocks import load_statistic, store_statistic, unpacked

UNSET = tl.constexpr(1 << 30)  # above every slot and label
EDGES = tl.constexpr(128)


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
        return zeros, none, zeros, top, -1 - column, wide, wide, wide, zeros, none


@triton.jit
def scaled(state, sums, largest, origin, shrink):
    """The state for another origin, of sums Σ exp(score − largest) so far; shrink is exp(largest − origin)."""
    heat, visible, distance, top, top_keys, at, labels, ranges, matched, matches = state
    heat = tl.where(shrink == 0, 0.0, shrink * (heat + sums * (largest - origin)))
    each = shrink[:, None]
    return (
        heat, visible, distance * shrink, top, top_keys, at * each, labels * each, ranges * each, matched * shrink,
        matches,
    )  # fmt: skip


@triton.jit
def add_block(state, wanted, score, weight, origin, b, i, j, i_inside, j_inside, n, m, width: tl.constexpr):
    """Adds a block of scores [queries, keys] and of weights exp(score − origin)."""
    heat, visible, distance, top, top_keys, at, labels, ranges, matched, matches = state
    column = tl.arange(0, width)[None, :]
    seen = score != float("-inf")
    if wanted.entropy is not None:
        heat += tl.sum(tl.where(weight == 0, 0.0, weight * (score - origin[:, None])), 1)
    if wanted.visible is not None:
        visible += tl.sum(seen.to(tl.int32), 1)
    if wanted.q_index is not None:
        q_index = load_statistic(wanted.q_index, b, i, i_inside, n, 0)
        apart = load_statistic(wanted.k_index, b, j, j_inside, m, 0)[None, :] - q_index[:, None]
        if wanted.distance is not None:
            distance += tl.sum(weight * tl.abs(apart).to(tl.float32), 1)
        if wanted.ranges is not None:
            count, inside = unpacked(wanted.range_count), i_inside[:, None] & j_inside[None, :]
            first = _range_of(tl.min(tl.where(inside, apart, 1 << 62)), wanted.edges, count)
            last = _range_of(tl.max(tl.where(inside, apart, -(1 << 62))), wanted.edges, count)
            for one in range(tl.maximum(first, 0), tl.minimum(last + 1, count)):
                low, high = tl.load(wanted.edges + one), tl.load(wanted.edges + one + 1)
                part = tl.sum(tl.where((apart >= low) & (apart < high), weight, 0.0), 1)
                ranges += tl.where(column == one, part[:, None], 0.0)
        if wanted.matched is not None:
            q_label = load_statistic(wanted.q_label, b, i, i_inside, n, -1)
            k_label = load_statistic(wanted.k_label, b, j, j_inside, m, -1)
            same = (q_label[:, None] == k_label[None, :]) & (q_label >= 0)[:, None]
            same = same & seen & (apart <= unpacked(wanted.most))
            matched += tl.sum(tl.where(same, weight, 0.0), 1)
            matches += tl.sum(same.to(tl.int32), 1)
    if wanted.labels is not None:
        label = load_statistic(wanted.label, b, j, j_inside, m, -1)
        for one in range(tl.min(tl.where(label >= 0, label, UNSET), 0), tl.max(label, 0) + 1):
            part = tl.sum(tl.where((label == one)[None, :], weight, 0.0), 1)
            labels += tl.where(column == one, part[:, None], 0.0)
    if wanted.at is not None:
        count = unpacked(wanted.at_count)
        place = wanted.keys + b.to(tl.int64) * unpacked(wanted.keys_b) + i.to(tl.int64)[:, None] * count + column
        slot = tl.load(place, mask=i_inside[:, None] & (column < count), other=-1)
        here = (slot >= tl.min(j, 0)) & (slot <= tl.max(j, 0))
        found = tl.gather(weight, tl.where(here, slot - tl.min(j, 0), 0).to(tl.int32), 1)
        at += tl.where(here, found, 0.0)
    if wanted.top is not None:
        top, top_keys = _with_largest(top, top_keys, score, j)
    return heat, visible, distance, top, top_keys, at, labels, ranges, matched, matches


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
def store_sums(state, wanted, keys_sum, row_sum, which, i, inside, n, width: tl.constexpr):
    """Stores what was reduced, from the sums of exp(score − origin) of the keys, and of keys and sink."""
    heat, visible, distance, top, top_keys, at, labels, ranges, matched, matches = state
    whole = tl.where(row_sum == 0, 1.0, row_sum)
    if wanted.entropy is not None:
        entropy = (keys_sum * tl.log(whole) - heat) / whole
        store_statistic(wanted.entropy, which, i, inside, n, tl.where(entropy < 0, 0.0, entropy))
    if wanted.visible is not None:
        store_statistic(wanted.visible, which, i, inside, n, visible.to(tl.int64))
    if wanted.distance is not None:
        store_statistic(wanted.distance, which, i, inside, n, distance / whole)
    if wanted.matched is not None:
        store_statistic(wanted.matched, which, i, inside, n, matched / whole)
        store_statistic(wanted.matches, which, i, inside, n, matches.to(tl.int64))
    if wanted.top is not None:
        _store_wide(wanted.top, wanted.top_count, which, i, inside, n, top, width)
        _store_wide(wanted.top_keys, wanted.top_count, which, i, inside, n, top_keys.to(tl.int64), width)
    if wanted.at is not None:
        _store_wide(wanted.at, wanted.at_count, which, i, inside, n, at / whole[:, None], width)
    if wanted.labels is not None:
        _store_wide(wanted.labels, wanted.label_count, which, i, inside, n, labels / whole[:, None], width)
    if wanted.ranges is not None:
        _store_wide(wanted.ranges, wanted.range_count, which, i, inside, n, ranges / whole[:, None], width)


@triton.jit
def _store_wide(x, count, which, i, inside, n, value, width: tl.constexpr):
    column = tl.arange(0, width)[None, :]
    place = x + (which.to(tl.int64) * n + i)[:, None] * unpacked(count) + column
    tl.store(place, value, mask=inside[:, None] & (column < unpacked(count)))
