"""Files that are there whole or not at all, whatever happens while they are written; folders for one process."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, ClassVar

import torch
from typing_extensions import Self

from .errors import HeadwayError


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """A file beside ``path`` to write to, which takes its place at the end, and is gone where something failed.

        with atomic_write(path) as part:
            part.write_text(text)

    Raises HeadwayError, before any work, where the folder is not there or the path is one, and where writing fails.
    """
    if not path.parent.is_dir() or path.is_dir():
        raise HeadwayError(f"{path} cannot be written: give a file in a folder that there is")
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
        raise HeadwayError(f"{path} cannot be written ({error}): give a place where files can be made") from error
    finally:
        part.unlink(missing_ok=True)


def write_checkpoint(path: Path, state: dict[str, Any]) -> None:
    """The state of a training, from which it goes on."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as part:
        torch.save(state, part)


def read_checkpoint(path: Path | None) -> dict[str, Any] | None:
    """What a checkpoint holds, or None where there is none; raises HeadwayError for one that is damaged."""
    if path is None or not path.exists():
        return None
    try:
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise HeadwayError(
            f"checkpoint {path} cannot be read ({type(error).__name__}): delete it to train anew"
        ) from error
    return state


class LockedFolder:
    """A folder that one process at a time works in.

    A subclass says what works there by ``used_by``, and reads in ``_begin`` what the folder holds.

    Raises HeadwayError, on entering, for a folder that cannot be written to or that another process works in.
    """

    used_by: ClassVar[str]

    def __init__(self, out: str | Path) -> None:
        self.out = Path(out)
        self._lock: IO[str] | None = None

    def __enter__(self) -> Self:
        try:
            self.out.mkdir(parents=True, exist_ok=True)
            self._lock = open(self.out / "lock", "w")
        except OSError as error:
            raise HeadwayError(f"out {self.out} cannot be written to ({error.strerror}): give another --out") from None
        try:
            if not _locked(self._lock):
                raise HeadwayError(
                    f"out {self.out} is in use by another {self.used_by}: wait for it, or give another --out"
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
        """Called once the folder is locked; what it raises unlocks the folder."""


def _locked(file: IO[str]) -> bool:
    """Whether this process now holds the file for itself; true where the system knows no such lock."""
    try:
        import fcntl
    except ImportError:
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
