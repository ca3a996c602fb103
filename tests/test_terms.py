"""The contract between encodings and kernels: maps from distance to row, blocks of rows, and what does not fit."""

from __future__ import annotations

import copy
import math
import pickle
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import headway as hw
from headway import Coordinates
from headway import terms as T
from headway.errors import HeadwayError
from headway.kernels import KERNELS
from headway.testing.inputs import term_examples

WHOLE = torch.arange(-9, 10)
BETWEEN = torch.tensor([-2.5, -2.0, -1.0001, -1.0, -0.5, 0.0, 0.5, 0.9999, 1.0, 7.25])


def rows_at(where: T.Map, deltas: Tensor) -> list[int]:
    """The rows for these distances: one query at 0, a key at each."""
    q, k = Coordinates.of(deltas.new_zeros(1), 1), Coordinates.of(deltas, len(deltas))
    rows = where.rows(q, k)
    assert rows.dtype == torch.int64
    return rows[0, 0].tolist()


@pytest.mark.parametrize("deltas", [WHOLE, BETWEEN, BETWEEN.double()])
def test_clip(deltas: Tensor) -> None:
    assert T.Clip(-2, 4).count == 7
    assert rows_at(T.Clip(-2, 4), deltas) == [max(-2, min(4, math.floor(d))) + 2 for d in deltas.tolist()]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("low", "high"), [(2**24 - 3, 2**24 + 1), (2**24 - 3, 2**24 + 3), (-(2**24) - 3, 1 - 2**24)])
def test_bounds_of_a_clip_that_float32_cannot_represent(low: int, high: int, dtype: torch.dtype) -> None:
    clip, far = T.Clip(low, high), [-math.inf, -1e30, -(2.0**40), 2.0**40, 1e30, math.inf]
    deltas = torch.tensor([*range(low - 5, high + 5), *far], dtype=dtype)
    wanted = [low if d < low else high if d > high else math.floor(d) for d in deltas.tolist()]
    assert rows_at(clip, deltas) == [whole - low for whole in wanted]
    assert rows_at(T.Bucketize(torch.arange(low + 1, high + 1)), deltas) == [whole - low for whole in wanted]
    distances = torch.tensor([low, high], dtype=dtype)
    table = torch.zeros(1, clip.count)
    table[:, -1] = 1
    for kernel in ("reference", "cpu"):
        weights = hw.attention(
            *(torch.zeros(1, 1, m, 2) for m in (1, 2)),
            torch.eye(2)[None, None],
            terms=(T.DistanceBias(T.Rows(table, clip)),),
            q_positions=torch.zeros(1, dtype=dtype),
            k_positions=distances,
            kernel=kernel,
        )
        last = torch.tensor([float(d >= high) for d in distances.tolist()])
        torch.testing.assert_close(weights[0, 0, 0], last.softmax(0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64])
@pytest.mark.parametrize("deltas", [WHOLE, BETWEEN])
def test_steps(deltas: Tensor, dtype: torch.dtype) -> None:
    """row = boundaries reached: a distance on a boundary is behind it, one between whole boundaries is not rounded."""
    boundaries = [-2, -1, 0, 1, 4]
    where = T.Bucketize(torch.tensor(boundaries, dtype=dtype))
    assert where.count == 6
    assert rows_at(where, deltas) == [sum(b <= d for b in boundaries) for d in deltas.tolist()]


@pytest.mark.parametrize(
    "dtype", [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16]
)
def test_narrow_boundaries_do_not_change_a_distance(dtype: torch.dtype) -> None:
    where = T.Bucketize(torch.tensor([1, 100], dtype=dtype))
    assert rows_at(where, torch.tensor([0, 1, 99, 100, 256, 300, 2**16, 2**32, 2**60])) == [0, 1, 1] + [2] * 6
    assert rows_at(where, torch.tensor([0.5, 99.999, 100.0, 300.0])) == [0, 1, 2, 2]


def test_a_step_just_above_a_distance() -> None:
    above = torch.nextafter(torch.tensor([2.0]), torch.tensor([math.inf]))
    assert rows_at(T.Bucketize(above), torch.tensor([1, 2, 3])) == [0, 0, 1]


