import itertools
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from headway.bench import Case, Plan, machine, measure, memory, statistics
from headway.bench.cases import STATISTICS_MEMORY
from headway.bench.machine import Roof
from headway.bench.measure import ROOF, CheckError, agree, in_turn
from headway.bench.sides import DENSE, FLEX, OURS, PLAIN, SDPA, Flex, Sides
from headway.kernels.cpu import _library

pytestmark = pytest.mark.slow


class Clock:
    """Time that passes only where it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(measure.time, "perf_counter", lambda: self.now)

    def takes(self, *seconds: float) -> object:
        left = itertools.cycle(seconds)

        def run() -> None:
            self.now += next(left)

        return run


def test_sides_run_in_turn_and_medians_are_given(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    order: list[str] = []
    slow, quick = clock.takes(9.0, 0.3, 0.1, 0.2), clock.takes(9.0, 0.01)
    runs = {"slow": lambda: (order.append("slow"), slow()), "quick": lambda: (order.append("quick"), quick())}
    found, rounds = in_turn(runs, seconds=0.0, least=3)
    assert rounds == 3
    turns = [set(order[i : i + 2]) for i in range(0, 8, 2)]  # the first is a warm-up
    assert turns == [{"slow", "quick"}] * 4
    assert order[::2] != ["slow"] * 4, "nobody always comes first"
    assert found == pytest.approx({"slow": 200.0, "quick": 10.0})


def test_turns_follow_the_time_of_a_case(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    assert in_turn({"a": clock.takes(0.01), "b": clock.takes(0.03)}, seconds=1.0, least=5)[1] == 50
    assert in_turn({"a": clock.takes(2.0)}, seconds=1.0, least=5)[1] == 5
    assert in_turn({"a": clock.takes(1e-6)}, seconds=1.0, least=5)[1] == measure.MOST_ROUNDS


def test_a_row_has_every_side(tiny: Plan) -> None:
    row = measure.measure(Case(encoding="t5", n=16, head_dim=8), tiny, Roof(), None)
    assert set(row["ms"]) == {OURS, PLAIN, SDPA, DENSE}
    assert all(taken > 0 for taken in row["ms"].values())
    assert row["rounds"] == 1


def test_another_sides_failure_is_its_result_and_ours_is_a_finding(tiny: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> list[torch.Tensor]:
        raise RuntimeError("out of\nmemory")

    right = {OURS: lambda: [torch.ones(1)], SDPA: lambda: [torch.ones(1)]}
    monkeypatch.setattr(measure, "sides", lambda *_: Sides("reference", right | {SDPA: fails}))
    row = measure.measure(Case(), tiny, Roof(), Flex(0))
    assert row["says"] == {SDPA: "RuntimeError: out of memory"}
    assert set(row["ms"]) == {OURS}
    monkeypatch.setattr(measure, "sides", lambda *_: Sides("reference", right | {OURS: fails}))
    with pytest.raises(CheckError, match=r"reference on none, .*: RuntimeError: out of memory"):
        measure.measure(Case(), tiny, Roof(), None)


def test_sides_that_differ_have_no_number(tiny: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = {OURS: lambda: [torch.ones(1)], SDPA: lambda: [torch.full((1,), 1.1)]}
    monkeypatch.setattr(measure, "sides", lambda *_: Sides("reference", runs, {SDPA: lambda x: x}))
    with pytest.raises(CheckError, match=r"kernel reference and of “SDPA” on none, .* differ by 0.1"):
        measure.measure(Case(), tiny, Roof(), None)


def test_another_side_that_alone_differs_has_no_number(tiny: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    right = {OURS: lambda: [torch.ones(1)], SDPA: lambda: [torch.ones(1)]}
    runs = right | {FLEX: lambda: [torch.full((1,), 1.1)]}
    same = dict.fromkeys((SDPA, FLEX), lambda x: x)
    monkeypatch.setattr(measure, "sides", lambda *_: Sides("cpu", dict(runs), same))
    row = measure.measure(Case(), tiny, Roof(), None)
    assert set(row["ms"]) == {OURS, SDPA}
    assert "computes other numbers than all other sides" in row["says"][FLEX]
    runs[SDPA] = runs[FLEX]
    with pytest.raises(CheckError, match="kernel cpu and of “SDPA”"):
        measure.measure(Case(), tiny, Roof(), None)


def test_what_a_side_should_compute_is_checked_before_it_is_timed(tiny: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> list[torch.Tensor]:
        raise RuntimeError("not enough\nmemory")

    def found(side: object, expected: object) -> dict[str, object]:
        both = Sides("cpu", {OURS: lambda: [torch.ones(1)], "with entropy": side}, expected=expected)
        monkeypatch.setattr(measure, "sides", lambda *_: both)
        return measure.measure(Case("statistics"), tiny, Roof(), None)

    def twice(out: list[torch.Tensor]) -> dict[str, list[torch.Tensor]]:
        return {"with entropy": [*out, 2 * out[0]]}

    row = found(lambda: [torch.ones(1), torch.full((1,), 2.0)], twice)
    assert set(row["ms"]) == {OURS, "with entropy"}
    with pytest.raises(CheckError, match=r"cpu with entropy and torch on statistics: .* differ by 0.1"):
        found(lambda: [torch.ones(1), torch.full((1,), 2.1)], twice)
    with pytest.raises(CheckError, match=r"cpu with entropy on statistics: .*: RuntimeError: not enough memory"):
        found(fails, twice)
    with pytest.raises(CheckError, match="cannot be checked: not enough memory"):
        found(lambda: [torch.ones(1)], fails)


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), 1.01])
def test_agreement_can_fail(wrong: float) -> None:
    agree("same", "float32", [torch.ones(3)], [torch.ones(3)])
    with pytest.raises(CheckError):
        agree("not the same", "float32", [torch.tensor([1.0, wrong])], [torch.ones(2)])


def test_the_roof_is_measured_in_turn(tiny: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int, int]] = []

    def loop(kind: int, threads: int, rounds: int) -> float:
        asked.append((kind, threads, rounds))
        return 1e9

    monkeypatch.setattr(_library, "why_not", lambda: None)
    monkeypatch.setattr(_library, "roof", loop)
    row = measure.measure(Case(n=16, head_dim=8), replace(tiny, rounds=4), Roof(), None)
    assert row["roof_gflops"] > 0
    assert ROOF not in row["ms"]
    assert len(asked) >= 5
    assert {kind for kind, _, _ in asked} == {_library.FLOAT32}


def test_the_roof_does_what_the_case_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_library, "why_not", lambda: None)
    monkeypatch.setattr(_library, "roof", lambda kind, threads, rounds: 1000.0 * rounds)
    roof = Roof()
    for flop, wanted in ((1.0, 5e7), (2e8, 2e8), (1e12, 1e9)):
        run, done = roof.burst("float32", flop)
        assert run() == done == wanted


def test_without_the_library_there_is_no_roof_and_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_library, "why_not", lambda: "no compiler was there")
    roof = Roof()
    assert roof.burst("float32", 1e8) is None
    assert "no compiler was there" in roof.why_not


def test_where_names_everything_that_a_figure_hangs_on() -> None:
    found = machine.where()
    assert found["torch"] == torch.__version__
    assert found["threads"] == torch.get_num_threads()
    assert found["processor"]
    assert re.fullmatch(r"[\w.]+\+[0-9a-f]{8}", found["headway"])


def test_the_fingerprint_follows_the_code(monkeypatch: pytest.MonkeyPatch) -> None:
    before = machine.fingerprint()
    read = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: read(path) + b" " * (path.name == "reference.py"))
    assert machine.fingerprint() != before


def test_memory_is_measured_in_a_process_of_its_own() -> None:
    found = memory.measure(Case("memory", encoding="t5", mask="causal", n=2048, direction="backward"))
    assert found["extra_bytes"] < 8 * 4 * 2048 * 2048 * 4
    assert found["kernel"] in ("cpu", "reference")


def test_the_memory_of_statistics_is_less_than_that_of_weights() -> None:
    found = memory.measure(Case(STATISTICS_MEMORY, encoding="rope", mask="causal", n=4096))
    assert 0 < found["extra_bytes"] < 8 * 4 * 4096 * 4096 / 4
    assert found["kernel"] in ("cpu", "reference")


def test_the_memory_of_statistics_is_what_they_take_beyond_their_results(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rooms = iter([1, 200])  # MiB, of the warm-up and of the call

    def alone() -> list[torch.Tensor]:
        room = next(rooms) << 18
        within = torch.ones(room)
        return [torch.ones(room // 2) + within[0]]

    monkeypatch.setattr(statistics, "headway_sides", lambda *_: {statistics.ALONE: alone})
    of = Case(STATISTICS_MEMORY, mask="causal", n=64)
    memory.main(json.dumps({"case": of.fields(), "threads": torch.get_num_threads()}))
    # 200 MiB within and twice 100 MiB of results, one of which is returned
    assert json.loads(capsys.readouterr().out)["extra_bytes"] == pytest.approx(300 << 20, rel=0.05)


def test_memory_that_cannot_be_measured_is_a_finding(tiny: Plan) -> None:
    with pytest.raises(CheckError, match="rop"):
        measure.measure(Case("memory", encoding="rop", n=16, direction="backward"), tiny, Roof(), None)
