from typing import Any

import pytest

from headway.bench import Case
from headway.bench.cases import STATISTICS_MEMORY
from headway.bench.rows import Row
from headway.bench.sides import CONTIGUOUS, COPY, DENSE, DENSE_GRADIENT, FLEX, FULL_CAUSAL, OURS, PLAIN, READ, SDPA
from headway.bench.statistics import ALL, ALONE, MATERIALIZED, ONE_PASS, RECEIVED, TOP, beside
from headway.bench.targets import TARGETS, Judged, judge


def row(of: Case, milliseconds: dict[str, float] | None = None, **more: Any) -> Row:
    """A row as if it had been measured."""
    return {
        "case": of.fields(),
        "where": {
            "processor": "AMD EPYC (family 26 model 2, AVX2/AVX-512/BF16)",
            "isa": "avx2",
            "threads": 2,
            "torch": "2",
            "headway": "1",
        },
        "date": "2026-11-21",
        "kernel": "sdpa",
        "ms": {OURS: 1.0, **(milliseconds or {})},
        "says": {},
        "seconds": 1.0,
        **more,
    }


def judged(rows: list[Row], begins: str, dtype: str = "float32") -> Judged:
    [found] = all_judged(rows, begins, dtype)
    return found


def all_judged(rows: list[Row], begins: str, dtype: str = "float32") -> list[Judged]:
    return [one for one in judge(rows, TARGETS) if one.target.what.startswith(begins) and one.dtype == dtype]


def test_the_worst_case_counts() -> None:
    rows = [row(Case(n=n), {SDPA: times}) for n, times in ((512, 2.5), (1024, 2.1), (2048, 2.4))]
    found = judged(rows, "forward, full, no bias, against SDPA")
    assert (found.worst, found.count, found.verdict) == (2.1, 3, "met")
    assert "1,024 tokens" in found.at
    assert (found.wanted, found.measured) == ("≥ 2.00×", "2.10×")
    rows[0]["ms"][SDPA] = 1.9
    assert judged(rows, "forward, full, no bias, against SDPA").verdict == "missed"


def test_a_target_of_another_processor_is_not_judged() -> None:
    rows = [row(Case(), {SDPA: 1.2}), row(Case(kind="packed"), {CONTIGUOUS: 0.5})]
    for one in rows:
        one["where"]["processor"] = "AMD EPYC (family 25 model 17, AVX2/AVX-512/BF16)"
    found = judged(rows, "forward, full, no bias, against SDPA")
    assert (found.measured, found.verdict) == ("1.20×", "for Zen 5")
    assert judged(rows, "packed").verdict == "missed", "it compares headway with itself"
    rows[0]["where"]["processor"] = "AMD EPYC (family 26 model 2, AVX2/AVX-512/BF16)"
    assert judged(rows[:1], "forward, full, no bias, against SDPA").verdict == "missed"


def test_targets_speak_of_their_cases_alone() -> None:
    assert judge([], TARGETS) == []
    rows = [row(Case(n=128), {SDPA: 0.5}), row(Case(mask="causal"), {SDPA: 0.5})]
    rows += [row(Case(direction="backward"), {SDPA: 0.5}), row(Case(dtype="bfloat16"), {SDPA: 0.5})]
    assert all_judged(rows, "forward, full, no bias, against SDPA") == []
    assert judged(rows, "n = 128").verdict == "missed"


@pytest.mark.parametrize(
    ("of", "milliseconds", "begins", "value"),
    [
        (Case(encoding="alibi"), {DENSE: 3.0}, "forward, ALiBi", 3.0),
        (Case(encoding="kerple"), {FLEX: 5.0}, "the same against compiled Flex", 5.0),
        (Case(encoding="t5", direction="backward"), {DENSE_GRADIENT: 2.5}, "backward with a learned table", 2.5),
        (Case(encoding="t5"), {PLAIN: 0.8}, "extra cost of a distance table over none, forward", 0.25),
        (Case(encoding="shaw"), {PLAIN: 0.5}, "Shaw and", 2.0),
        (Case("decoding", n=32768), {COPY: 1.5}, "one token", 0.75),
        (Case("cache", n=32768, group=4), {READ: 0.9}, "one query", 0.9),
        (Case("cache", n=32768, queries=5), {SDPA: 1.3}, "5 to 48", 1.3),
        (Case("packed", encoding="t5", mask="causal"), {CONTIGUOUS: 0.8}, "packed", 1.25),
        (Case("left-padded", mask="causal"), {CONTIGUOUS: 0.8}, "padding", 1.25),
        (Case("statistics", n=4096), {ALL: 1.2}, "attention with all", 1.2),
        (Case("statistics", n=4096), {beside(RECEIVED): 1.7}, "column sums", 0.7),
        (Case("statistics", n=4096), {beside(TOP): 1.3}, "attention with the top 8", 1.3),
        (Case("statistics", encoding="t5", n=4096), {ALONE: 1.5, MATERIALIZED: 9.0}, "statistics alone", 6.0),
    ],
)
def test_what_a_target_reads(of: object, milliseconds: dict[str, float], begins: str, value: float) -> None:
    assert judged([row(of, milliseconds)], begins).worst == pytest.approx(value)


def test_the_share_of_the_roof() -> None:
    of = Case(n=2048)
    found = judged([row(of, roof_gflops=of.flop / 1e6 / 0.93)], "share of the roof, forward")
    assert found.worst == pytest.approx(0.93)
    assert found.verdict == "met"
    assert all_judged([row(of)], "share of the roof, forward") == []


def test_a_window_is_measured_by_its_area() -> None:
    of = Case("window", mask="window", n=16384)
    share = of.pairs / Case(mask="causal", n=16384).pairs
    found = judged([row(of, {FULL_CAUSAL: 1 / share})], "a long causal window")
    assert found.worst == pytest.approx(1.0)


def test_of_single_statistics_the_worst_counts() -> None:
    at_once = {beside(name): 1.01 + number / 1000 for number, name in enumerate(ONE_PASS)}
    rows = [row(Case("statistics", n=4096), at_once | {beside(TOP): 1.2}), row(Case("statistics", n=512), {ALL: 9.0})]
    found = judged(rows, "attention with each")
    assert (found.worst, found.count) == (pytest.approx(1.01 + (len(ONE_PASS) - 1) / 1000), len(ONE_PASS))
    assert found.at.startswith(f"with {ONE_PASS[-1]}: statistics: none")
    assert all_judged(rows, "attention with all") == [], "512 tokens have no target"


@pytest.mark.parametrize(("kind", "begins"), [("memory", "memory grows"), (STATISTICS_MEMORY, "memory of statistics")])
def test_memory_that_grows_with_the_square_is_found(kind: str, begins: str) -> None:
    lengths = (1024, 2048, 4096, 8192)

    def rows(size: object) -> list[Row]:
        return [row(Case(kind, encoding="t5", n=n), extra_bytes=size(n)) for n in lengths]

    assert judged(rows(lambda n: 10_000 * n), begins).verdict == "met"
    assert judged(rows(lambda n: 100 * n * n), begins).verdict == "missed"
    assert judged(rows(lambda n: 5 << 20), begins).worst == 0


def test_memory_above_its_bound_is_found() -> None:
    large = [row(Case("memory", encoding="t5", n=65536), extra_bytes=2_000_000_000)]
    assert judged(large, "memory beyond").verdict == "missed"
    assert judged(large, "memory beyond").measured == "2.00 GB"