def test_a_reach_below_0() -> None:
    with pytest.raises(HeadwayError, match="reach of -1: give the largest size"):
        T.Bucketize(torch.tensor([1, 2]), reach=-1)


def test_grid_and_classes() -> None:
    positions = torch.tensor([[[0, 0], [1, 2], [3, 1]]])
    where = Coordinates.of(positions, 3)
    grid = T.Grid((T.Clip(-1, 1, 0), T.Clip(-2, 2, 1)))
    assert grid.count == 15
    expected = [
        [(max(-1, min(1, int(kp[0] - qp[0]))) + 1) * 5 + max(-2, min(2, int(kp[1] - qp[1]))) + 2 for kp in positions[0]]
        for qp in positions[0]
    ]
    assert grid.rows(where, where)[0].tolist() == expected
    classes = T.Classes(torch.tensor([[0, 2]]), torch.tensor([[1, 0, 2]]), 3)
    assert classes.count == 9
    assert classes.rows(where, where)[0].tolist() == [[1, 0, 2], [7, 6, 8]]


def test_distance_is_key_minus_query() -> None:
    q, k = Coordinates.of(torch.tensor([10]), 1), Coordinates.of(torch.tensor([4, 13]), 2)
    assert T.distance(q, k).tolist() == [[[-6, 3]]]


# ---------------------------------------------------------------- blocks

SIZES: dict[str, int] = {"batch": 2, "heads": 4, "kv_heads": 2, "n": 5, "m": 7, "head_dim": 4, "v_dim": 3}
NAMES = list(term_examples(torch.randn, **SIZES))


@pytest.mark.parametrize("name", NAMES)
def test_a_block_holds_its_queries_alone(name: str) -> None:
    """What is by query is cut to the block, and nothing else."""
    for term in term_examples(torch.randn, **SIZES)[name]:
        block = term.block(1, 3)
        assert type(block) is type(term)
        parts = [(term, block)]
        for whole, part in parts:
            for key, value in vars(whole).items():
                cut = getattr(part, key)
                if isinstance(value, T.Part):
                    parts.append((value, cut))
                elif isinstance(value, tuple) and value:
                    parts += zip(value, cut, strict=True)
                elif not isinstance(value, Tensor):
                    assert cut is value
                elif key in ("factor", "queries", "logits", "q_sums"):
                    assert torch.equal(cut, value[..., 1:3])
                elif key in ("query", "values") and value.ndim == 4:
                    assert torch.equal(cut, value[:, :, 1:3])
                elif key in ("q_cos", "q_sin"):
                    assert torch.equal(cut, value[..., 1:3, :])
                elif key in ("q_class", "stretch"):
                    assert torch.equal(cut, value[:, 1:3])
                else:
                    assert cut is value


def test_what_stands_for_all_queries_stays() -> None:
    for term in (
        T.QueryScale(torch.ones(1, 4, 1)),
        T.TokenBias(keys=torch.ones(1, 1, 7)),
        T.DenseBias(torch.ones(1, 7)),
        T.DenseBias(torch.ones(7)),
    ):
        assert term.block(1, 3) is term


FUNCTIONS = ("product", "score map", "normalizer", "dense bias, function")


@pytest.mark.parametrize("name", [name for name in NAMES if name not in FUNCTIONS])
def test_copies_and_pickles(name: str) -> None:
    terms = term_examples(torch.randn, **SIZES)[name]
    for again in (copy.deepcopy(terms), pickle.loads(pickle.dumps(terms))):
        assert repr(again) == repr(terms)


# ---------------------------------------------------------------- what does not fit

