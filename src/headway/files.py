"""Atomic writes of files and folders, checkpoints of a training, and folders that one process at a time uses."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, ClassVar

import torch
from typing_extensions import Self

from .errors import HeadwayError


def need_file_place(path: Path) -> None:
    """Checks that a path can be a file: in a folder that exists, and no folder itself.

    Args:
        path: the path.

    Raises:
        HeadwayError: if it cannot.
    """
    if not path.parent.is_dir() or path.is_dir():
        raise HeadwayError(f"{path} cannot be written: give a file in a folder that exists")


def need_folder_place(path: Path, *, empty: bool = False) -> None:
    """Checks that a path is a folder, or can be made one.

    Args:
        path: the path.
        empty: whether a folder that has files is refused.

    Raises:
        HeadwayError: if it cannot.
    """
    there = next(one for one in (path, *path.absolute().parents) if one.exists())
    if not there.is_dir():
        raise HeadwayError(f"{path} cannot be a folder, since {there} is a file: give another folder")
    if not os.access(there, os.W_OK):
        raise HeadwayError(f"{path} cannot be written to: give a folder that is yours")
    if empty and path.is_dir() and any(path.iterdir()):
        raise HeadwayError(f"{path} has files: give a new folder, or empty that one")


def from_json(text: str) -> Any:
    """Returns the value of a JSON text.

    Args:
        text: the text.

    Raises:
        ValueError: if it is no JSON, or nested too deeply, for which ``json.loads`` raises RecursionError.
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Yields a temporary file that replaces ``path`` at the end, or is deleted if an error occurs.

        with atomic_write(path) as part:
            part.write_text(text)

    Args:
        path: the file to write, in a folder that exists.

    Raises:
        HeadwayError: if the folder does not exist or ``path`` is a folder, before anything is written; and if writing
            fails.
    """
    need_file_place(path)
    part = path.with_name(f".{path.name}.part")
    try:
        part.touch()
        usual = part.stat().st_mode
        yield part
        part.chmod(usual)  # safetensors makes files that only their owner may read
        with part.open("rb+") as file:
            os.fsync(file.fileno())
        os.replace(part, path)
    except OSError as error:
        raise HeadwayError(f"{path} cannot be written ({error}): give a place that can be written to") from error
    finally:
        part.unlink(missing_ok=True)


@contextmanager
def atomic_folder(path: Path, last: Sequence[str] = ()) -> Iterator[Path]:
    """Yields a temporary folder that becomes ``path`` at the end, or is deleted if an error occurs.

        with atomic_folder(path) as part:
            save(model, part)

    In a folder that exists, files of the same names are replaced, one after the other.

    Args:
        path: the folder to write; the folders above it are created if needed.
        last: the names of files without which a reader does not take the others for a whole. In a folder that exists,
            they are removed first and written last.

    Raises:
        HeadwayError: if writing fails.
    """
    place = path.absolute()  # "." has no name
    part = place.with_name(f".{place.name}.part")
    try:
        shutil.rmtree(part, ignore_errors=True)  # of a process that was killed
        part.mkdir(parents=True)
        yield part
        if place.exists():
            for name in last:
                (place / name).unlink(missing_ok=True)
            for file in sorted(part.iterdir(), key=lambda file: last.index(file.name) if file.name in last else -1):
                os.replace(file, place / file.name)
        else:
            part.rename(place)
    except OSError as error:
        raise HeadwayError(f"{path} cannot be written ({error}): give a folder that can be") from error
    finally:
        shutil.rmtree(part, ignore_errors=True)


def remove_folder(path: Path) -> None:
    """Removes a folder; a process that is killed meanwhile leaves all of it or nothing under its name.

    Args:
        path: the folder.

    Raises:
        HeadwayError: if it cannot be removed.
    """
    gone = path.with_name(f"{path.name}.gone")
    try:
        shutil.rmtree(gone, ignore_errors=True)  # of a process that was killed
        path.rename(gone)
        shutil.rmtree(gone)
    except OSError as error:
        raise HeadwayError(f"{path} cannot be removed ({error}): delete it yourself") from error


def write_checkpoint(path: Path, state: dict[str, Any]) -> None:
    """Writes the state of a training, from which it can be resumed.

    Args:
        path: the file; its folder is created if needed.
        state: what ``torch.save`` writes.

    Raises:
        HeadwayError: if the file cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as part:
        torch.save(state, part)


def read_checkpoint(path: Path | None) -> dict[str, Any] | None:
    """Reads the state of a training onto the CPU.

    Args:
        path: the file.

    Returns:
        The state, or None if ``path`` is None or does not exist.

    Raises:
        HeadwayError: if the file is damaged.
    """
    if path is None or not path.exists():
        return None
    try:
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise HeadwayError(
            f"checkpoint {path} cannot be read ({type(error).__name__}): delete it to train from the start"
        ) from error
    return state


@contextmanager
def naming_checkpoint(path: Path | None) -> Iterator[None]:
    """Turns every error within a ``with`` block into one of a checkpoint that is damaged, or of another training.

    Args:
        path: the file.

    Raises:
        HeadwayError: if an error is raised in the block; the message names the file.
    """
    try:
        yield
    except Exception as error:  # a modified file can raise anything
        said = " ".join(f"{type(error).__name__}: {error}".split())
        raise HeadwayError(
            f"checkpoint {path} is damaged, or that of another training ({said:.200}): delete it to train from the "
            "start"
        ) from error


class LockedFolder:
    """A folder that one process at a time writes to, as a context manager.

    A subclass sets ``used_by``, the name of the work for messages, and may set ``called`` and ``remedy``, what messages
    call the folder and advise; it may override ``_begin``, which reads the files of the folder once it is locked.

    Args:
        out: the folder; it is created if needed.

    Raises:
        HeadwayError: on entering, if the folder cannot be written to or is locked by another process.
    """

    used_by: ClassVar[str]
    called: ClassVar[str] = "out"
    remedy: ClassVar[str] = "give another --out"

    def __init__(self, out: str | Path) -> None:
        self.out = Path(out)
        self._lock: IO[str] | None = None

    def __enter__(self) -> Self:
        try:
            self.out.mkdir(parents=True, exist_ok=True)
            self._lock = open(self.out / "lock", "w")
        except OSError as error:
            raise HeadwayError(
                f"{self.called} {self.out} cannot be written to ({error.strerror}): {self.remedy}"
            ) from None
        try:
            if not _locked(self._lock):
                raise HeadwayError(
                    f"{self.called} {self.out} is in use by another {self.used_by}: wait for it, or {self.remedy}"
                )
            self._begin()
        except BaseException:
            self._lock.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._lock is not None:
            self._lock.close()

    def _begin(self) -> None:
        """Is called once the folder is locked; an error raised here unlocks the folder."""


def _locked(file: IO[str]) -> bool:
    """Locks the file for this process, if no other holds it; true also on systems without such locks."""
    try:
        import fcntl
    except ImportError:
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
