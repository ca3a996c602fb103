"""A suite whose processes are killed, or whose disk is full, ends like one that nothing has disturbed."""

from __future__ import annotations

import errno
import multiprocessing
import os
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

import forked
from headway import HeadwayError
from headway._common import store, training
from headway._common.engines import _base, processes
from headway._common.progress import ProgressListener
from headway.study.suite import SuiteProtocol, SuiteResults, measure

TINY = SuiteProtocol(steps=8, layers=1, width=16, heads=2, batch=4, times=(1, 2))
NAMES = ["none", "randomized + rope"]
OTHER = ("seconds", "processor_seconds", "versions")
"""What may differ: workers start anew, perhaps after a commit."""


def numbers(found: SuiteResults) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name not in OTHER} for row in found.rows]


def suite(out: Path) -> SuiteResults:
    training.SECONDS_BETWEEN_CHECKPOINTS = 0.0
    return measure(["parity"], NAMES, TINY, out=out, watch=ProgressListener())


@pytest.fixture(autouse=True)
def _at_each_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "SECONDS_BETWEEN_CHECKPOINTS", 0.0)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The numbers of a suite that nothing disturbs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "SECONDS_BETWEEN_CHECKPOINTS", 0.0)
        return numbers(suite(tmp_path_factory.mktemp("whole")))


def at_call(number: int, act: Callable[[], Any], function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that acts before one of its calls, from 1."""
    calls = 0

    def counted(*arguments: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == number:
            act()
        return function(*arguments, **named)

    return counted


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def killed(out: Path, number: int) -> None:
    """The suite in a process that is killed when it has written a file, and before that takes its place."""
    os.replace = at_call(number, die, os.replace)
    suite(out)


def killed_within_a_line(out: Path) -> None:
    """The suite in a process that is killed when half of the first rows is on the disk."""

    def half(path: Path, rows: Any) -> None:
        path.write_text('{"task": "parity", "encod')
        die()

    store.append_lines = half
    suite(out)


MOMENTS = (1, 2, 3, 4, 4, 5, 4, 4, killed_within_a_line, 4, 4, 5, 4)
"""After how many files that it writes a process is killed, or what kills it."""


def test_a_driver_that_is_killed_again_and_again(tmp_path: Path, whole: list[dict[str, Any]]) -> None:
    """While it writes settings, checkpoints of both trainings, and rows."""
    out = tmp_path / "out"
    for moment in MOMENTS:
        work, arguments = (moment, ()) if callable(moment) else (killed, (moment,))
        process = forked.context().Process(target=work, args=(out, *arguments), daemon=True)
        process.start()
        process.join(300)
        assert process.exitcode == -signal.SIGKILL
    assert numbers(suite(out)) == whole


KILLS = 8


class Kills(ProgressListener):
    """Kills a process of this one at each report, some times."""

    def __init__(self) -> None:
        self.others = {child.pid for child in multiprocessing.active_children()}  # those of other tests
        self.left = KILLS

    def logged(self, job: str, numbers: Mapping[str, float]) -> None:
        running = [child for child in multiprocessing.active_children() if child.pid not in self.others]
        if self.left and running:
            self.left -= 1
            running[self.left % len(running)].kill()


@pytest.mark.slow
def test_workers_that_are_killed_again_and_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_base, "LOSSES", 2 * KILLS)
    forked.instead_of_new(processes, monkeypatch)
    longer = SuiteProtocol(**{**vars(TINY), "steps": 400})
    alone = measure(["parity"], NAMES, longer, out=tmp_path / "alone", watch=ProgressListener())
    watch = Kills()
    found = measure(["parity"], NAMES, longer, out=tmp_path / "out", jobs=2, watch=watch)
    assert watch.left == 0
    assert sorted(numbers(found), key=str) == sorted(numbers(alone), key=str)


@pytest.mark.parametrize("number", [1, 3, 11, 12])
def test_a_full_disk_is_said_and_resumed_from(
    tmp_path: Path, whole: list[dict[str, Any]], number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When settings, checkpoints of both trainings, and rows are written."""

    def full() -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", at_call(number, full, os.fsync))
        with pytest.raises(HeadwayError, match="No space left on device"):
            suite(tmp_path / "out")
    assert numbers(suite(tmp_path / "out")) == whole