WRONG: dict[str, tuple[Callable[[], T.Term], str]] = {
    "temperature": (
        lambda: T.QueryScale(torch.ones(1, 4, 6)),
        r"factor of shape \(1, 4, 6\): give \[1 or 2, 1 or 4, 1 or 5\]",
    ),
    "temperature of two dimensions": (
        lambda: T.QueryScale(torch.ones(4, 5)),
        r"QueryScale has factor of shape \(4, 5\)",
    ),
    "table": (
        lambda: T.DistanceBias(T.Rows(torch.ones(3, 5), T.Clip(-2, 2))),
        r"table of shape \(3, 5\): give \[1 or 4, 5\]",
    ),
    "table of vectors as a bias": (
        lambda: T.DistanceBias(T.Rows(torch.ones(4, 5, 4), T.Clip(-2, 2))),
        r"table of shape \(4, 5, 4\): give \[1 or 4, 5\]",
    ),
    "linear": (
        lambda: T.DistanceBias(T.Linear(torch.ones(4), torch.ones(3))),
        r"future of shape \(3,\): give \[1 or 4\]",
    ),
    "logarithm": (lambda: T.DistanceBias(T.Log(torch.ones(4, 1), torch.ones(4))), r"weight of shape \(4, 1\)"),
    "power": (lambda: T.DistanceBias(T.Power(torch.ones(4), torch.ones(2))), r"exponent of shape \(2,\)"),
    "piecewise": (
        lambda: T.DistanceBias(T.Piecewise(torch.arange(3.0), torch.ones(2, 3))),
        r"values of shape \(2, 3\)",
    ),
    "relative keys": (
        lambda: T.RelativeKeys(T.Rows(torch.ones(1, 3, 5), T.Clip(-1, 1))),
        r"RelativeKeys has table of shape \(1, 3, 5\): give \[1 or 4, 3, 8\]",
    ),
    "bias of relative keys": (
        lambda: T.RelativeKeys(T.Rows(torch.ones(1, 3, 8), T.Clip(-1, 1)), query_bias=torch.ones(8)),
        r"query_bias of shape \(8,\): give \[1 or 4, 8\]",
    ),
    "sinusoids": (
        lambda: T.RelativeKeys(T.Sinusoids(torch.ones(4, 8, 5), torch.ones(3))),
        r"weight of shape \(4, 8, 5\): give \[1 or 4, 8, 6\]",
    ),
    "relative queries": (
        lambda: T.RelativeQueries(T.Rows(torch.ones(2, 3, 8), T.Clip(-1, 1))),
        r"table of shape \(2, 3, 8\)",
    ),
    "relative values": (
        lambda: T.RelativeValues(T.Rows(torch.ones(1, 3, 8), T.Clip(-1, 1))),
        r"RelativeValues has table of shape \(1, 3, 8\): give \[1 or 4, 3, 3\]",
    ),
    "token bias of queries": (lambda: T.TokenBias(queries=torch.ones(1, 4, 7)), r"queries of shape \(1, 4, 7\)"),
    "token bias of keys": (
        lambda: T.TokenBias(keys=torch.ones(1, 4, 1)),
        r"keys of shape \(1, 4, 1\): give \[1 or 2, 1 or 4, 7\]",
    ),
    "dense bias": (lambda: T.DenseBias(torch.ones(5, 6)), r"values of shape \(5, 6\): give \[1 or 5, 1 or 7\]"),
    "dense bias of five dimensions": (
        lambda: T.DenseBias(torch.ones(1, 1, 1, 5, 7)),
        r"values of shape \(1, 1, 1, 5, 7\)",
    ),
    "sink": (lambda: T.Sink(torch.ones(1)), r"Sink has logits of shape \(1,\): give \[4\]"),
    "sink by query": (
        lambda: T.Sink(torch.ones(2, 4, 7)),
        r"Sink has logits of shape \(2, 4, 7\): give \[1 or 2, 1 or 4, 1 or 5\]",
    ),
    "sink of two dimensions": (lambda: T.Sink(torch.ones(4, 5)), r"logits of shape \(4, 5\): give \[1 or 2, 1 or 4, "),
    "classes": (
        lambda: T.DistanceBias(
            T.Rows(torch.ones(1, 4), T.Classes(torch.zeros(1, 7).long(), torch.zeros(1, 7).long(), 2))
        ),
        r"q_class of shape \(1, 7\): give \[1 or 2, 5\]",
    ),
    "classes of floats": (
        lambda: T.DistanceBias(T.Rows(torch.ones(1, 4), T.Classes(torch.zeros(1, 5), torch.zeros(1, 7).long(), 2))),
        r"DistanceBias has q_class of torch\.float32: give whole numbers",
    ),
    "no term": (lambda: "sink", r"terms hold a str: give objects of headway\.terms"),
}


