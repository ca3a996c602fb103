import json
from pathlib import Path

import pytest

from headway._common.store import read_rows
from headway.errors import HeadwayError
from headway.study.store import KEYS, Store

SETTINGS = {"lengths": [16, 32], "steps": 4}


def row(encoding: str, length: int, seed: int = 0, bits: float = 3.0) -> dict[str, object]:
    return {"encoding": encoding, "seed": seed, "length": length, "bits_per_byte": bits}


def test_rows_come_back_and_replace_their_like(tmp_path: Path) -> None:
    with Store(tmp_path / "out") as store:
        store.agree(SETTINGS)
        store.add([row("rope", 16), row("rope", 32)])
        store.add([row("rope", 16, bits=2.0)])
        assert store.has(("rope", 0))
        assert not store.has(("rope", 1))
    lines = (tmp_path / "out" / "results.jsonl").read_text().splitlines()
    assert {(found["length"], found["bits_per_byte"]) for found in map(json.loads, lines)} == {(16, 2.0), (32, 3.0)}
    with Store(tmp_path / "out") as store:
        assert len(store.rows) == 2


def test_a_last_line_that_a_kill_cut_off_is_healed(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        store.agree(SETTINGS)
        store.add([row("rope", 16), row("rope", 32)])
    path = tmp_path / "results.jsonl"
    path.write_text(path.read_text()[:-20])
    with Store(tmp_path) as store:
        store.agree(SETTINGS)
        assert not store.has(("rope", 0))
        assert len(store.rows) == 1
        store.add([row("rope", 32)])
    assert len(read_rows(path, KEYS)) == 2


def test_a_damaged_line_before_the_last_is_named(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    path.write_text('{"encoding": "rope", "se\n' + json.dumps(row("t5", 16)) + "\n")
    with pytest.raises(HeadwayError, match="line 1 is damaged"):
        read_rows(path, KEYS)


@pytest.mark.parametrize(
    "settings", ["[]", "{", "null", '{"sources": 1}', '{"equal_time_steps": {"a": "b"}}', '{"fit_seconds": []}']
)
def test_damaged_settings_are_named(tmp_path: Path, settings: str) -> None:
    (tmp_path / "settings.json").write_text(settings)
    with pytest.raises(HeadwayError, match=r"settings\.json is damaged"):
        Store(tmp_path).__enter__()


def test_other_settings_are_refused_by_name(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        store.agree(SETTINGS)
    with Store(tmp_path) as store, pytest.raises(HeadwayError, match=r"steps = 4, now steps = 5: give another --out"):
        store.agree({**SETTINGS, "steps": 5})


def test_a_folder_is_for_one_comparison_at_a_time(tmp_path: Path) -> None:
    with Store(tmp_path), pytest.raises(HeadwayError, match="in use by another comparison"):
        Store(tmp_path).__enter__()
    with Store(tmp_path):
        pass


def test_a_folder_that_cannot_be_read_is_not_kept(tmp_path: Path) -> None:
    (tmp_path / "settings.json").write_text("{")
    with pytest.raises(HeadwayError, match="is damaged") as held:
        Store(tmp_path).__enter__()
    (tmp_path / "settings.json").unlink()
    with Store(tmp_path):
        assert held.value  # while it lives, its traceback holds the first store and the file that it opened


def test_a_folder_that_cannot_be_written_to(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(HeadwayError, match="cannot be written to"):
        Store(tmp_path / "file" / "out").__enter__()


def test_results_without_settings_are_not_mixed_with_others(tmp_path: Path) -> None:
    (tmp_path / "results.jsonl").write_text(json.dumps(row("t5", 16)) + "\n")
    with Store(tmp_path) as store, pytest.raises(HeadwayError, match="without their settings"):
        store.agree(SETTINGS)


def test_a_file_of_an_encoding_may_not_change_between_runs(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("first")
    specs = ["rope", f"{file}:Mine", f"{file}:Mine(width=3)", str(file), f"randomized + {file}:Mine"]
    with Store(tmp_path / "out") as store:
        store.agree_on_sources(specs)
    file.write_text("second")
    for spec in specs[1:]:
        with Store(tmp_path / "out") as store, pytest.raises(HeadwayError, match=r"mine\.py has changed"):
            store.agree_on_sources([spec])


def test_steps_by_the_clock_are_decided_once(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        assert store.equal_time_steps("lstm", 0, 70) == 70
    with Store(tmp_path) as store:
        assert store.equal_time_steps("lstm", 0, 90) == 70
        assert store.equal_time_steps("lstm", 1, 90) == 90


def test_checkpoints_of_different_names_lie_apart(tmp_path: Path) -> None:
    store = Store(tmp_path)
    names = ["rope", "rope(base=1)", "rope(base 1)", "a/b.py:C"]
    paths = {store.checkpoint(name, seed, task) for name in names for seed in (0, 1) for task in ("x", "y")}
    assert len(paths) == 16
    assert {path.parent for path in paths} == {tmp_path / "checkpoints"}
