"""A file is there whole or not at all."""

import os
import shutil
import stat
from pathlib import Path

import pytest

from headway.errors import HeadwayError
from headway.files import (
    LockedFolder,
    atomic_folder,
    atomic_write,
    read_checkpoint,
    remove_folder,
    write_checkpoint,
)


def test_a_file_takes_its_place_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("before")
    with atomic_write(path) as part:
        part.write_text("after")
        assert path.read_text() == "before"
    assert path.read_text() == "after"
    assert os.listdir(tmp_path) == ["a.txt"]


def test_what_fails_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("before")

    def stopped() -> None:
        with atomic_write(path) as part:
            part.write_text("half of it")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stopped()
    assert path.read_text() == "before"
    assert os.listdir(tmp_path) == ["a.txt"]


def test_others_may_read_it_as_any_new_file(tmp_path: Path) -> None:
    (tmp_path / "usual").touch()
    with atomic_write(tmp_path / "a") as part:
        part.unlink()
        part.touch(mode=0o600)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == stat.S_IMODE((tmp_path / "usual").stat().st_mode)


@pytest.mark.parametrize("name", ["no-folder/a.txt", "."])
def test_a_place_for_no_file_is_refused_before_any_work(tmp_path: Path, name: str) -> None:
    with pytest.raises(HeadwayError, match="give a file in a folder that exists"), atomic_write(tmp_path / name):
        pytest.fail("the work began")


def test_a_disk_that_is_full_is_one_line(tmp_path: Path) -> None:
    with (
        pytest.raises(HeadwayError, match=r"a\.txt cannot be written \(.*No space left"),
        atomic_write(tmp_path / "a.txt"),
    ):
        raise OSError(28, "No space left on device")


def test_a_folder_takes_its_place_at_the_end(tmp_path: Path) -> None:
    path, left = tmp_path / "new", tmp_path / ".new.part"
    left.mkdir()
    (left / "of a killed process").touch()
    with atomic_folder(path) as part:
        (part / "a").write_text("whole")
        assert not path.exists()
    assert os.listdir(tmp_path) == ["new"]
    assert os.listdir(path) == ["a"]


def test_a_folder_that_fails_is_not_there(tmp_path: Path) -> None:
    def stopped() -> None:
        with atomic_folder(tmp_path / "new") as part:
            (part / "a").write_text("half of it")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stopped()
    assert os.listdir(tmp_path) == []


def test_a_folder_that_is_there_is_no_whole_while_its_files_are_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, seen, replace = tmp_path / "old", [], os.replace
    path.mkdir()
    for name in ("about", "table", "weights", "another"):
        (path / name).write_text("before")

    def watched(source: Path, target: Path) -> None:
        seen.append(sorted(os.listdir(path)))
        replace(source, target)

    monkeypatch.setattr(os, "replace", watched)
    with atomic_folder(path, last=("table", "about")) as part:
        for name in ("about", "table", "weights"):
            (part / name).write_text("after")
    assert seen == [["another", "weights"], ["another", "weights"], ["another", "table", "weights"]]
    assert {file.name: file.read_text() for file in path.iterdir()} == {
        **dict.fromkeys(("about", "table", "weights"), "after"),
        "another": "before",
    }


def test_the_folder_one_is_in_is_written_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with atomic_folder(Path()) as part:
        (part / "a").touch()
    assert os.listdir() == ["a"]
    assert os.listdir(tmp_path) == ["here"]


def test_a_folder_is_removed_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "work"
    path.mkdir()
    (path / "a").touch()

    real = shutil.rmtree

    def killed(path: Path, ignore_errors: bool = False) -> None:
        if not ignore_errors:
            raise KeyboardInterrupt
        real(path, ignore_errors=True)

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            remove_folder(path)
    assert not path.exists()
    path.mkdir()
    remove_folder(path)
    assert os.listdir(tmp_path) == []
    with pytest.raises(HeadwayError, match="cannot be removed"):
        remove_folder(path)


def test_a_checkpoint_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "state.pt"
    assert read_checkpoint(path) is None
    write_checkpoint(path, {"step": 3})
    assert read_checkpoint(path) == {"step": 3}
    path.write_bytes(path.read_bytes()[:50])
    with pytest.raises(HeadwayError, match=r"state\.pt cannot be read .*: delete it to train from the start"):
        read_checkpoint(path)


class Kept(LockedFolder):
    used_by = "test"

    def _begin(self) -> None:
        if (self.out / "damaged").exists():
            raise HeadwayError("damaged")


def test_a_folder_is_for_one_at_a_time(tmp_path: Path) -> None:
    with Kept(tmp_path / "a" / "b") as kept:
        with pytest.raises(HeadwayError, match="in use by another test: wait for it, or give another --out"):
            Kept(kept.out).__enter__()
        with Kept(tmp_path / "c"):
            pass
    with Kept(kept.out):
        pass


def test_a_folder_is_free_again_where_reading_it_fails(tmp_path: Path) -> None:
    (tmp_path / "damaged").touch()
    with pytest.raises(HeadwayError, match="damaged") as held:
        Kept(tmp_path).__enter__()
    (tmp_path / "damaged").unlink()
    with Kept(tmp_path):
        assert held.value  # while it lives, its traceback holds the first one and the file that it opened


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(HeadwayError, match="cannot be written to"):
        Kept(tmp_path / "file" / "out").__enter__()
