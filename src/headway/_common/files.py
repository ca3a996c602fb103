"""Writes files and folders either completely or not at all, and locks folders for one process at a time."""

from __future__ import annotations

import json
import os
import shutil
import stat
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any, ClassVar

from typing_extensions import Self

from ..errors import HeadwayError
from .extras import need

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from torch import Tensor

HIDDEN = ".headway-", ".part"
"""How the names of the folders begin and end in which files are written before they take their places."""
LOCK = ".headway-lock"
"""The file by which a ``LockedFolder`` is locked."""


class _WriteError(HeadwayError):
    """Something cannot be written; has the reason."""

    reason = ""


def _cannot_write(path: Path, error: BaseException, remedy: str = "give a place that can be written to") -> _WriteError:
    reason = error.reason if isinstance(error, _WriteError) else _reason(error)
    failure = _WriteError(f"{path} cannot be written ({reason}): {remedy}")
    failure.reason = reason
    return failure


def _reason(error: BaseException) -> str:
    """The system's message; other errors may have been made from one of the system."""
    behind: BaseException | None = error
    while behind is not None:
        if isinstance(behind, OSError) and behind.strerror:
            return behind.strerror
        behind = behind.__cause__ or behind.__context__
    return " ".join(str(error).split())


def given_path(given: str | Path) -> Path:
    """Returns the path that a user means; ~ stands for a home folder if there is one of that name.

    Args:
        given: the path.
    """
    return Path(os.path.expanduser(given))


def cache_folder() -> Path:
    """Returns the cache folder, in which headway keeps files that it can make again.

    Raises:
        HeadwayError: if the user has no home folder and HEADWAY_CACHE names none.
    """
    folder = os.path.expanduser(os.environ.get("HEADWAY_CACHE") or "~/.cache/headway")
    if folder.startswith("~/"):  # the user is not known to the system
        raise HeadwayError("there is no home folder for a cache: name a folder in HEADWAY_CACHE")
    return Path(folder)


def need_file_place(path: Path) -> None:
    """Checks that a path can be a file: it is not a folder or device, and its folder exists and can be written to.

    Args:
        path: the path.

    Raises:
        HeadwayError: if it cannot.
    """
    try:
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
            raise HeadwayError(f"{path} cannot be written, since it is not a regular file: give a file")
        fits = stat.S_ISREG(mode)
    except (FileNotFoundError, NotADirectoryError):
        fits = path.parent.is_dir()
    except OSError as error:  # such as a name that is too long
        raise _cannot_write(path, error) from None
    if not fits:
        raise HeadwayError(f"{path} cannot be written: give a file in a folder that exists")
    if not os.access(path.parent, os.W_OK):
        raise HeadwayError(f"{path} cannot be written, since its folder cannot: give a file in a folder that is yours")


def need_folder_place(path: Path, *, empty: bool = False) -> None:
    """Checks that a path is a folder, or can be made one.

    Args:
        path: the path.
        empty: whether a folder that has files is refused.

    Raises:
        HeadwayError: if it cannot.
    """
    try:
        with suppress(FileNotFoundError, NotADirectoryError):
            path.stat()
        there = next(one for one in (path, *path.absolute().parents) if one.exists())
    except OSError as error:  # such as a name that is too long
        raise _cannot_write(path, error, "give another folder") from None
    if not there.is_dir():
        raise HeadwayError(f"{path} cannot be a folder, since {there} is a file: give another folder")
    if not os.access(there, os.W_OK):
        raise HeadwayError(f"{path} cannot be written to: give a folder that is yours")
    if empty and path.is_dir() and any(not one.name.startswith(HIDDEN[0]) for one in path.iterdir()):
        raise HeadwayError(f"{path} has files: give a new folder, or empty that one")


def make_folder(path: Path) -> None:
    """Makes a folder, and those above it, unless it is there.

    Args:
        path: the folder.

    Raises:
        HeadwayError: if it cannot be made.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _cannot_write(path, error, "give another folder") from error


def from_json(text: str) -> Any:
    """Returns the value of a JSON text.

    Args:
        text: the text.

    Raises:
        ValueError: if it is not JSON or nested too deeply (``json.loads`` raises RecursionError for that).
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


