"""A file is there whole or not at all."""

import os
import stat
from pathlib import Path

import pytest

from headway.errors import HeadwayError
from headway.files import atomic_write, read_checkpoint, write_checkpoint


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
    with pytest.raises(HeadwayError, match="give a file in a folder that there is"), atomic_write(tmp_path / name):
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
    with pytest.raises(HeadwayError, match=r"state\.pt cannot be read .*: delete it to train anew"):
        read_checkpoint(path)
