"""The targets of a benchmark, and whether they are met; the worst case of each target decides."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from . import statistics
from .cases import STATISTICS_MEMORY, Case, ModelCase, pairs
from .rows import Row
from .sides import (
    CONTIGUOUS,
    COPY,
    DENSE,
    DENSE_GRADIENT,
    FLEX,
    FULL_CAUSAL,
    HF_EAGER,
    HF_SDPA,
    OURS,
    PLAIN,
    READ,
    SDPA,
)
from .tokens import BY_HAND

ZEN_5 = "family 26"
"""How the description of a processor names AMD's Zen 5."""

PROCESSORS = {ZEN_5: "Zen 5"}
"""The names of the processors for which targets were set."""

BY_DISTANCE = ("alibi", "t5", "kerple")
LEARNED = ("t5", "kerple")

Values = Callable[[Sequence[Row]], list[tuple[float, str]]]
"""Maps the rows of one dtype to the values that a target compares, each with its case."""


@dataclass(frozen=True)
class Target:
    """A target for the kernel on a processor with AVX-512, and with BF16 for bfloat16.

    Attributes:
        what: the comparison, in words.
        values: the values of a set of rows.
        wanted: the bound for each dtype.
        at_most: whether it is an upper bound.
        unit: the unit: "×", "%", "+%", "GB" or none.
        on: the only processor to which it applies, a key of PROCESSORS: a ratio to another library depends on how
            well that library uses the processor. "" if it applies to all.
    """

    what: str
    values: Values
    wanted: dict[str, float]
    at_most: bool = False
    unit: str = "×"
    on: str = ""

    def text(self, value: float) -> str:
        """Returns a ``value`` with its unit."""
        return {
            "×": f"{value:.2f}×",
            "%": f"{100 * value:.0f} %",
            "+%": f"{100 * value:+.1f} %",
            "GB": f"{value / 1e9:.2f} GB",
            "": f"{value:.2f}",
        }[self.unit]


@dataclass(frozen=True)
class Judged:
    """A target in one dtype, the worst value measured, and its case.

    ``applies`` says whether the target is one of the processor that was measured.
    """

    target: Target
    dtype: str
    worst: float
    at: str
    count: int
    applies: bool = True

    @property
    def wanted(self) -> str:
        """The bound, as text."""
        sign = "≤" if self.target.at_most else "≥"
        return f"{sign} {self.target.text(self.target.wanted[self.dtype])}"

    @property
    def measured(self) -> str:
        """The worst value, as text."""
        return self.target.text(self.worst)

    @property
    def verdict(self) -> str:
        """ "met", "missed", or the only processor for which the bound was set."""
        if not self.applies:
            return f"for {PROCESSORS[self.target.on]}"
        bound = self.target.wanted[self.dtype]
        return "met" if (self.worst <= bound if self.target.at_most else self.worst >= bound) else "missed"


def judge(rows: Sequence[Row], targets: Sequence[Target]) -> list[Judged]:
    """Judges every target in every dtype for which it has a bound and a case was measured."""
    judged = []
    for target in targets:
        for dtype in target.wanted:
            chosen = [row for row in rows if row["case"]["dtype"] == dtype]
            values = target.values(chosen)
            if not values:
                continue
            worst, at = (max if target.at_most else min)(values, key=lambda pair: pair[0])
            applies = not target.on or all(target.on in row["where"]["processor"] for row in chosen)
            judged.append(Judged(target, dtype, worst, at, len(values), applies))
    return judged


# ---------------------------------------------------------------- values of a row


def times(row: Row, side: str) -> float | None:
    """Returns how many times as fast as a side headway is; None if that was not measured."""
    milliseconds = row.get("ms", {})
    return milliseconds[side] / milliseconds[OURS] if side in milliseconds else None


def over(row: Row, side: str) -> float | None:
    """Returns headway's time divided by that of a side; None if that was not measured."""
    faster = times(row, side)
    return None if faster is None else 1 / faster