# ---------------------------------------------------------------- the writer


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Yields a temporary file that replaces ``path`` at the end, or is deleted if an error occurs.

        with atomic_write(path) as part:
            figure.savefig(part)

    The temporary file is in a hidden folder beside ``path`` that no other process uses. An existing file keeps its
    mode; a link is replaced, not followed.

    Args:
        path: the file to write, in a folder that exists.

    Raises:
        HeadwayError: before anything is written, if the folder does not exist or ``path`` is a folder; and if writing
            fails.
    """
    need_file_place(path)
    try:
        with _new_in(path.parent) as part:
            part.touch()
            mode = stat.S_IMODE((path if path.exists() else part).stat().st_mode)
            yield part
            with part.open("rb+") as file:
                os.fsync(file.fileno())
            part.chmod(mode)  # safetensors makes files that only their owner may read
            os.replace(part, path)
    except OSError as error:
        raise _cannot_write(path, error) from error


@contextmanager
def atomic_folder(path: Path, last: Sequence[str] = ()) -> Iterator[Path]:
    """Yields a temporary folder that becomes ``path`` at the end, or is deleted if an error occurs.

        with atomic_folder(path) as part:
            save(model, part)

    If the folder exists, files of the same names are replaced one after the other, by one process at a time. A link to
    a folder is followed.

    Args:
        path: the folder to write; the folders above it are created if needed.
        last: the names of files without which a reader regards the folder as incomplete. In an existing folder they are
            removed first and written last.

    Raises:
        HeadwayError: if writing fails.
    """
    place = Path(os.path.realpath(path))  # "." has no name
    try:
        make_folder(place.parent)
        # an existing folder may be another disk, or the folder above it may belong to others: write inside of it
        with _new_in(place if place.is_dir() else place.parent) as part:
            part.mkdir()
            yield part
            _put(part, place, last)
    except (OSError, _WriteError) as error:  # an error names files in the hidden folder, which is gone
        raise _cannot_write(path, error, "give a folder that can be") from error


def _put(part: Path, place: Path, last: Sequence[str]) -> None:
    """Moves a folder; if the target exists, moves its files into it."""
    if not place.exists():
        try:
            part.rename(place)
            return
        except OSError:
            if not place.is_dir():  # otherwise another process has made it meanwhile
                raise
    with _opened(place) as folder:
        _locked(folder, wait=True)
        for name in last:
            (place / name).unlink(missing_ok=True)
        for file in sorted(part.iterdir(), key=lambda file: last.index(file.name) if file.name in last else -1):
            os.replace(file, place / file.name)


@contextmanager
def _new_in(place: Path) -> Iterator[Path]:
    """Yields a path in a new hidden folder of ``place``, which is removed at the end.

    The folder is locked while it is in use. Folders that killed processes have left are not locked, and are removed
    here. If the file system has no locks they stay, since they may be in use.
    """
    for left in place.glob("????????".join(HIDDEN)):
        with _opened(left) as folder:
            if _locked(folder):
                shutil.rmtree(left, ignore_errors=True)
    while True:
        hidden = Path(mkdtemp(dir=place, prefix=HIDDEN[0], suffix=HIDDEN[1]))
        with _opened(hidden) as folder:
            if _locked(folder) is False or not hidden.exists():  # another process has removed it before it was locked
                continue
            try:
                yield hidden / "part"  # not the name of a result, which readers may look for in folders below
            finally:
                shutil.rmtree(hidden, ignore_errors=True)
            return


def write_content(path: Path, content: bytes) -> None:
    """Writes bytes.

    Args:
        path: the file, in a folder that exists.
        content: the bytes.

    Raises:
        HeadwayError: if the file cannot be written.
    """
    with atomic_write(path) as part:
        part.write_bytes(content)


def write_text(path: Path, text: str) -> None:
    """Writes a text in UTF-8.

    Lone surrogates, which Python uses in names of files that are not UTF-8, are written in the form that JSON escapes
    them.

    Args:
        path: the file, in a folder that exists.
        text: the text.

    Raises:
        HeadwayError: if the file cannot be written.
    """
    write_content(path, text.encode("utf-8", "backslashreplace"))


def write_tensors(path: Path, tensors: Mapping[str, Tensor], about: Mapping[str, str] | None = None) -> None:
    """Writes tensors as safetensors.

    Args:
        path: the file, in a folder that exists.
        tensors: the tensors by their names; they must be contiguous and share no memory.
        about: texts about the tensors, by their names.

    Raises:
        HeadwayError: if the file cannot be written, or safetensors is not installed.
    """
    library = need("safetensors", "writing .safetensors", "checkpoints")
    save_file = need("safetensors.torch", "writing .safetensors", "checkpoints").save_file
    with atomic_write(path) as part:
        try:
            save_file(dict(tensors), part, metadata=None if about is None else dict(about))
        except library.SafetensorError as error:  # its error for a full disk too
            raise _cannot_write(path, error) from error


def write_checkpoint(path: Path, state: dict[str, Any]) -> None:
    """Writes the state of a training, from which it can be resumed.

    Args:
        path: the file; its folder is created if needed.
        state: what ``torch.save`` writes.

    Raises:
        HeadwayError: if the file cannot be written.
    """
    import torch

    make_folder(path.parent)
    with atomic_write(path) as part:
        try:
            with part.open("wb") as file:  # if torch opens a file itself, its errors do not say why it failed
                torch.save(state, file)
        except RuntimeError as error:
            raise _cannot_write(path, error) from error


def remove_folder(path: Path) -> None:
    """Removes a folder; if the process is killed meanwhile, either all of the folder or nothing has its name.

    Args:
        path: the folder.

    Raises:
        HeadwayError: if it cannot be removed.
    """
    try:
        with _new_in(path.absolute().parent) as gone:
            path.rename(gone)
            shutil.rmtree(gone)
    except OSError as error:
        raise HeadwayError(f"{path} cannot be removed ({_reason(error)}): delete it yourself") from error


# ---------------------------------------------------------------- checkpoints that are read


def read_checkpoint(path: Path | None) -> dict[str, Any] | None:
    """Reads the state of a training onto the CPU.

    Args:
        path: the file.

    Returns:
        The state, or None if ``path`` is None or does not exist.

    Raises:
        HeadwayError: if the file is damaged.
    """
    import torch

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
    """Turns every error within a ``with`` block into one that says the checkpoint is damaged or of another training.

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