@pytest.mark.parametrize("name", WRONG)
def test_terms_that_do_not_fit(name: str) -> None:
    make, message = WRONG[name]
    q, k, v = torch.randn(2, 4, 5, 8), torch.randn(2, 2, 7, 8), torch.randn(2, 2, 7, 3)
    with pytest.raises(hw.HeadwayError, match=message):
        hw.attention(q, k, v, terms=(make(),))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: T.Clip(3, 2), r"Clip runs from 3 to 2: low must not exceed high"),
        (lambda: T.Clip(-(10**30), 0), r"Clip has low of -1000000000000000000000000000000: give one within ±2⁶⁰"),
        (lambda: T.Clip(0, sys.maxsize), r"Clip has high of 9223372036854775807: give one within ±2⁶⁰"),
        (lambda: T.Rows(torch.ones(2, 4), T.Clip(-2, 2)), r"table has shape \(2, 4\) but Clip maps to 5 rows"),
        (lambda: T.Rows(torch.ones(5), T.Clip(-2, 2)), r"table has shape \(5,\)"),
        (lambda: T.SoftCap(0.0), r"soft_cap is 0\.0: give a number above 0, or None"),
        (lambda: T.SoftCap(math.inf), r"soft_cap is inf"),
        (lambda: T.SoftCap(math.nan), r"soft_cap is nan"),
        (lambda: T.Piecewise(torch.ones(1), torch.ones(4, 1)), r"knots have shape \(1,\).*at least 2 knots"),
        (
            lambda: T.Piecewise(torch.arange(3.0), torch.ones(4, 2)),
            r"values \(4, 2\): give \[knots\] and \[heads, knots\]",
        ),
    ],
)
def test_terms_that_cannot_be(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(hw.HeadwayError, match=message):
        make()


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.bool])
def test_classes_of_any_whole_dtype(dtype: torch.dtype, kernel: str) -> None:
    """Pairs of classes are more than a small dtype counts."""
    q, k, v = torch.randn(2, 4, 5, 8), torch.randn(2, 2, 7, 8), torch.randn(2, 2, 7, 3)
    tables, classes = (torch.randn(4, 400), torch.randn(4, 400, 8)), torch.tensor([[0, 19, 1, 18, 19, 7, 0]]).to(dtype)
    for table in tables[:1] if kernel == "sdpa" else tables:
        found, expected = (
            hw.attention(q, k, v, terms=(term(T.Rows(table, T.Classes(x[:, 2:], x, 20))),), kernel=kernel)
            for term in (T.DistanceBias if table.ndim == 2 else T.RelativeKeys,)
            for x in (classes, classes.long())
        )
        assert torch.equal(found, expected)


class Shaped(hw.positions.PositionEncoding):
    """An encoding whose terms do not fit the heads."""

    def terms(self, *_: object) -> tuple[T.Term, ...]:
        return (T.DistanceBias(T.Linear(torch.ones(3), torch.ones(3))),)


def test_the_terms_of_an_encoding_are_checked_too() -> None:
    x = torch.randn(1, 4, 5, 8)
    with pytest.raises(hw.HeadwayError, match=r"DistanceBias has past of shape \(3,\): give \[1 or 4\]"):
        hw.attention(x, x, x, encoding=Shaped())