def peer(row: Row) -> str:
    """Returns the side of torch that computes the same case; SDPA if none was measured."""
    return next((side for side in (DENSE_GRADIENT, DENSE) if side in row["ms"]), SDPA)


def gflops(row: Row, side: str = OURS) -> float | None:
    """Returns 10⁹ operations per second; None if the side was not measured."""
    taken = row.get("ms", {}).get(side)
    return None if taken is None else Case(**row["case"]).flop / taken / 1e6


def share_of_roof(row: Row, side: str = OURS) -> float | None:
    """Returns the operations per second as a share of the roof, measured in turn with the case."""
    reached, roof = gflops(row, side), row.get("roof_gflops")
    return None if reached is None or roof is None else reached / roof


def share_of_copy(row: Row) -> float | None:
    """Returns the bandwidth as a share of a copy's, which reads and writes the bytes that headway only reads."""
    copied = over(row, COPY)
    return None if copied is None else 0.5 / copied


def share_of_reading(row: Row) -> float | None:
    """Returns the bandwidth as a share of that of only reading."""
    read = over(row, READ)
    return None if read is None else 1 / read


def _one_query(row: Row) -> float | None:
    return share_of_reading(row) if Case(**row["case"]).queries == 1 else None


def _more_queries(row: Row) -> float | None:
    return times(row, SDPA) if Case(**row["case"]).queries > 1 else None


# ---------------------------------------------------------------- the targets


def each(
    value: Callable[[Row], float | None],
    kind: str = "attention",
    direction: str | None = None,
    encodings: tuple[str, ...] | None = ("none",),
    masks: tuple[str, ...] | None = None,
    least: int = 512,
    most: float = math.inf,
    dims: tuple[int, ...] | None = None,
) -> Values:
    """Returns a function that takes the value of every row of some cases; an argument of None admits any case."""

    def values(rows: Sequence[Row]) -> list[tuple[float, str]]:
        values_and_cases = []
        for row in rows:
            case = Case(**row["case"])
            fits = (
                case.kind == kind
                and direction in (None, case.direction)
                and (encodings is None or case.encoding in encodings)
                and (masks is None or case.mask in masks)
                and least <= case.n <= most
                and (dims is None or case.head_dim in dims)
            )
            said = value(row) if fits else None
            if said is not None:
                values_and_cases.append((said, str(case)))
        return values_and_cases

    return values


def faster(side: str, direction: str, encodings: tuple[str, ...] = ("none",), **cases: Any) -> Values:
    """Returns how many times as fast as a side headway is, for the cases that ``each`` would select."""
    return each(lambda row: times(row, side), direction=direction, encodings=encodings, **cases)


def slower(side: str, **cases: Any) -> Values:
    """Returns headway's time divided by that of a side, for the cases that ``each`` would select."""
    return each(lambda row: over(row, side), **cases)


def both(float32: float, bfloat16: float) -> dict[str, float]:
    """Returns the bounds of both dtypes."""
    return {"float32": float32, "bfloat16": bfloat16}


def _extra(row: Row) -> float | None:
    cost = over(row, PLAIN)
    return None if cost is None else cost - 1


def _against_area(row: Row) -> float | None:
    cost, case = over(row, FULL_CAUSAL), Case(**row["case"])
    return None if cost is None else cost / (case.pairs / pairs("causal", case.n))


def _growth(kind: str) -> Values:
    """The exponent of n by which memory grows from one length to the next: 1 if linear, 2 if quadratic."""
    return lambda rows: _exponents(
        (row["case"]["n"], row["extra_bytes"]) for row in rows if row["case"]["kind"] == kind
    )


def second_pass(row: Row) -> float | None:
    """Returns the time that column sums add to attention, divided by that of attention; None if not measured."""
    together = times(row, statistics.beside(statistics.RECEIVED))
    return None if together is None else together - 1


def against_materialized(row: Row) -> float | None:
    """Returns how many times as fast headway's statistics are as those of materialized weights; None if unmeasured."""
    materialized = times(row, statistics.MATERIALIZED)
    return None if materialized is None else materialized * (over(row, statistics.ALONE) or math.nan)


