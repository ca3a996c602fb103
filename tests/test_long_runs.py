"""Memory stays flat, threads do not disturb each other, and a killed command loses nothing: long_runs.py, in short."""

import itertools
import json
import mmap
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

import long_runs
from headway._common.store import ResultStore

SHORT = {
    "train t5 padded": 200,
    "train alibi captured": 200,
    "decode rope": 300,
    "decode rope with a window": 300,
    "threads": 2,
    "kill compare": 6,
    "kill extend": 5,
    "kill vectors train bert": 5,
}
"""The steps of each: training steps, tokens, seconds, kills."""

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memory is measured as Linux does it")


@linux
@pytest.mark.slow
@pytest.mark.parametrize("name", SHORT)
def test_in_short(name: str) -> None:
    if "vectors" in name:
        pytest.importorskip("gensim")
    report = long_runs.apart(name, SHORT[name])
    assert not report["faults"]
    assert report["steps"] == SHORT[name]


# ---------------------------------------------------------------- what is found


@linux
@pytest.mark.parametrize("kept", ["bytes", "objects"])
def test_what_grows_is_found(kept: str) -> None:
    meter, held = long_runs.Meter(300), []
    size = max(100_000, int(long_runs.GROWTH * long_runs.resident()) // 100)  # growth is a share of what is there
    for step in range(1, 301):
        if kept == "bytes":  # of new pages: the heap may have free ones that are resident
            pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            pages.write(b"x" * size)
            held.append(pages)
        else:
            held += [[step] for _ in range(100)]
        meter.at(step)
    assert any(("memory" if kept == "bytes" else "objects") in fault for fault in meter.report()["faults"])


def test_a_cache_has_its_bytes() -> None:
    model = long_runs.decoder("rope")
    cache = model.new_cache()
    with torch.no_grad():
        model(torch.ones(2, 10, dtype=torch.int64), cache=cache)
    keys_and_values = 2 * 2 * 2 * 10 * long_runs.WIDTH * 4
    assert keys_and_values <= long_runs.bytes_of([cache]) < 1.5 * keys_and_values


def test_new_shapes_come_until_the_end() -> None:
    found = list(long_runs.shapes(1000))
    assert len(set(found)) > len(set(found[:500])) + 50


def test_a_result_that_another_thread_disturbs_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    shared, threads = torch.zeros(1), torch.get_num_threads()

    def race() -> list[Tensor]:
        shared.fill_(0)
        time.sleep(0.001)
        shared.add_(1)
        return [shared.clone()]

    monkeypatch.setattr(long_runs, "calls", lambda: [("race", race)])
    assert "race differs" in long_runs.call_at_once(1)["faults"]
    torch.set_num_threads(threads)


def test_threads_that_do_not_end_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    threads, turns = torch.get_num_threads(), itertools.count()

    def stuck() -> list[Tensor]:
        if next(turns) > 1:  # the calls of one thread
            time.sleep(3)
        return []

    monkeypatch.setattr(long_runs, "calls", lambda: [("stuck", stuck)])
    monkeypatch.setattr(long_runs, "PATIENCE", 0)
    assert long_runs.call_at_once(1)["faults"] == ["8 of 8 threads do not end"]
    torch.set_num_threads(threads)


KILLS = 3


def rows_in_ten_parts(out: Path, place: str = "results.jsonl") -> None:
    """Ten rows, of which those that are there are not computed again."""
    with ResultStore(out, place, ("method",)) as store:
        for number in range(10):
            if not any(row["method"] == number for row in store.rows):
                time.sleep(0.01)
                store.add([{"method": number}])


def late(out: Path) -> None:
    """The rows are somewhere else until all are known."""
    rows_in_ten_parts(out, "part")
    (out / "part").rename(out / "results.jsonl")


def doubled(out: Path) -> None:
    out.mkdir(exist_ok=True)
    for number in range(10):
        time.sleep(0.01)
        with (out / "results.jsonl").open("a") as file:
            file.write(json.dumps({"method": number}) + "\n")


def refuses(out: Path) -> None:
    out.mkdir()
    time.sleep(0.1)


def leaves(out: Path) -> None:
    rows_in_ten_parts(out)
    (out / f".{os.getpid()}.part").touch()


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize(
    ("run", "fault"),
    [
        (rows_in_ten_parts, None),
        (late, "what was written is lost"),
        (doubled, "results.jsonl differs"),
        (refuses, "it does not go on"),
        (leaves, "is left behind"),
    ],
)
def test_what_a_kill_destroys_is_found(
    run: Callable[[Path], None], fault: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = torch.get_num_threads()
    one = long_runs.Killed(lambda folder: None, lambda folder, out: run(out))
    monkeypatch.setitem(long_runs.KILLED, "mine", one)
    report = long_runs.kill("mine", KILLS)
    torch.set_num_threads(threads)
    if fault is None:
        assert (report["kills"], report["faults"]) == (KILLS, [])
    else:
        assert any(fault in one for one in report["faults"])
