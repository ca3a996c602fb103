"""A comparison on tasks of symbols: resumed, in several processes, with a killed one, and what may be concluded."""

import multiprocessing
import os
import signal
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import torch

import forked
from headway import HeadwayError
from headway._common import training
from headway._common.engines import Processes, _base, processes
from headway._common.progress import ProgressListener
from headway._common.store import Row
from headway.study import suite
from headway.study.intervals import bootstrap
from headway.study.models import ModelSizes, build_encoding
from headway.study.suite import SUITES, SuiteProtocol, SuiteResults, measure
from headway.study.tasks import SEQUENCE_TASKS, SequenceTask, sequence_task
from headway.study.train import schedule

SMALL = SuiteProtocol(steps=120, layers=1, width=16, heads=2, batch=8, times=(1, 2))
TIMES = ("seconds", "processor_seconds")
TINY = SuiteProtocol(steps=4, layers=1, width=16, heads=2, batch=4, times=(1, 2))


class Watch(ProgressListener):
    """Counts what is planned and done, and calls ``at`` with the number of each report."""

    def __init__(self, at: Any = None) -> None:
        self.done, self.reports, self.names, self.at = -1, 0, [], at

    def planned(self, settings: Sequence[str], done: int, total: int) -> None:
        self.done = done

    def progressed(self, doing: str, share: float) -> None:
        assert 0 <= share <= 1
        self.reports += 1
        if self.at is not None:
            self.at(self.reports)

    def measured(self, job: str, rows: Sequence[Row]) -> None:
        self.names.append(job)


