import json
from pathlib import Path

import pytest

from headway import HeadwayError
from headway.bench import Case
from headway.bench.rows import CaseStore, read

HERE, THERE = ({"processor": "any", "isa": "any", "threads": 1, "torch": version, "headway": "1"} for version in "12")
FOUND = {"kernel": "sdpa", "ms": {"headway": 1.0}, "says": {}, "seconds": 1.0}


def test_a_row_is_on_disk_at_once_and_found_again(tmp_path: Path) -> None:
    with CaseStore(tmp_path, HERE) as rows:
        rows.add([rows.row(Case(), FOUND, "2026-01-01")])
        assert read(rows.file) == rows.here
    with CaseStore(tmp_path, HERE) as rows:
        assert rows.has(Case(), 1.0)
        assert not rows.has(Case(n=7), 1.0)
        assert rows.has(Case(), 0.2)
        assert not rows.has(Case(), 2.0), "a longer measurement is wanted"


def test_rows_of_another_machine_or_version_stay_and_do_not_count(tmp_path: Path) -> None:
    with CaseStore(tmp_path, THERE) as rows:
        rows.add([rows.row(Case(), FOUND, "2026-01-01")])
    with CaseStore(tmp_path, HERE, fresh=True) as rows:
        assert not rows.has(Case(), 1.0)
        rows.add([rows.row(Case(), FOUND, "2026-01-02")])
        rows.add([rows.row(Case(), FOUND | {"kernel": "reference"}, "2026-01-03")])
        assert [row["kernel"] for row in rows.here] == ["reference"]
    assert [row["where"] for row in read(tmp_path / "rows.jsonl")] == [THERE, HERE]


def test_fresh_measures_again(tmp_path: Path) -> None:
    with CaseStore(tmp_path, HERE) as rows:
        rows.add([rows.row(Case(), FOUND, "2026-01-01")])
    with CaseStore(tmp_path, HERE, fresh=True) as rows:
        assert not rows.has(Case(), 1.0)


@pytest.mark.parametrize("damage", ["{", "[]", '{"case": {}}', json.dumps({"case": Case().fields()})])
def test_a_damaged_line_is_named(tmp_path: Path, damage: str) -> None:
    (tmp_path / "rows.jsonl").write_text("\n" + damage + "\n")
    with pytest.raises(HeadwayError, match="line 2 is damaged"), CaseStore(tmp_path, HERE):
        pass


def test_one_benchmark_at_a_time(tmp_path: Path) -> None:
    pytest.importorskip("fcntl")
    with CaseStore(tmp_path, HERE), pytest.raises(HeadwayError, match="in use by another benchmark"):
        CaseStore(tmp_path, HERE).__enter__()


def test_a_folder_that_cannot_be_written_to_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(HeadwayError, match="cannot be written to"), CaseStore(tmp_path / "file" / "out", HERE):
        pass
