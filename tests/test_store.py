"""Rows in a folder: by keys, for one process at a time, and through every kill."""

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headway._common.lines import write_lines
from headway._common.store import ResultStore, read_rows
from headway.errors import HeadwayError

KEYS = ("method", "window")


class Store(ResultStore):
    used_by = "measurement"

    def __init__(self, out: Path) -> None:
        super().__init__(out, "rows.jsonl", KEYS)


def row(method: str, window: int = 0, loss: float = 2.5) -> dict[str, Any]:
    return {"method": method, "window": window, "loss": loss}


def test_rows_come_back_and_replace_their_like(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        store.add([row("yarn"), row("yarn", 1)])
        store.add([row("ntk")])
        store.add([row("yarn", loss=2.0)])
        held = store.rows
    assert held == [row("yarn", 1), row("ntk"), row("yarn", loss=2.0)]
    assert read_rows(tmp_path / "rows.jsonl", KEYS) == held
    with Store(tmp_path) as store:
        assert store.rows == held


def test_of_rows_with_the_same_keys_the_last_counts(tmp_path: Path) -> None:
    write_lines(tmp_path / "rows.jsonl", [row("ntk"), row("linear"), row("ntk", loss=9.0)])
    assert read_rows(tmp_path / "rows.jsonl", KEYS) == [row("ntk", loss=9.0), row("linear")]


def test_a_row_of_another_kind_is_damaged(tmp_path: Path) -> None:
    write_lines(tmp_path / "rows.jsonl", [row("ntk"), {**row("linear"), "loss": "9"}])
    with pytest.raises(HeadwayError, match="line 2 is damaged"):
        read_rows(tmp_path / "rows.jsonl", KEYS, kind={"loss": float})


def test_keys_may_be_objects(tmp_path: Path) -> None:
    with ResultStore(tmp_path, "rows.jsonl", ("case",)) as store:
        store.add([{"case": {"n": 1, "k": 2}, "ms": 1}])
        store.add([{"case": {"k": 2, "n": 1}, "ms": 2}])
        assert [one["ms"] for one in store.rows] == [2]


def test_a_new_row_is_appended(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        store.add([row("yarn")])
        file = (tmp_path / "rows.jsonl").stat().st_ino
        store.add([row("ntk")])
        assert (tmp_path / "rows.jsonl").stat().st_ino == file


def test_rows_that_are_not_kept_leave_with_the_next_row(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        store.add([row("yarn"), row("ntk")])
    with Store(tmp_path) as store:
        store.keep(lambda one: one["method"] != "yarn")
        assert store.rows == [row("ntk")]
    with Store(tmp_path) as store:
        assert store.rows == [row("yarn"), row("ntk")], "nothing was measured in their place"
        store.keep(lambda one: one["method"] != "yarn")
        store.add([row("linear")])
    assert read_rows(tmp_path / "rows.jsonl", KEYS) == [row("ntk"), row("linear")]


def test_a_line_without_a_key_is_named(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"method": "yarn", "window": 0}\n{"method": "ntk"}\n')
    with pytest.raises(HeadwayError, match="line 2 is damaged: delete that line to measure it again"), Store(tmp_path):
        pass


def test_a_row_that_cannot_be_written_is_not_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(file: int) -> None:
        raise OSError(28, "No space left on device")

    with Store(tmp_path) as store:
        store.add([row("yarn")])
        monkeypatch.setattr(os, "fsync", full)
        for new in (row("ntk"), row("yarn", loss=1.0)):
            with pytest.raises(HeadwayError, match=r"rows\.jsonl cannot be written \(.*No space left"):
                store.add([new])
            assert store.rows == [row("yarn")]


def test_one_process_at_a_time(tmp_path: Path) -> None:
    pytest.importorskip("fcntl")
    with Store(tmp_path), pytest.raises(HeadwayError, match="in use by another measurement"):
        Store(tmp_path).__enter__()
    with Store(tmp_path):
        pass


def killed_at(byte: int, work: Callable[[], None]) -> bool:
    """Whether work was killed by the system as soon as it wrote this byte of a file, counted from the file's start."""
    import resource

    child = os.fork()
    if not child:
        try:
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # which ends the process
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            resource.setrlimit(resource.RLIMIT_FSIZE, (byte, byte))
            work()
        except BaseException:
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert not os.WIFEXITED(status) or os.WEXITSTATUS(status) == 0
    return os.WIFSIGNALED(status)


@pytest.mark.skipif(sys.platform != "linux", reason="needs fork, and a limit to the size of files that ends a process")
@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
@pytest.mark.parametrize(
    "new",
    [[row("ntk"), row("ntk", 1)], [row("yarn", 1, loss=3.0)], [row("ntk"), row("yarn", loss=3.0)]],
    ids=["appended", "replaced", "both"],
)
@pytest.mark.parametrize("cut", [0, 9], ids=["whole", "cut-off"])
@pytest.mark.one_in(3)
def test_a_kill_at_any_byte_loses_nothing_that_was_written(tmp_path: Path, new: list[dict[str, Any]], cut: int) -> None:
    """Of the bytes some, since a process takes its time; tests/test_lines.py cuts at every one."""
    path = tmp_path / "rows.jsonl"
    held = [row("yarn"), row("yarn", 1)]
    with Store(tmp_path) as store:
        store.add(held)
    whole = path.read_bytes()
    before = whole + json.dumps(row("linear")).encode()[:cut]

    def work() -> None:
        with Store(tmp_path) as store:
            store.add(new)

    def key(one: dict[str, Any]) -> tuple[str, int]:
        return one["method"], one["window"]

    kills, last = 0, len(before) + len(json.dumps(new)) + 1
    for byte in sorted({0, len(before), len(before) + 1, last, *range(cut + 3, last, 17)}):
        path.write_bytes(before)
        ended = not killed_at(byte, work)
        kills += not ended
        with Store(tmp_path) as store:
            there = {key(one): one for one in store.rows}
            assert len(there) == len(store.rows)
            for one in held:
                assert there[key(one)] in (one, *new), byte
            assert not ended or all(there[key(one)] == one for one in new), byte
            store.add(new)  # what is done next
            assert all(one in store.rows for one in new)
        assert all(one in read_rows(path, KEYS) for one in new)
    assert kills > 4
    assert ended, "the last limit was no limit"