class Stops(ProgressListener):
    """Interrupts a training after a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def logged(self, job: str, numbers: Mapping[str, float]) -> None:
        if numbers["step"] == self.step:
            raise KeyboardInterrupt


def numbers(found: SuiteResults) -> list[dict[str, Any]]:
    rows = [{name: value for name, value in row.items() if name not in TIMES} for row in found.rows]
    return sorted(rows, key=lambda row: (row["task"], row["encoding"], row["seed"], row["times"]))


def test_it_resumes_and_takes_more_seeds(tmp_path: Path) -> None:
    first = Watch()
    found = measure(["parity"], ["none", "learned"], TINY, out=tmp_path, watch=first)
    assert (first.done, len(first.names)) == (0, 2)
    more = Watch()
    again = measure(["parity"], ["none", "learned"], TINY, out=tmp_path, seeds=(0, 1), watch=more)
    assert (more.done, len(more.names)) == (2, 2)
    assert [row for row in again.rows if row["seed"] == 0] == found.rows
    refused = next(row for row in found.rows if row["encoding"] == "learned" and row["times"] == 2)
    assert refused["exact"] is None
    assert "reason" in refused
    with pytest.raises(HeadwayError, match="steps = 4, now steps = 5"):
        measure(["parity"], ["none"], SuiteProtocol(**{**vars(TINY), "steps": 5}), out=tmp_path)
    again.write(tmp_path)
    assert all((tmp_path / name).stat().st_size for name in again.files())


def test_a_training_that_diverges_has_the_steps_before() -> None:
    found = measure(["parity"], ["none"], SuiteProtocol(**{**vars(TINY), "learning_rate": 1e30}), watch=Watch())
    for row in found.rows:
        assert (row["exact"], row["learned"]) == (None, False)
        assert f" in step {row['steps'] + 1} of 4:" in row["reason"]


def test_a_share_is_every_nth_training() -> None:
    trained = []
    for share in ((1, 2), (2, 2)):
        watch = Watch()
        measure(["parity"], ["none", "rope", "alibi"], TINY, share=share, watch=watch)
        trained.append(watch.names)
    assert trained == [["parity, none, seed 0", "parity, alibi, seed 0"], ["parity, rope, seed 0"]]


def test_a_training_computes_in_one_thread() -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        found = measure(["parity"], ["none"], TINY, watch=Watch())
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
    assert {row["threads"] for row in found.rows} == {1}


def test_an_encoding_that_only_places_tokens_is_refused() -> None:
    with pytest.raises(HeadwayError, match=r"randomized only places tokens, .*: give 'randomized \+ rope'"):
        measure(["parity"], ["none", "randomized"], TINY)


def test_a_training_that_is_stopped_resumes_with_the_same_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With an encoding that draws positions in training, and with a training that ends before its last step."""
    monkeypatch.setattr(training, "SECONDS_BETWEEN_CHECKPOINTS", 0.0)
    monkeypatch.setattr(suite, "BETWEEN_VALIDATIONS", 10)
    monkeypatch.setattr(suite, "COOLING", 1.0)
    easy = SuiteProtocol(**{**vars(SMALL), "enough": 0.4})
    whole = measure(["parity"], ["randomized + rope"], easy, out=tmp_path / "whole", watch=Watch())
    [steps] = {row["steps"] for row in whole.rows}
    assert 0 < steps < easy.steps

    for step in (6, steps // 2 + 1):  # before it cools, and once it does
        with pytest.raises(KeyboardInterrupt):
            measure(["parity"], ["randomized + rope"], easy, out=tmp_path / "stopped", watch=Stops(step))
    resumed = measure(["parity"], ["randomized + rope"], easy, out=tmp_path / "stopped", watch=Watch())
    assert numbers(resumed) == numbers(whole)


def test_a_training_cools_down_before_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """To zero in a quarter of the steps before, from a validation on that is good enough, if the next one is too."""
    monkeypatch.setattr(suite, "BETWEEN_VALIDATIONS", 10)
    training = SMALL.training(sequence_task("parity"))
    found = iter([0.99, 0.98, 0.2, 0.99, 1.0])
    cooling = suite.Cooling(training, 0.99, lambda: next(found))
    rates = []
    for step in range(training.steps):
        rates.append(cooling.rate(step) / schedule(step, training))
        if cooling.over(step + 1):
            break
        cooling.after(step + 1, 0.0, 0.0)
    falling = [1 - step / 8 for step in range(8)]
    assert rates == pytest.approx([1.0] * 11 + [0.5] + [1.0] * 18 + falling)
    assert cooling.validation == 1.0


def test_a_training_that_never_validates_ends_with_its_last_step() -> None:
    training = SMALL.training(sequence_task("parity"))
    cooling = suite.Cooling(training, 0.99, lambda: 0.0)
    for step in range(training.steps):
        assert cooling.rate(step) == schedule(step, training)
        assert cooling.over(step + 1) == (step + 1 == training.steps)
        cooling.after(step + 1, 0.0, 0.0)


@pytest.mark.parametrize(("confirmed", "learned"), [(0.98, False), (0.99, True)])
def test_other_examples_decide_what_has_learned(
    confirmed: float, learned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the best of many validations said."""
    monkeypatch.setattr(SequenceTask, "validate", lambda task, model: 1.0 - learned)
    monkeypatch.setattr(SequenceTask, "confirm", lambda task, model: confirmed)
    found = measure(["parity"], ["none"], TINY, watch=Watch())
    assert {(row["validation"], row["learned"]) for row in found.rows} == {(confirmed, learned)}


def test_two_processes_of_which_one_is_killed_give_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forked.instead_of_new(processes, monkeypatch)
    names = (["parity"], ["none", "randomized + rope"], SMALL)
    alone = measure(*names, out=tmp_path / "alone", watch=Watch())
    killed = []
    others = {child.pid for child in multiprocessing.active_children()}  # those of other tests

    def kill(report: int) -> None:
        if not killed:
            killed.append(next(child for child in multiprocessing.active_children() if child.pid not in others))
            killed[0].kill()

    watch = Watch(kill)
    together = measure(*names, out=tmp_path / "together", jobs=2, watch=watch)
    assert killed[0].exitcode == -9
    assert sorted(watch.names) == ["parity, none, seed 0", "parity, randomized + rope, seed 0"]
    assert numbers(together) == numbers(alone)


def fails(job: str, tell: Any, state: Path) -> None:
    if job == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    raise ValueError("a mistake") if job == "mistake" else HeadwayError("a wrong input")


def dies_in_its_answer(job: str, tell: Any, state: Path) -> bytes:
    """Is killed, the first time, when half of its result is sent."""
    if not state.exists():
        state.touch()

        def half(self: Any, content: Any, write: Any = os.write) -> None:
            write(self.fileno(), bytes(content) if len(content) < 100 else bytes(content)[: len(content) // 2])
            if len(content) > 100:
                os.kill(os.getpid(), signal.SIGKILL)

        Connection._send = half  # type: ignore[attr-defined]
    return bytes(100_000)


def test_a_process_that_is_killed_in_its_answer_begins_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forked.instead_of_new(processes, monkeypatch)
    found: dict[str, Any] = {}
    jobs = {name: tmp_path / name for name in ("a", "b")}
    Processes(1).run(jobs, dies_in_its_answer, told=print, finished=found.__setitem__)
    assert found == dict.fromkeys(jobs, bytes(100_000))


def blocked_signals(job: str, tell: Any, state: Path) -> set[Any]:
    return signal.pthread_sigmask(signal.SIG_BLOCK, [])


def test_an_interrupt_reaches_the_first_process_alone() -> None:
    found: list[set[Any]] = []
    Processes(1).run({"": Path()}, blocked_signals, told=print, finished=lambda job, signals: found.append(signals))
    assert signal.SIGINT in found[0]
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])


def seen_gpus(job: str, tell: Any, state: Path) -> str | None:
    return os.environ.get("CUDA_VISIBLE_DEVICES")


def test_processes_share_out_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that this process sees, by their names."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,GPU-6")
    for engine, wanted in ((Processes(2, gpus=2), {"4", "GPU-6"}), (Processes(1), {"4,GPU-6"})):
        found: dict[str, Any] = {}
        jobs = {f"{number}": Path() for number in range(engine.jobs)}
        with monkeypatch.context() as patch:
            if engine.gpus:  # a fork has the environment of the process that it is a fork of
                forked.instead_of_new(processes, patch)
            engine.run(jobs, seen_gpus, told=print, finished=found.__setitem__)
        assert set(found.values()) == wanted
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "4,GPU-6"


@pytest.mark.parametrize(
    ("job", "said"),
    [("mistake", "ValueError: a mistake"), ("wrong", "a wrong input"), ("dies", "ended 1 times, last with code -9")],
)
def test_what_goes_wrong_in_a_process_is_said(job: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_base, "LOSSES", 1)
    forked.instead_of_new(processes, monkeypatch)
    others = {child.pid for child in multiprocessing.active_children()}
    with pytest.raises(HeadwayError, match=said):
        Processes(1).run({job: Path()}, fails, told=print, finished=print)
    assert {child.pid for child in multiprocessing.active_children()} <= others


# ------------------------------------------------------------ conclusions


def row(task: str, encoding: str, seed: int, exact: Sequence[float]) -> list[Row]:
    facts = {"trained": 8, "validation": exact[0], "learned": exact[0] >= 0.99, "steps": 50, "accuracy": 1.0}
    names = {"task": task, "encoding": encoding, "seed": seed}
    return [{**names, "times": 2**k, "length": 8 * 2**k, "exact": value, **facts} for k, value in enumerate(exact)]


def results(scores: dict[tuple[str, str], list[tuple[float, float]]]) -> SuiteResults:
    rows = [
        one
        for (task, name), seeds in scores.items()
        for seed, exact in enumerate(seeds)
        for one in row(task, name, seed, exact)
    ]
    settings = {**vars(SMALL), "times": [1, 2]}
    return SuiteResults(rows, settings, list(dict.fromkeys(name for _, name in scores)))


def test_models_that_did_not_learn_say_nothing_of_longer_ones() -> None:
    found = results({("copy", "rope"): [(1.0, 0.4), (0.5, 0.9)], ("copy", "none"): [(0.2, 0.9), (0.1, 0.9)]})
    assert found.by_seed("copy", "rope", 1) == {0: 1.0, 1: 0.5}
    assert found.by_seed("copy", "rope", 2) == {0: 0.4}
    assert found.score("copy", "none", 2) is None
    assert found.best_beyond("copy") == ("rope", 0.4)
    assert "none did not learn the trained length" in found.conclusions()[0]
    assert found.summary()[0].startswith("At the trained length rope learned most: 1 of 2 trainings; none 0 of 2")
    assert "No two encodings learned the same task" in found.summary()[2]


def test_what_was_not_trained_has_not_failed_to_learn() -> None:
    """As in the folder of one of several machines."""
    found = results({("copy", "rope"): [(1.0, 0.4)], ("sort", "none"): [(1.0, 0.9)]})
    assert not any("did not learn" in said for said in found.conclusions())
    assert [len(found.table(task).rows) for task in ("copy", "sort")] == [1, 1]


def test_right_tokens_stand_beside_the_exact_match_where_they_differ() -> None:
    of = results({("copy", "t5"): [(1.0, 0.0), (1.0, 0.2)], ("copy", "rope"): [(0.5, 0.0)]})
    found = SuiteResults([{**row, "accuracy": 0.25 + row["exact"]} for row in of.rows], of.settings, of.encodings)
    assert found.right_tokens("copy") == {"t5": pytest.approx(0.35)}
    _, _, learned, without = found.table("copy").markdown().splitlines()
    assert "| 35.0 |" in learned
    assert without.count("—") == 2
    same = SuiteResults([{**row, "accuracy": row["exact"]} for row in of.rows], of.settings, of.encodings)
    assert not same.right_tokens("copy")
    assert "tokens" not in same.table("copy").markdown()


def test_pairs_are_separated_by_seeds_alone() -> None:
    """By three seeds at least, paired, and by both intervals."""
    one = results({("copy", "t5"): [(1.0, 0.9)], ("copy", "rope"): [(1.0, 0.1)]})
    assert "one seed, which separates nothing" in one.summary()[2]
    clear = {
        ("copy", "t5"): [(1.0, 0.9), (1.0, 0.8), (1.0, 0.85)],
        ("copy", "rope"): [(1.0, 0.1), (1.0, 0.0), (1.0, 0.05)],
    }
    assert results(clear).pairs("copy")[0].separated
    assert "separate 1 of 1 pairs" in results(clear).summary()[2]
    signs = {
        ("copy", "t5"): [(1.0, 0.9), (1.0, 0.11), (1.0, 0.2)],
        ("copy", "rope"): [(1.0, 0.1), (1.0, 0.1), (1.0, 0.1)],
    }
    pair = results(signs).pairs("copy")[0]
    assert (pair.better, pair.worse) == ("t5", "rope")
    assert pair.interval is not None
    assert pair.interval.low > 0
    assert not pair.separated
    two = {name: seeds[:2] for name, seeds in clear.items()}
    assert not results(two).pairs("copy")[0].separated


def test_the_bootstrap_takes_all_resamples_of_few_values() -> None:
    assert bootstrap([1.0]) is None
    assert bootstrap([0.0, 1.0]) == (0.0, 1.0)
    assert bootstrap([1.0, 2.0, 3.0]) == (1.0, 3.0)
    ten = bootstrap([float(k) for k in range(10)])
    assert ten is not None
    assert ten == bootstrap([float(k) for k in range(10)])
    assert 2.0 < ten.low < 4.5 < ten.high < 7.0


def test_a_report_without_anything_learned_and_with_long_names(tmp_path: Path) -> None:
    name = "rope(base=10000)" + "x" * 40
    found = results({("copy", name): [(0.1, 0.0)], ("retrieval", name): [(0.1, 0.0)]})
    found.write(tmp_path)
    assert found.summary()[0] == "At the trained length no model learned a task within the budget."
    assert name in (tmp_path / "suite.svg").read_text()
    assert (tmp_path / "suite.md").read_text().index("1. At the trained") < (tmp_path / "suite.md").read_text().index(
        "<details>"
    )


def test_suites_are_made_of_what_there_is() -> None:
    for chosen in SUITES.values():
        assert set(chosen.tasks) <= SEQUENCE_TASKS.keys()
        assert len(chosen.encodings) >= 6
        sizes = ModelSizes(4, 1, 16, 2, 8)
        built = {spec: build_encoding(spec, sizes, 0).acts for spec in chosen.encodings}
        assert [spec for spec, acts in built.items() if acts <= {"locate"}] == ["none"]
    assert SUITES["paper"].tasks == tuple(SEQUENCE_TASKS)
    assert SUITES["paper"].seeds == 5


def test_labels_stand_in_place_of_the_names_of_encodings() -> None:
    found = results({("copy", "rope(base=5000, label='RoPE 5k')"): [(0.9, 0.8)], ("copy", "alibi"): [(0.9, 0.7)]})
    assert found.labelled().encodings == ["RoPE 5k", "alibi"]
    assert "RoPE 5k" in found.files()["suite.md"]()
    assert "base=5000" not in found.files()["suite.md"]()
