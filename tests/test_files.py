"""A file is there whole or not at all."""

import os
import stat
from pathlib import Path

import pytest

from headway.errors import HeadwayError
from headway.files import LockedFolder, atomic_write, read_checkpoint, write_checkpoint


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