def _statistics(value: Callable[[Row], float | None]) -> Values:
    return each(value, "statistics", encodings=None, least=4096)


def _with(side: str) -> Values:
    """The times of attention with statistics, divided by those of attention."""
    return _statistics(lambda row: times(row, side))


def _with_single_statistics(rows: Sequence[Row]) -> list[tuple[float, str]]:
    sides = map(statistics.beside, statistics.ONE_PASS)
    return [(value, f"{side}: {case}") for side in sides for value, case in _with(side)(rows)]


def _exponents(sizes: Iterable[tuple[int, int]]) -> list[tuple[float, str]]:
    ordered = sorted((n, max(size, _LITTLE)) for n, size in sizes)
    return [
        (math.log(more / less) / math.log(b / a), f"from {a:,} to {b:,} tokens")
        for (a, less), (b, more) in pairwise(ordered)
    ]


_LITTLE = 16 << 20
"""Memory below this many bytes counts as this many, since any process takes some now and then."""

TARGETS = (
    Target("forward, full, no bias, against SDPA", faster(SDPA, "forward", masks=("none",)), both(2.0, 4.0), on=ZEN_5),
    Target(
        "forward, ALiBi, T5 or KERPLE, against SDPA with a dense bias",
        faster(DENSE, "forward", BY_DISTANCE), both(2.2, 4.0), on=ZEN_5,
    ),
    Target("the same against compiled FlexAttention", faster(FLEX, "forward", BY_DISTANCE), both(3.5, 15.0), on=ZEN_5),
    Target(
        "forward, causal, against SDPA is_causal", faster(SDPA, "forward", masks=("causal",)), both(2.2, 4.0), on=ZEN_5
    ),
    Target(
        "share of the roof, forward, full, no bias, n ≥ 2,048",
        each(share_of_roof, direction="forward", masks=("none",), least=2048), both(0.90, 0.75), unit="%",
    ),
    Target(
        "backward, no bias, against SDPA's backward",
        faster(SDPA, "backward", masks=("none",)), {"float32": 2.2}, on=ZEN_5,
    ),
    Target(
        "the same with heads of 128",
        faster(SDPA, "backward", masks=("none",), dims=(128,)), {"bfloat16": 2.0}, on=ZEN_5,
    ),
    Target(
        "the same with heads of 64 (a stretch)",
        faster(SDPA, "backward", masks=("none",), dims=(64,)), {"bfloat16": 2.0}, on=ZEN_5,
    ),
    Target(
        "share of the roof, backward, full, no bias, n ≥ 1,152",
        each(share_of_roof, direction="backward", masks=("none",), least=1152), both(0.88, 0.60), unit="%",
    ),
    Target(
        "backward with a learned table, against SDPA with a dense bias that wants its gradient",
        faster(DENSE_GRADIENT, "backward", LEARNED), both(2.2, 3.0), on=ZEN_5,
    ),
    Target(
        "extra cost of a distance table over none, forward",
        each(_extra, direction="forward", encodings=BY_DISTANCE), both(0.03, 0.05), at_most=True, unit="+%",
    ),
    Target(
        "extra cost of a distance table over none, backward with its gradient",
        each(_extra, direction="backward", encodings=LEARNED), both(0.08, 0.12), at_most=True, unit="+%",
    ),
    Target(
        "Shaw and Transformer-XL over none, forward",
        slower(PLAIN, direction="forward", encodings=("shaw", "transformer-xl")), both(1.7, 1.8), at_most=True,
    ),
    Target(
        "a long causal window against full causal: time over area",
        each(_against_area, kind="window"), both(1.35, 1.35), at_most=True,
    ),
    Target(
        "one token against a cache: share of the bandwidth of a copy",
        each(share_of_copy, kind="decoding"), both(0.80, 0.80), unit="%",
    ),
    Target(
        "one query against a cache: share of the bandwidth of reading alone",
        each(_one_query, kind="cache"), both(0.80, 0.80), unit="%",
    ),
    Target("5 to 48 queries against a cache, against SDPA", each(_more_queries, kind="cache"), both(1.2, 1.2)),
    Target(
        "packed documents over the same as a batch",
        slower(CONTIGUOUS, kind="packed", encodings=None), both(1.15, 1.15), at_most=True,
    ),
    Target(
        "padding in front over the same without",
        slower(CONTIGUOUS, kind="left-padded", encodings=None), both(1.15, 1.15), at_most=True,
    ),
    Target(
        "n = 128, no encoding or a distance table, against SDPA",
        each(lambda row: times(row, peer(row)), encodings=("none", *BY_DISTANCE), least=128, most=128), both(1.0, 1.0),
    ),
    Target(
        "memory beyond inputs and outputs, T5, 65,536 tokens, forward and backward",
        each(lambda row: float(row["extra_bytes"]), kind="memory", encodings=None, least=65536), {"float32": 1.5e9},
        at_most=True, unit="GB",
    ),
    Target(
        "memory grows linearly: exponent of n from one length to the next",
        _growth("memory"), {"float32": 1.15}, at_most=True, unit="",
    ),
    Target(
        "attention with all one-pass statistics over attention, n ≥ 4,096",
        _with(statistics.ALL), both(1.25, 1.25), at_most=True,
    ),
    Target(
        "attention with each one-pass statistic over attention, n ≥ 4,096",
        _with_single_statistics, both(1.10, 1.10), at_most=True,
    ),
    Target(
        "column sums: time added to attention, over attention, n ≥ 4,096",
        _statistics(second_pass), both(0.80, 0.80), at_most=True,
    ),
    Target(
        "attention with the top 8 keys over attention, n ≥ 4,096",
        _with(statistics.beside(statistics.TOP)), both(1.30, 1.30), at_most=True,
    ),
    Target(
        "statistics alone against materialized weights in torch, n ≥ 4,096",
        _statistics(against_materialized), both(5.0, 5.0),
    ),
    Target(
        "memory of statistics grows linearly: exponent of n from one length to the next",
        _growth(STATISTICS_MEMORY), {"float32": 1.15}, at_most=True, unit="",
    ),
)  # fmt: skip


