"""A pytest plugin: writes each outcome to a file as it comes, leaves out what passed before, and stops in time.

``HEADWAY_GPU_LOG`` names the file, lines of JSON, and ``HEADWAY_GPU_DEADLINE`` the time to stop at, in seconds since
the epoch.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

LOG, DEADLINE = Path(os.environ["HEADWAY_GPU_LOG"]), float(os.environ["HEADWAY_GPU_DEADLINE"])
CONTROLS = "PYTEST_XDIST_WORKER" not in os.environ


def outcomes() -> dict[str, dict[str, str]]:
    """Returns what is known of each test."""
    if not LOG.exists():
        return {}
    return {line["test"]: line for line in map(json.loads, LOG.read_text(encoding="utf-8").splitlines())}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    known = outcomes()
    done = [item for item in items if item.nodeid in known]
    config.hook.pytest_deselected(items=done)
    items[:] = [item for item in items if item.nodeid not in known]


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if CONTROLS and (report.when == "call" or report.outcome != "passed") and report.when != "teardown":
        line = {"test": report.nodeid, "outcome": report.outcome, "seconds": round(report.duration, 3)}
        if report.outcome == "failed":
            text = report.longreprtext  # the first error of a chain, and the last one
            line["why"] = text if len(text) <= 4000 else f"{text[:2000]}\n[…]\n{text[-2000:]}"
        elif report.outcome == "skipped" and isinstance(report.longrepr, tuple):
            line["why"] = str(report.longrepr[2])[:300]
        with LOG.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line, ensure_ascii=False) + "\n")


class Watch:
    """Stops the session when its time is over."""

    def __init__(self, session: pytest.Session) -> None:
        self.session = session

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if time.time() > DEADLINE:
            self.session.shouldstop = "the time is over"


POISONED = ("illegal memory access", "unspecified launch failure", "misaligned address")
"""What an error of the GPU says after which every call of the process fails."""


class Worker:
    """Ends a worker's process after such an error; xdist starts another one."""

    def __init__(self) -> None:
        self.poisoned = False

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.poisoned |= report.failed and any(words in report.longreprtext for words in POISONED)

    def pytest_runtest_logfinish(self) -> None:
        if self.poisoned:
            time.sleep(1)  # the report is still on its way
            os._exit(1)


def pytest_sessionstart(session: pytest.Session) -> None:
    session.config.pluginmanager.register(Watch(session) if CONTROLS else Worker())
