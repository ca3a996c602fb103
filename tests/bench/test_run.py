import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from headway import HeadwayError
from headway.bench import Case, Plan, ProgressListener, bench, machine, run
from headway.bench.measure import CheckError
from headway.bench.rows import Row

pytestmark = pytest.mark.usefixtures("few_checks")


class Seen(ProgressListener):
    def __init__(self) -> None:
        self.cases: list[str] = []
        self.notes: list[str] = []
        self.done = 0

    def planned(self, settings: Sequence[str], done: int, total: int) -> None:
        self.done = done

    def noted(self, note: str) -> None:
        self.notes.append(note)

    def measured(self, job: str, rows: Sequence[Row]) -> None:
        self.cases.append(job)


@pytest.mark.slow
def test_everything_is_measured_once_and_shown(tiny: Plan, tmp_path: Path) -> None:
    results = bench(tiny, tmp_path, command="headway bench --quick")
    cases = tiny.cases()
    assert [row["case"] for row in results.rows] == [of.fields() for of in cases]
    assert results.failed == {}
    text = (tmp_path / "bench.md").read_text()
    for said in (
        "headway bench --quick",
        "## Forward, float32",
        "## Backward, float32",
        "| t5 | causal | 8 | SDPA, dense bias with its gradient |",
        "## FlexAttention, compiled",
        "not compiled: the 0 s for compiling are spent",
        "## What an encoding costs",
        "## A long causal window",
        "## One token against a cache",
        "| packed | 8 of 4 tokens in 32 | t5 | float32 | backward |",
        "| left-padded | 24 in 32 | none | float32 | forward |",
        "## Memory",
        "## Statistics",
        "| | none, 16, float32 | rope, 16, float32 | t5, 16, float32 |",
        "| torch, materialized weights, ms |",
        "## Memory of statistics",
        "| the weights, MiB | 0 |",
        "| 16 |",
        "Checked before anything was measured",
    ):
        assert said in text, said
    assert (tmp_path / "roof.png").read_bytes().startswith(b"\x89PNG")
    seen = Seen()
    again = bench(tiny, tmp_path, watch=seen)
    assert (seen.cases, seen.done) == ([], len(cases)), "what is there is not measured again"
    assert again.rows == results.rows
    more = replace(tiny, lengths=(16, 24), parts=("attention",))
    grown = bench(more, tmp_path, watch=seen)
    assert seen.cases == [str(of) for of in more.cases() if of.n == 24]
    assert len(grown.rows) == len(cases) + len(seen.cases)


def test_an_interruption_leaves_what_was_measured(tiny: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = replace(tiny, parts=("attention",))
    measure, count = run.measure, 0

    def interrupted(*arguments: object) -> Row:
        nonlocal count
        count += 1
        if count == 4:
            raise KeyboardInterrupt
        return measure(*arguments)

    monkeypatch.setattr(run, "measure", interrupted)
    with pytest.raises(KeyboardInterrupt):
        bench(plan, tmp_path)
    lines = (tmp_path / "rows.jsonl").read_text().splitlines()
    assert len([json.loads(line) for line in lines]) == 3
    assert "## Forward, float32" in (tmp_path / "bench.md").read_text()
    seen = Seen()
    assert len(bench(plan, tmp_path, watch=seen).rows) == len(plan.cases())
    assert len(seen.cases) == len(plan.cases()) - 3


def test_a_case_on_which_sides_differ_has_no_number_and_is_named(
    tiny: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = replace(tiny, parts=("attention",), directions=("forward",))
    measure = run.measure

    def one_is_wrong(case: Case, *arguments: object) -> Row:
        if (case.encoding, case.mask) == ("t5", "none"):
            raise CheckError("headway and SDPA differ by a lot")
        return measure(case, *arguments)

    monkeypatch.setattr(run, "measure", one_is_wrong)
    results = bench(plan, tmp_path)
    assert len(results.rows) == len(plan.cases()) - 1
    assert list(results.failed.values()) == ["headway and SDPA differ by a lot"]
    assert "No number: headway and SDPA differ by a lot" in (tmp_path / "bench.md").read_text()


def test_wrong_input_touches_nothing(tiny: Plan, tmp_path: Path) -> None:
    with pytest.raises(HeadwayError, match="does nothing in attention"):
        bench(replace(tiny, encodings=("none", "sinusoidal")), tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("load", "said"), [(0.9, 0), (2.5, 1)])
def test_a_busy_machine_is_said_once(
    load: float, said: int, tiny: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine.os, "getloadavg", lambda: (load, 0.0, 0.0), raising=False)
    monkeypatch.setattr(machine, "cores", lambda: 2)

    def refused(*_: object) -> Row:
        raise CheckError("made")

    monkeypatch.setattr(run, "measure", refused)
    plan, seen = replace(tiny, parts=("attention",)), Seen()
    results = bench(plan, tmp_path, watch=seen)
    notes = [note for note in seen.notes if "load average of 2.5 on 2 cores" in note]
    assert len(notes) == said
    assert set(notes) <= set(results.notes)