@pytest.mark.parametrize("kernel", ["reference", "cpu"])
def test_a_gated_bias_is_the_bias_times_a_factor_of_each_query(kernel: str) -> None:
    torch.manual_seed(0)
    n, heads = 70, 4
    q, k, v = (torch.randn(2, heads, n, 16, requires_grad=True) for _ in range(3))
    table, weight = torch.randn(heads, 9, requires_grad=True), torch.randn(heads, 16, requires_grad=True)
    gate = torch.einsum("bhnd,hd->bhn", q, weight).sigmoid()
    rows = T.Rows(table, T.Clip(-6, 2))
    distance = torch.arange(n) - torch.arange(n)[:, None]
    bias = table[:, distance.clamp(-6, 2) + 6] * gate[..., None]
    for scale in (0.25, 0.5):
        term = T.DistanceBias(rows).gated(gate, scale)
        out = hw.attention(q, k, v, terms=[term], scale=scale, mask=hw.masks.Causal(), kernel=kernel)
        dense = [T.DenseBias(bias)]
        wanted = hw.attention(q, k, v, terms=dense, scale=scale, mask=hw.masks.Causal(), kernel="reference")
        torch.testing.assert_close(out, wanted, atol=1e-5, rtol=1e-5)
        leaves, upstream = (q, k, v, table, weight), torch.randn_like(out)
        found, right = (torch.autograd.grad((one * upstream).sum(), leaves, retain_graph=True) for one in (out, wanted))
        for one, other in zip(found, right, strict=True):
            torch.testing.assert_close(one, other, atol=2e-5, rtol=2e-4)


def test_a_gated_bias_has_rows_and_a_factor_of_each_query() -> None:
    gate = torch.ones(1, 4, 8)
    with pytest.raises(HeadwayError, match="gated takes a bias of Rows, and this one is a Linear: write its values"):
        T.DistanceBias(T.Linear(torch.ones(4), torch.ones(4))).gated(gate, 0.25)
    with pytest.raises(HeadwayError, match=r"gate has shape \(8,\): give \[batch, heads, n\]"):
        T.DistanceBias(T.Rows(torch.ones(4, 3), T.Clip(-1, 1))).gated(gate[0, 0], 0.25)
    with pytest.raises(HeadwayError, match="scale is 0, by which the gate would be divided"):
        T.DistanceBias(T.Rows(torch.ones(4, 3), T.Clip(-1, 1))).gated(gate, 0.0)
    assert (
        hw.explain(
            *(torch.ones(1, 4, 8, 16),) * 3,
            terms=[T.DistanceBias(T.Rows(torch.ones(4, 3), T.Clip(-1, 1))).gated(gate, 0.25)],
        ).kernel
        == "cpu"
    )


def rotation_limited_to(window: float, layout: str = "half", pairs: int = 4) -> T.LimitedRotation:
    q, k = torch.ones(3, 1, 1, 5, pairs), torch.ones(2, 1, 1, 5, pairs)
    return T.LimitedRotation(window, q, q, k, k, layout)


def test_terms_that_replace_the_product_are_checked() -> None:
    with pytest.raises(HeadwayError, match="LimitedRotation has window 0: give a distance above 0"):
        rotation_limited_to(0)
    with pytest.raises(HeadwayError, match="LimitedRotation has layout 'pairs': give 'interleaved' or 'half'"):
        rotation_limited_to(2, "pairs")
    w, beta, sums = torch.ones(1, 1, 5, 8), torch.ones(1, 1, 5), torch.ones(1, 1, 5)
    with pytest.raises(HeadwayError, match="only one of q_sums and k_sums: give both, or neither"):
        T.HouseholderPath(w, beta, k_sums=sums)
    q, odd = torch.ones(1, 1, 5, 8), torch.ones(1, 1, 5, 9)
    with pytest.raises(HeadwayError, match="head_dim is 9: give an even one"):
        hw.attention(odd, odd, odd, terms=[rotation_limited_to(2)])
    with pytest.raises(HeadwayError, match="HouseholderPath and LimitedRotation, each of which replaces ⟨q, k⟩"):
        hw.attention(q, q, q, terms=[T.HouseholderPath(w, beta), rotation_limited_to(2)])


def test_distances_of_positions_in_float64_are_not_rounded_with_the_positions() -> None:
    at = torch.arange(5, dtype=torch.float64)[None] + 0.5
    q, term = torch.randn(1, 1, 5, 8), T.ContentSlope(torch.ones(1), torch.ones(1, 8))
    near, far = (
        hw.attention(q, q, q, terms=[term], mask=hw.masks.Causal(), q_positions=x, k_positions=x, kernel="reference")
        for x in (at, at + 2**40)
    )
    assert torch.equal(near, far)