# ---------------------------------------------------------------- locks


class LockedFolder:
    """A folder that one process at a time writes to, as a context manager.

    A subclass sets ``used_by``, the name of the work for messages, and may set ``called`` and ``remedy``, what messages
    call the folder and advise; it may override ``_begin``, which reads the files of the folder once it is locked.

    Where the system has no locks, as some network mounts, a warning says that nothing keeps another process out.

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
        self._lock: int | None = None

    def __enter__(self) -> Self:
        try:
            self.out.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(self.out / LOCK, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o666)
        except OSError as error:
            raise HeadwayError(
                f"{self.called} {self.out} cannot be written to ({error.strerror}): {self.remedy}"
            ) from None
        try:
            locked = _locked(self._lock)
            if locked is False:
                raise HeadwayError(
                    f"{self.called} {self.out} is in use by another {self.used_by}: wait for it, or {self.remedy}"
                )
            if locked is None:
                warnings.warn(
                    f"{self.called} {self.out} cannot be locked on its file system: let no other {self.used_by} use it",
                    stacklevel=2,
                )
            self._begin()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _begin(self) -> None:
        """Is called once the folder is locked; an error raised here unlocks the folder."""


@contextmanager
def _opened(folder: Path) -> Iterator[int | None]:
    """Yields the descriptor of a folder for locking it; None if there is none, as on Windows."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:
        descriptor = None
    try:
        yield descriptor
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _locked(opened: int | None, wait: bool = False) -> bool | None:
    """Locks a file or folder until it is closed; False if another process holds it, None without locks."""
    if fcntl is None or opened is None:
        return None
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except (BlockingIOError, PermissionError):  # EWOULDBLOCK, or EACCES on shares of Windows
        return False
    except OSError:
        return None
    return True