# ---------------------------------------------------------------- whole models


def _model(task: str, side: str, least: int = 1, most: int = 1 << 30, model: str | None = None) -> Values:
    """How many times as fast as a side headway is, for every case of that task."""

    def values(rows: Sequence[Row]) -> list[tuple[float, str]]:
        cases = [(ModelCase(**row["case"]), times(row, side)) for row in rows]
        return [
            (faster, str(case))
            for case, faster in cases
            if faster is not None and case.task == task and least <= case.n <= most and model in (None, case.model)
        ]

    return values


def _model_growth(rows: Sequence[Row]) -> list[tuple[float, str]]:
    return _exponents((row["case"]["n"], row["bytes"][OURS]) for row in rows if row["case"]["task"] == "memory")


MODEL_TARGETS = (
    Target(
        "prefill of 4,096 tokens and more, against transformers with sdpa",
        _model("prefill", HF_SDPA, least=4096), both(1.5, 2.0),
    ),
    Target("one token after a prompt, against transformers with sdpa", _model("decode", HF_SDPA), both(1.0, 1.0)),
    Target(
        "a token of a small decoder after 128, against one by hand",
        _model("token", BY_HAND, most=128, model="decoder, RoPE"), both(1 / 1.3, 1 / 1.3),
    ),
    Target(
        "the same after 1,024 and more", _model("token", BY_HAND, least=1024, model="decoder, RoPE"), both(1.0, 1.0),
    ),
    Target(
        "training step of T5's encoder at 2,048 tokens and more, against transformers with eager",
        _model("train", HF_EAGER, least=2048, model="T5 encoder"), {"float32": 1.4},
    ),
    Target(
        "memory of that step grows linearly: exponent of n from one length to the next",
        _model_growth, {"float32": 1.15}, at_most=True, unit="",
    ),
)  # fmt: skip
