"""The words of a call of the CPU kernel's library, read back as csrc/call.h reads them, and what is right for them."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from headway import masks as M
from headway import reductions
from headway import terms as T
from headway.coordinates import Coordinates
from headway.kernels import Call, reduce_blocks
from headway.kernels import reference as spec
from headway.kernels.cpu import _library
from headway.kernels.lowering.terms import PastSlopes

DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.bool]
FORMS = ["rows", "linear", "log", "power", "piecewise", "cosines", "stretched"]


class Reader:
    """Reads the words of one call in order, each tensor as a view of the memory that it names.

    dtype: that in which the call is to be computed; that of the words if None.
    """

    def __init__(self, words: Any, dtype: torch.dtype | None = None) -> None:
        self.words = list(words)
        self.dtype = dtype
        self.at = 0
        self.places: list[tuple[int, Tensor]] = []
        """The tensors with the number of the word that is their address."""
        self.gradients: list[tuple[Tensor, Tensor]] = []

    def word(self) -> int:
        self.at += 1
        return self.words[self.at - 1]

    def double(self) -> float:
        return struct.unpack("d", struct.pack("q", self.word()))[0]

    def tensor(self, *shape: int) -> Tensor | None:
        data, size, dtype, *strides = (self.word() for _ in range(7))
        if not data:
            assert not any((size, dtype, *strides)) or 0 in shape
            return None if 0 not in shape else torch.zeros(shape, dtype=DTYPES[dtype])
        assert size >= 0
        assert not any(strides[len(shape) :])
        return self.view(self.at - 7, size, DTYPES[dtype], shape, strides[: len(shape)])

    def view(self, word: int, size: int, dtype: torch.dtype, shape: Sequence[int], strides: Sequence[int]) -> Tensor:
        """The tensor whose address is the word of this number, in ``size`` bytes."""
        memory = torch.frombuffer(
            (ctypes.c_byte * max(size, dtype.itemsize)).from_address(self.words[word]), dtype=dtype
        )
        found = memory[: size // dtype.itemsize].as_strided(shape, strides)
        self.places.append((word, found))
        return found

    def some(self, *shape: int) -> Tensor:
        found = self.tensor(*shape)
        assert found is not None
        return found

    def copy(self, x: Tensor) -> Tensor:
        return x.to(self.dtype or x.dtype, copy=True)

    def leaf(self, *shape: int) -> Tensor:
        """A tensor, copied, with its gradient behind it where one is wanted."""
        values = self.copy(self.some(*shape)).requires_grad_()
        gradient = self.tensor(*shape)
        if gradient is not None:
            self.gradients.append((values, gradient))
        return values


def read(r: Reader) -> tuple[Call, dict[str, Any]]:
    """The call that the words say, with a dense mask, and what is to be filled."""
    assert r.word() == _library.VERSION
    backward, threads, dtype = r.word(), r.word(), r.word()
    assert threads == torch.get_num_threads()
    b, h, kv, n, m, d, dv = (r.word() for _ in range(7))
    scale, drop_below, keep_scale, seed = r.double(), r.word(), r.double(), r.word()
    batch_offset, head_offset, partial_keys = r.word(), r.word(), r.word()
    assert keep_scale == pytest.approx(1 / (1 - drop_below / 2**32))
    q, k, v = (r.some(b, *shape) for shape in ((h, n, d), (kv, m, d), (kv, m, dv)))
    assert q.dtype == DTYPES[dtype]
    results: dict[str, Any] = {"backward": backward, "partial_keys": partial_keys, "out": r.some(b, h, n, dv)}
    results |= {name: r.tensor(b, h, n) for name in ("row_max", "row_sum")}
    q, k, v = (r.copy(x).requires_grad_(bool(backward)) for x in (q, k, v))
    if backward:
        results |= {"d_out": r.some(b, h, n, dv), "d_lse": r.tensor(b, h, n)}
        for x in (q, k, v):
            gradient = r.tensor(*x.shape)
            if gradient is not None:
                r.gradients.append((x, gradient))
    axes = r.word()
    positions = r.some(b, n, axes), r.some(b, m, axes)
    q_side, k_side = (Coordinates(p, r.some(b, p.shape[1])) for p in positions)
    mask = read_mask(r, q_side, k_side, h)
    terms: list[T.Term] = []
    left = r.word()
    while left:
        terms.append(read_term(r, q_side, k_side, h, kv, d, dv))
        left -= 1 + len(getattr(terms[-1], "biases", ()))
    terms = with_slopes(terms, q_side, k_side)
    results["gradients"] = r.gradients
    results["reductions"] = read_reductions(r, b, h, n, m) if r.word() else []
    assert r.at == len(r.words)
    call = Call(q, k, v, q_side, k_side, tuple(terms), mask, scale, drop_below / 2**32, torch.tensor([seed]))
    offsets = {"batch_offset": batch_offset, "head_offset": head_offset}
    return call._with(wants_lse=True, aligned=False, **offsets), results


def read_reductions(r: Reader, b: int, h: int, n: int, m: int) -> list[tuple[Any, Tensor | None, list[Tensor]]]:
    """Each reduction, the queries that count, and the tensors to be filled."""
    counted = r.tensor(b, n)
    found: list[tuple[Any, Tensor | None, list[Tensor]]] = []

    def wanted(one: Any, *tensors: Tensor | None) -> None:
        found.extend([(one, counted, list(tensors))] if tensors[0] is not None else [])  # type: ignore[arg-type]

    for one in (reductions.Entropy(), reductions.VisibleKeys(), reductions.MeanDistance()):
        wanted(one, r.tensor(b, h, n))
    if count := r.word():
        top = r.some(b, h, n, count), r.some(b, h, n, count)
        wanted(reductions.TopKeys(count, r.tensor(b, h, n)), *top)
    if count := r.word():
        wanted(reductions.WeightsAt(r.some(b, n, count)), r.some(b, h, n, count))
    if count := r.word():
        wanted(reductions.WeightsByLabel(r.some(b, m), count), r.some(b, h, n, count))
    if count := r.word():
        wanted(reductions.WeightsByDistance(tuple(r.some(count).tolist())), r.some(b, h, n, count + 1))
    if r.word():
        most = r.word()
        one = reductions.WeightsOfMatches(r.some(b, n), r.some(b, m), most)
        wanted(one, r.some(b, h, n), r.some(b, h, n))
    wanted(reductions.ColumnSums(), r.tensor(b, h, m))
    rows, columns = r.word(), r.word()
    if rows:
        cells = r.some(b, h, rows, columns), r.some(b, h, rows, columns)
    one_pass = bool(r.word())
    if rows:
        wanted(reductions.PooledMap(rows, columns, one_pass), *cells)
    return found


def read_mask(r: Reader, q: Coordinates, k: Coordinates, heads: int) -> M.Mask | None:
    b, n = q.index.shape
    m = k.index.shape[1]
    slots = torch.arange(m)
    intervals = [(slots >= r.some(b, n)[..., None]) & (slots < r.some(b, n)[..., None]) for _ in range(r.word())]
    allowed = torch.stack(intervals).any(0)[:, None] if intervals else torch.ones(b, 1, n, m, dtype=torch.bool)
    stack: list[Tensor] = []
    nodes = r.word()
    difference = k.index[:, None, None, :] - q.index[:, None, :, None]
    for _ in range(nodes):
        kind = r.word()
        if kind == 1:
            low, high = r.word(), r.word()
            stack.append((difference >= low) & (difference <= high))
        elif kind == 2:
            stack.append(difference % r.word() == 0)
        elif kind == 3:
            stack.append(r.some(b, n)[:, None, :, None] == r.some(b, m)[:, None, None, :])
        elif kind == 4:
            stack.append(r.some(b, m)[:, None, None, :].expand(b, 1, n, m))
        elif kind == 5:
            stack.append(r.some(b, heads, n, m))
        elif kind == 6:
            first = r.word()
            bits = r.some(b, heads, n, (first + m + 7) // 8).view(torch.uint8)
            stack.append(M.Bits(bits, m, first).allowed(q, k))
        else:
            right, left = stack.pop(), stack.pop()
            stack.append(left & right if kind == 7 else left | right)
    if nodes:
        assert len(stack) == 1
        allowed = allowed & stack[0]
    return M.Boolean(allowed) if intervals or nodes else None


def read_map(r: Reader, b: int, n: int, m: int) -> T.Map:
    maps: list[Any] = []
    for _ in range(r.word()):
        kind = r.word()
        if kind == 2:
            classes = r.word()
            maps.append(T.Classes(r.some(b, n), r.some(b, m), classes))
            continue
        axis = r.word()
        maps.append(T.Clip(r.word(), r.word(), axis) if kind == 0 else T.Bucketize(r.some(r.word() - 1), axis))
    return maps[0] if len(maps) == 1 else T.Grid(tuple(maps))


def read_term(r: Reader, q: Coordinates, k: Coordinates, h: int, kv: int, d: int, dv: int) -> T.Term | PastSlopes:
    (b, n), m = q.index.shape, k.index.shape[1]
    kind = r.word()
    if kind == 1:
        return T.QueryScale(r.leaf(b, h, n))
    if kind == 2:
        return T.TokenBias(queries=r.leaf(b, h, n))
    if kind == 3:
        return T.TokenBias(keys=r.leaf(b, h, m))
    if kind == 8:
        return T.DenseBias(r.leaf(b, h, n, m))
    if kind in (9, 10):
        axis, of_keys = r.word(), kind == 10
        slopes = r.leaf(b, h, m if of_keys else n)
        return PastSlopes(None if of_keys else slopes, slopes if of_keys else None, axis)
    if kind == 11:
        return T.Sink(r.leaf(b, h, n))
    if kind == 12:
        return T.SoftCap(r.double())
    if kind == 13:
        return T.StickWeights(bool(r.word()), bool(r.word()))
    if kind == 14:
        return T.ContextualPositions(r.leaf(h, r.word(), d))
    if kind == 15:
        width, slope = r.word(), r.copy(r.some(h))
        return T.GatedPath(r.leaf(b, h, n, width), r.leaf(b, h, m, width), slope)
    if kind == 16:
        hidden, width, biases = r.word(), r.word(), r.word()
        weights = r.leaf(hidden, 2 * h, width), r.leaf(hidden), r.leaf(h, hidden, width), r.leaf(h)
        read: Any = tuple(read_term(r, q, k, h, kv, d, dv) for _ in range(biases))
        return T.HeadNetwork(read, *weights)
    if kind == 4:
        form = FORMS[r.word()]
        if form == "rows":
            parts = read_map(r, b, n, m)
            return T.DistanceBias(T.Rows(r.leaf(h, parts.count), parts))
        if form == "stretched":
            return read_stretched(r, q, k, h)
        axis = r.word()
        if form == "piecewise":
            count = r.word()
            knots = r.some(count)
            assert knots.dtype == torch.float64
            return T.DistanceBias(T.Piecewise(knots, r.leaf(h, count), axis))
        if form == "cosines":
            count = r.word()
            frequencies = r.some(count)
            assert frequencies.dtype == torch.float64
            return T.DistanceBias(T.Cosines(r.leaf(h, count), frequencies, axis))
        closed: Any = {"linear": T.Linear, "log": T.Log, "power": T.Power}[form]
        return T.DistanceBias(closed(r.leaf(h), r.leaf(h), axis))
    parts = read_map(r, b, n, m)
    width = r.word()
    rows = T.Rows(r.leaf(h, parts.count, width), parts)
    if kind == 7:
        assert width == dv
        return T.RelativeValues(rows)
    if kind == 6:
        return T.RelativeQueries(rows, maybe(r, b, kv, m, width))
    return T.RelativeKeys(rows, maybe(r, h, width), maybe(r, b, h, n, width))


def with_slopes(terms: list[Any], q_at: Coordinates, k_at: Coordinates) -> list[T.Term]:
    """The terms, of which slopes of tokens are one product."""
    slopes = [term for term in terms if isinstance(term, PastSlopes)]
    if not slopes:
        return terms

    def product(q: Tensor, k: Tensor, rows: Tensor, *given: Tensor) -> Tensor:
        found = q @ k.mT
        for term, values, distances in zip(slopes, given[: len(slopes)], given[len(slopes) :], strict=True):
            found = found + distances[:, None, rows] * (
                values[:, :, rows, None] if term.keys is None else values[:, :, None]
            )
        return found

    values = [term.queries if term.keys is None else term.keys for term in slopes]
    past = [T.distance(q_at, k_at, term.axis).clamp(max=0).to(values[0].dtype) for term in slopes]
    return [T.Product(product, (*values, *past)), *(term for term in terms if not isinstance(term, PastSlopes))]


def read_stretched(r: Reader, q: Coordinates, k: Coordinates, h: int) -> T.DenseBias:
    """As words have it: a rate for each head, a stretch for each head and query."""
    b, n = q.index.shape
    axis, pieces = r.word(), r.word()
    edges = r.copy(r.some(pieces - 1))
    intercept, slope, rate, stretch = r.leaf(h, pieces), r.leaf(h, pieces), r.leaf(h), r.leaf(b, h, n)
    far = T.distance(q, k, axis).abs().to(edges.dtype)[:, None]
    t = torch.log1p(rate[:, None, None] * far) * stretch[..., None]
    piece = torch.searchsorted(edges, t.detach(), right=True)
    head = torch.arange(h)[:, None, None]
    return T.DenseBias(intercept[head, piece] + slope[head, piece] * t)


def maybe(r: Reader, *shape: int) -> Tensor | None:
    if r.words[r.at]:
        return r.leaf(*shape)
    assert r.words[r.at : r.at + 14] == [0] * 14 or 0 in shape
    r.at += 14
    return None


@dataclass
class Right:
    """What is right for the words of a call of attention.

    Attributes:
        results: what the call is given or is to fill: "out", "row_max", "row_sum", and "backward".
        out: [b, h, n, dv].
        row_max: [b, h, n].
        row_sum: [b, h, n].
        filled: the memory that is to be filled, as a view that has each number once, and the numbers.
    """

    results: dict[str, Any]
    out: Tensor
    row_max: Tensor
    row_sum: Tensor
    filled: list[tuple[Tensor, Tensor]]


def computed(r: Reader) -> Right:
    """Reads the words and computes by the reference kernel what the library is to compute."""
    call, results = read(r)
    with torch.enable_grad():
        plain = spec.computed(call)
        found = spec.run_block(spec.QueryBlock(plain, 0, call.q.shape[2]))
        out, lse = found.out, found.log_sum_exp
        score = spec.steps(plain)[2].detach()
    for term in call.terms:
        if isinstance(term, T.Sink):
            score = torch.cat([score, term.logits.detach()[..., None]], dim=-1)
    row_max = score.amax(-1) if score.shape[-1] else torch.full(score.shape[:3], -torch.inf)
    row_sum = (score - row_max.nan_to_num(neginf=0)[..., None]).exp().sum(-1)
    if any(isinstance(term, T.StickWeights) for term in call.terms):  # they only say whether there is a key
        row_max, row_sum = torch.where(row_max.isinf(), row_max, 0), row_max.isfinite().to(row_sum)
    right = Right(results, out.detach(), row_max, row_sum, [])
    if not results["backward"]:
        for name in ("out", "row_max", "row_sum"):
            if results[name] is not None:
                right.filled.append((results[name], getattr(right, name)))
        for one, counted, tensors in results["reductions"]:
            (values,) = reduce_blocks(call, [one], counted)
            right.filled += zip(tensors, values if isinstance(values, tuple) else [values], strict=True)
        return right
    outputs, upstream = [out], [results["d_out"].to(out.dtype)]
    if results["d_lse"] is not None:
        outputs.append(lse)
        upstream.append(results["d_lse"].to(lse.dtype))
    if results["partial_keys"]:
        outputs, upstream = [among_more_keys(plain, results)], [torch.ones((), dtype=out.dtype)]
    leaves = [leaf for leaf, _ in results["gradients"]]
    grads = torch.autograd.grad(outputs, leaves, upstream, allow_unused=True) if leaves else ()
    for (leaf, gradient), value in zip(results["gradients"], grads, strict=True):
        value = torch.zeros_like(leaf) if value is None else value
        for dim, step in enumerate(gradient.stride()):
            if step == 0:  # the kernel sums where one number stands for many
                value = value.sum(dim, keepdim=True)
        shape = [1 if step == 0 else size for size, step in zip(gradient.shape, gradient.stride(), strict=True)]
        right.filled.append((gradient.as_strided(shape, gradient.stride()), value))
    return right


def among_more_keys(plain: Call, results: dict[str, Any]) -> Tensor:
    """A number whose gradients are those of a call with results of more keys: d score = P·(dP − Σ d_out·out + d_lse).

    plain: the call, as the reference kernel computes it.
    """
    assert not any(isinstance(term, T.Sink) for term in plain.terms)
    given = {name: x.to(plain.q.dtype) for name, x in results.items() if isinstance(x, Tensor)}
    of_row = (given["d_out"] * given["out"]).sum(-1) - given.get("d_lse", torch.zeros(()))
    empty = given["row_sum"] == 0
    with torch.enable_grad():
        block = spec.QueryBlock(plain._with(aligned=False), 0, plain.q.shape[2])
        score = spec.masked(block, spec.scores(block))
        weights = (score - given["row_max"].masked_fill(empty, 0)[..., None]).exp()
        weights = weights / given["row_sum"].masked_fill(empty, 1)[..., None]
        out = spec.weighted_sum(block, spec.dropped(block, weights))
        return (given["d_out"] * out).sum() - (of_row[..., None] * weights).sum()
