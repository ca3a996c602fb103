"""A damaged file of any kind is read, or refused by headway's own error, in bounded memory and time."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import strangers
from headway.errors import HeadwayError

OF_TRANSFORMERS = {"safetensors", "config.json", "index.json", "extension's results"}
"""What transformers writes."""
GROUPS = [list(strangers.KINDS)[first::6] for first in range(6)]
"""The kinds that one process reads, which takes seconds to start."""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memory is limited as Linux does it")
@pytest.mark.parametrize("kinds", GROUPS, ids=", ".join)
def test_damaged_files_are_read_or_refused(kinds: list[str]) -> None:
    """In a process of its own, whose memory is limited; many files must be refused, or the damage is none."""
    if OF_TRANSFORMERS.intersection(kinds):
        pytest.importorskip("transformers")
    words = [sys.executable, strangers.__file__, ",".join(kinds), "1"]
    done = subprocess.run(
        words, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, timeout=900
    )
    assert done.returncode == 0, done.stderr
    found = {row["kind"]: row for row in map(json.loads, done.stdout.splitlines())}
    assert list(found) == kinds
    for kind, row in found.items():
        assert not row["faults"], kind
        assert row["read"] + row["refused"] == strangers.KINDS[kind].files
        assert row["refused"] > strangers.KINDS[kind].files / 10, kind


@pytest.mark.parametrize("kind", strangers.KINDS)
def test_without_damage_it_is_read(kind: str, tmp_path: Path) -> None:
    if kind in OF_TRANSFORMERS:
        pytest.importorskip("transformers")
    strangers.KINDS[kind].read(strangers.KINDS[kind].write(tmp_path))


def test_what_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another error than headway's, a silent one, a file written, and a read that does not end."""

    def outcome(read: object) -> str:
        monkeypatch.setitem(strangers.KINDS, "plain text", strangers.Kind(strangers.KINDS["plain text"].write, read))
        return strangers.outcome("plain text", 0)

    def fails(error: Exception) -> object:
        def read(path: Path) -> None:
            raise error

        return read

    def endless(path: Path) -> None:
        while True:
            pass

    monkeypatch.setattr(strangers, "PATIENCE", 1)
    assert outcome(fails(HeadwayError("give another"))) == "refused"
    assert outcome(fails(HeadwayError(""))) == "an error without a message"
    assert outcome(fails(IndexError("out of range"))) == "IndexError: out of range"
    assert outcome(fails(MemoryError("too much"))) == "MemoryError: too much"
    assert outcome(lambda path: path.with_name("new").touch()) == "read, and it wrote files"
    assert outcome(lambda path: (path.parent.parent / "new").touch()) == "read, and it wrote files"
    assert outcome(endless) == "TimeoutError: no answer within 1 s"


def test_a_seed_makes_the_same_file_again(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    one, other = (strangers.damaged("CoNLL-U", 7, tmp_path / name).read_bytes() for name in "ab")
    assert one == other
