"""A sequence that two processes share, of a few tokens; what is timed is never asserted."""

from dataclasses import replace

from headway.bench import FULL, Case, report, sequence
from headway.bench.rows import ROW, TIMED, fits
from headway.bench.sides import OURS
from headway.parallel import METHODS


def test_each_method_is_measured_against_one_process() -> None:
    """Each process compares the results before anything is timed."""
    case = Case("sequence", "t5", "causal", 24, 8, direction="backward")
    row = sequence.measure(case, replace(FULL, seconds=0.0, rounds=2))
    assert row["rounds"] == 2
    assert set(row["ms"]) == set(row["processor_ms"]) == {OURS, *METHODS}
    where = {"processor": "a processor", "isa": "avx2", "threads": 2, "torch": "2", "headway": "1"}
    stored = {"case": case.fields(), "where": where, "date": "2026-11-27", **row}
    assert fits(stored, ROW)
    assert fits(stored, TIMED)
    text = report.markdown([stored], where, "a command")
    assert "## A sequence over two processes" in text
    assert "| t5 | 24 |" in text
