"""Files of JSON objects: what was cut off is left out and healed, what is damaged is named."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headway._common.lines import append_lines, read_lines, write_lines
from headway.errors import HeadwayError

ROWS: list[dict[str, Any]] = [{"name": "rope", "n": 1}, {"name": "旋转\u2028", "n": [2.5, None]}, {"name": "", "n": {}}]
REMEDY = "give another file"


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    assert read_lines(path, REMEDY) == []
    append_lines(path, ROWS[:1])
    append_lines(path, ROWS[1:])
    assert read_lines(path, REMEDY) == ROWS
    assert path.read_bytes().count(b"\n") == 3
    write_lines(path, ROWS[:2])
    assert read_lines(path, REMEDY) == ROWS[:2]


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e400", "1" * 19, "1" * 9999])
def test_numbers_that_are_never_written_are_damage(tmp_path: Path, number: str) -> None:
    (tmp_path / "rows.jsonl").write_text(f'{{"a": [1, {number}]}}\n')
    with pytest.raises(HeadwayError, match="line 1 is damaged"):
        read_lines(tmp_path / "rows.jsonl", REMEDY)


def test_a_line_may_be_cut_off_at_any_byte(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    append_lines(path, ROWS)
    whole = path.read_bytes()
    ends = [at + 1 for at, byte in enumerate(whole) if byte == ord("\n")]
    for cut in range(len(whole) + 1):
        path.write_bytes(whole[:cut])
        there = sum(end - 1 <= cut for end in ends)  # a line that lacks nothing but its end is there
        assert read_lines(path, REMEDY) == ROWS[:there], cut
        append_lines(path, [{"new": cut}])
        assert read_lines(path, REMEDY) == [*ROWS[:there], {"new": cut}], cut


@pytest.mark.parametrize("damage", ["{", "[]", "1", '{"name": "rope"'])
def test_a_damaged_line_is_named(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(f'{{"name": "t5"}}\n\n{damage}\n{{"name": "alibi"}}\n')
    with pytest.raises(HeadwayError, match=r"rows\.jsonl line 3 is damaged: give another file$"):
        read_lines(path, REMEDY)


def test_a_line_with_something_else_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    append_lines(path, [{"n": "1"}, {"n": "x"}])

    def parsed(line: Any) -> dict[str, Any]:
        return {"n": int(line["n"])}

    with pytest.raises(HeadwayError, match="line 2 is damaged"):
        read_lines(path, REMEDY, parsed)
    write_lines(path, [{"n": "1"}])
    assert read_lines(path, REMEDY, parsed) == [{"n": 1}]


@pytest.mark.parametrize("write", [append_lines, write_lines])
def test_a_number_that_json_lacks_leaves_the_file_as_it_was(tmp_path: Path, write: Callable[..., None]) -> None:
    path = tmp_path / "rows.jsonl"
    append_lines(path, ROWS)
    with pytest.raises(ValueError, match="JSON"):
        write(path, [{"n": 1.0}, {"n": float("nan")}])
    assert read_lines(path, REMEDY) == ROWS


def test_a_place_for_no_file_is_said(tmp_path: Path) -> None:
    with pytest.raises(HeadwayError, match=r"cannot be read .*: give another file"):
        read_lines(tmp_path, REMEDY)
    with pytest.raises(HeadwayError, match=r"cannot be written .*: give a file in a folder"):
        append_lines(tmp_path, [{}])
    with pytest.raises(HeadwayError, match=r"cannot be written .*: give a file in a folder"):
        append_lines(tmp_path / "none" / "rows.jsonl", [{}])


def test_lines_are_read_by_others(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    append_lines(path, ROWS)
    assert [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line] == ROWS


def test_a_name_that_is_no_unicode_is_written_and_read(tmp_path: Path) -> None:
    path, row = tmp_path / "rows.jsonl", {"file": "mine-\udcff.py"}  # as Python decodes a name that is not UTF-8
    append_lines(path, [row])
    assert read_lines(path, "") == [row]
    write_lines(path, [row, row])
    assert read_lines(path, "") == [row, row]
