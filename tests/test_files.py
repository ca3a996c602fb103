"""A file is there whole or not at all."""

import ast
import errno
import os
import re
import shutil
import stat
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from headway._common.files import (
    LockedFolder,
    atomic_folder,
    atomic_write,
    make_folder,
    need_file_place,
    need_folder_place,
    read_checkpoint,
    remove_folder,
    write_checkpoint,
    write_tensors,
    write_text,
)
from headway._common.lines import append_lines, write_lines
from headway._common.store import ResultStore
from headway.cli import vectors
from headway.errors import HeadwayError
from headway.inspection._table import DataTable

SOURCE = Path(__file__).parents[1] / "src" / "headway"


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


@pytest.mark.parametrize("mode", [0o640, 0o444])
def test_a_file_that_is_there_keeps_its_mode(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "a"
    path.touch()
    path.chmod(mode)
    with atomic_write(path) as part:
        part.write_text("after")
    assert (path.read_text(), stat.S_IMODE(path.stat().st_mode)) == ("after", mode)


def test_what_is_not_whole_has_no_name_that_readers_look_for(tmp_path: Path) -> None:
    with atomic_write(tmp_path / "a.csv"):
        assert not list(tmp_path.rglob("*.csv"))


def test_two_writers_of_one_file_do_not_meet(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    with atomic_write(path) as one:
        with atomic_write(path) as other:
            one.write_text("one")
            other.write_text("other")
        assert path.read_text() == "other"
    assert path.read_text() == "one"
    assert os.listdir(tmp_path) == ["a.txt"]


def test_a_reader_sees_a_whole_file_whoever_writes(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    texts = {letter * 100_000 for letter in "abc"}
    write_text(path, "a" * 100_000)

    def written(text: str) -> None:
        for _ in range(5):
            write_text(path, text)

    with ThreadPoolExecutor(3) as pool:
        writers = [pool.submit(written, text) for text in texts]
        while not all(writer.done() for writer in writers):
            assert path.read_text() in texts
    assert [writer.exception() for writer in writers] == [None] * 3
    assert os.listdir(tmp_path) == ["a.txt"]


def test_two_writers_of_one_folder_do_not_meet(tmp_path: Path) -> None:
    path = tmp_path / "a"
    with atomic_folder(path) as one:
        (one / "config").write_text("one")
        with atomic_folder(path) as other:
            (other / "config").write_text("other")
            (other / "weights").write_text("other")
        assert {file.read_text() for file in path.iterdir()} == {"other"}
        (one / "weights").write_text("one")
    assert {file.read_text() for file in path.iterdir()} == {"one"}
    assert os.listdir(tmp_path) == ["a"]


def test_a_link_that_was_planted_is_not_followed(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("precious")
    (tmp_path / ".a.csv.part").symlink_to(precious)
    (tmp_path / "a.csv").symlink_to(precious)
    write_text(tmp_path / "a.csv", "1,2")
    assert (tmp_path / "a.csv").read_text() == "1,2"
    assert precious.read_text() == "precious"


def test_what_a_killed_process_has_left_is_cleared_and_what_is_in_use_is_not(tmp_path: Path) -> None:
    pytest.importorskip("fcntl")
    left = tmp_path / ".headway-killed12.part"
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "a").touch()
    (tmp_path / ".headway-planted1.part").symlink_to(tmp_path / "precious")
    theirs = [tmp_path / ".headway-notes", tmp_path / ".headway-killed12.part.txt", tmp_path / "a.part"]
    for folder in (left, *theirs):
        folder.mkdir()
        (folder / "half").touch()
    with atomic_write(tmp_path / "b") as part:
        write_text(tmp_path / "c", "whole")
        assert part.exists()
        part.write_text("whole")
    assert {path.name for path in (*tmp_path.glob("[a-z]"), *theirs)} == {"b", "c", *(folder.name for folder in theirs)}
    assert not left.exists()
    assert (tmp_path / "precious" / "a").exists()
    assert all((folder / "half").exists() for folder in theirs)


def test_a_pipe_or_a_device_is_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    for special in (path, Path("/dev/null")):
        with pytest.raises(HeadwayError, match=f"^{special} cannot be written, since it is not a regular file: give a"):
            write_text(special, "text")
    assert path.is_fifo()


def test_a_name_that_is_too_long_is_one_line_before_any_work(tmp_path: Path) -> None:
    path = tmp_path / ("a" * 300)
    for need in (need_file_place, need_folder_place, make_folder):
        with pytest.raises(HeadwayError, match=r"cannot be written \(File name too long\): give "):
            need(path)
    with pytest.raises(HeadwayError, match="File name too long"), atomic_write(path):
        pytest.fail("the work began")
    for name in ("a" * 255, "b" * 255):
        write_text(tmp_path / name, "text")
        with atomic_folder(tmp_path / name[1:]):
            pass


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


# ---------------------------------------------------------------- disks that refuse


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """A block in which the system refuses to make a file longer, as a full disk does."""
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def drawn(path: Path) -> None:
    from matplotlib.figure import Figure

    from headway._common.pictures import save

    save(Figure(), path)


def saved_in_a_folder(path: Path) -> None:
    with atomic_folder(path) as part:
        write_tensors(part / "weights", {"a": BIG})


BIG = torch.zeros(10_000)
WRITERS: dict[str, Callable[[Path], Any]] = {
    "text": lambda path: write_text(path, "a" * 40_000),
    "lines": lambda path: write_lines(path, [{"a": "b" * 40_000}]),
    "appended lines": lambda path: append_lines(path, [{"a": "b" * 40_000}]),
    "tensors": lambda path: write_tensors(path, {"a": BIG}),
    "checkpoint": lambda path: write_checkpoint(path, {"a": BIG}),
    "folder": saved_in_a_folder,
    "table": lambda path: DataTable([{"a": "b" * 40_000}]).csv(path),
    "picture": drawn,
}


@pytest.mark.parametrize("name", WRITERS)
def test_a_disk_that_takes_no_more_is_one_line_and_leaves_the_file_as_it_was(tmp_path: Path, name: str) -> None:
    path = tmp_path / "a.png"
    if name != "folder":
        path.write_bytes(b"{}\n")
    with files_of_at_most(4096), pytest.raises(HeadwayError, match=r"File too large.*\): give ") as refused:
        WRITERS[name](path)
    assert str(refused.value).startswith(f"{path} cannot be written (")
    assert ".headway-" not in str(refused.value)
    assert os.listdir(tmp_path) == ([] if name == "folder" else ["a.png"])
    if name == "appended lines":
        append_lines(path, [{"a": 1}])
        assert path.read_bytes() == b'{}\n{"a": 1}\n'
    elif name != "folder":
        assert path.read_bytes() == b"{}\n"
        WRITERS[name](path)


@pytest.mark.parametrize("name", WRITERS)
def test_a_disk_that_takes_nothing_is_one_line(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(path: Any, *given: Any, **options: Any) -> Any:
        raise OSError(errno.EROFS, "Read-only file system", str(path))

    opened = os.open
    for function in ("mkdir", "unlink", "rename", "replace", "rmdir"):
        monkeypatch.setattr(os, function, refused)
    monkeypatch.setattr(
        os,
        "open",
        lambda path, flags, *given, **options: (refused if flags & os.O_CREAT else opened)(
            path, flags, *given, **options
        ),
    )
    if name == "appended lines":  # which are written into the file, by no function of os
        monkeypatch.setattr(Path, "open", refused)
    with pytest.raises(HeadwayError, match=r"/a\.png cannot be written \(Read-only file system"):
        WRITERS[name](tmp_path / "a.png")


@pytest.mark.parametrize("ending", [".npy", ".safetensors"])
def test_the_vectors_of_a_text_are_written_whole_or_not_at_all(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"a{ending}"
    vectors._write(BIG, path)
    before = path.read_bytes()
    with files_of_at_most(4096), pytest.raises(HeadwayError, match="File too large"):
        vectors._write(BIG, path)
    assert path.read_bytes() == before


def test_rows_stay_where_the_disk_takes_no_more(tmp_path: Path) -> None:
    with ResultStore(tmp_path, "results.jsonl", ("method",)) as store:
        store.used_by = "test"  # type: ignore[misc]
        store.add([{"method": 1, "text": "a"}])
        for old in (1, 2):  # a row in place of another, and a new one
            with files_of_at_most(4096), pytest.raises(HeadwayError, match="File too large"):
                store.add([{"method": old, "text": "b" * 40_000}])
        assert store.rows == [{"method": 1, "text": "a"}]
        store.add([{"method": 3}])
    with ResultStore(tmp_path, "results.jsonl", ("method",)) as store:
        assert store.rows == [{"method": 1, "text": "a"}, {"method": 3}]


# ---------------------------------------------------------------- only the writer writes

WRITES = {
    *("write_text", "write_bytes", "touch", "mkdir", "makedirs", "rename", "renames", "rmtree", "copyfile", "copytree"),
    *("move", "save_file", "savefig", "symlink_to", "hardlink_to", "symlink", "mkstemp", "mkdtemp", "to_csv"),
    *("NamedTemporaryFile", "tofile", "savez", "savetxt", "serialize_file", "dump", "mkfifo"),
    *("os.replace", "os.open", "torch.save", "numpy.save", "np.save", "shutil.copy", "shutil.copy2"),
}
"""Functions that write files or folders; those whose names others have too with their modules."""
LIBRARIES = {"save_file", "torch.save"}
"""Those whose errors for a full disk are not the system's: only the writer knows them."""
OURS = {"write_text", "_formats.write_text", "rename"}
"""The writer's own, one that writes to a stream, and one that returns names of tensors."""
CALLED = re.compile(rf"\b({'|'.join(('open', *WRITES))})\(")
"""What a file that writes has somewhere, since to parse all of them takes seconds."""
DIRECT = {
    "checkpoints/_render.py": "standard output",
    "cli/__init__.py": "the null device is opened",
    "_common/lines.py": "lines that are added to a file",
    "study/memory.py": "a file of the kernel, by which it counts anew",
}
"""The files that write otherwise."""


def opens_to_write(call: ast.Call) -> bool:
    given = [*call.args, *(one.value for one in call.keywords if one.arg == "mode")]
    modes = [one.value for one in given if isinstance(one, ast.Constant) and isinstance(one.value, str)]
    return any(set(mode) <= set("rwaxbt+") and set(mode) & set("wax+") for mode in modes)


def direct_writes(tree: ast.AST) -> Iterator[str]:
    """Calls that write files, but to what `atomic_write` and `atomic_folder` yield, and to memory."""
    free: set[str] = set()
    calls = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            calls.append(node)
        elif isinstance(node, ast.withitem) and isinstance(node.optional_vars, ast.Name):
            from_free = free & {one.id for one in ast.walk(node.context_expr) if isinstance(one, ast.Name)}
            if from_free or ast.unparse(node.context_expr).startswith(("atomic_write(", "atomic_folder(")):
                free.add(node.optional_vars.id)
        elif isinstance(node, ast.Assign) and ast.unparse(node.value) in ("io.BytesIO()", "io.StringIO()"):
            free.update(one.id for one in node.targets if isinstance(one, ast.Name))
    for call in calls:
        name = ast.unparse(call.func)
        last = name.rpartition(".")[2]
        writes = {name, last} & WRITES or (last == "open" and opens_to_write(call))
        names = {one.id for one in ast.walk(call) if isinstance(one, ast.Name)}
        if writes and name not in OURS and (not names & free or {name, last} & LIBRARIES):
            yield f"line {call.lineno}: {ast.unparse(call):.80}"


@pytest.mark.parametrize(
    "line",
    ["path.write_text('a')", "open(path, 'w')", "path.open(mode='ab')", "torch.save(x, path)", "os.replace(a, b)",
     "with path.open('wb') as part:\n    part.close()", "with atomic_write(path) as part:\n    save_file(x, part)",
     "with atomic_write(path) as part:\n    torch.save(x, part)", "out.mkdir(exist_ok=True)", "json.dump(x, file)"],
)  # fmt: skip
def test_a_direct_write_is_found(line: str) -> None:
    assert len(list(direct_writes(ast.parse(line)))) == 1
    assert not list(
        direct_writes(ast.parse("with atomic_write(path) as part:\n    part.write_text('a'); path.open('rb')"))
    )


def test_only_the_writer_writes() -> None:
    """A file that is written otherwise is half there on a full disk, or ends in a traceback."""
    places = {path.relative_to(SOURCE).as_posix(): path for path in sorted(SOURCE.rglob("*.py"))}
    found = {
        place: writes
        for place, path in places.items()
        if place != "_common/files.py" and not place.startswith("testing/")  # whose checks write into temporary folders
        if CALLED.search(text := path.read_text(encoding="utf-8")) and (writes := list(direct_writes(ast.parse(text))))
    }
    assert found.keys() == DIRECT.keys(), found


# ---------------------------------------------------------------- folders


def test_a_folder_takes_its_place_at_the_end(tmp_path: Path) -> None:
    path, left = tmp_path / "new", tmp_path / ".headway-killed12.part"
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
        seen.append(sorted(name for name in os.listdir(path) if not name.startswith(".headway-")))
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


def test_a_folder_beside_which_nothing_can_be_written_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where it is a disk of its own, and a link to one."""
    path, real = tmp_path / "disk", os.mkdir
    path.mkdir()
    (tmp_path / "link").symlink_to(path)

    def refused(made: Any, *given: Any, **options: Any) -> None:
        if Path(made).parent == tmp_path:
            raise OSError(errno.EXDEV, "another disk")
        real(made, *given, **options)

    monkeypatch.setattr(os, "mkdir", refused)
    for place in (path, tmp_path / "link"):
        need_folder_place(place, empty=True)
        with atomic_folder(place) as part:
            need_folder_place(place, empty=True)  # what a killed process has left is no file of the user
            (part / "a").touch()
        assert os.listdir(path) == ["a"]
        (path / "a").unlink()


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


def test_a_file_of_the_user_is_not_the_lock(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    for path in (precious, tmp_path / "lock"):
        path.write_text("precious")
    with Kept(tmp_path):
        pass
    assert (tmp_path / "lock").read_text() == "precious"
    out = tmp_path / "out"
    out.mkdir()
    for name in ("lock", ".headway-lock"):
        (out / name).symlink_to(precious)
    with pytest.raises(HeadwayError, match="cannot be written to"):
        Kept(out).__enter__()
    assert precious.read_text() == "precious"


@pytest.mark.parametrize("code", ["ENOLCK", "EOPNOTSUPP", "ENOSYS", "EINVAL", "EBADF"])
def test_a_folder_without_locks_is_used_with_a_warning(
    tmp_path: Path, code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fcntl = pytest.importorskip("fcntl")

    def without(*_: object) -> None:
        number = getattr(errno, code)
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", without)
    with (
        pytest.warns(UserWarning, match="cannot be locked on its file system: let no other test use it"),
        Kept(tmp_path),
    ):
        pass
    left = tmp_path / ".headway-killed12.part"
    left.mkdir()
    write_text(tmp_path / "a", "whole")
    assert (tmp_path / "a").read_text() == "whole"
    assert left.exists()  # it may be in use


@pytest.mark.parametrize("code", ["EWOULDBLOCK", "EAGAIN", "EACCES"])
def test_a_lock_that_another_holds_is_one(tmp_path: Path, code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fcntl = pytest.importorskip("fcntl")

    def held(*_: object) -> None:
        raise OSError(getattr(errno, code), code)

    monkeypatch.setattr(fcntl, "flock", held)
    with pytest.raises(HeadwayError, match="in use by another test"):
        Kept(tmp_path).__enter__()


def test_a_system_without_fcntl_writes_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headway._common.files.fcntl", None)
    with pytest.warns(UserWarning, match="cannot be locked"), Kept(tmp_path):
        write_text(tmp_path / "a", "whole")
    with atomic_folder(tmp_path / "b") as part:
        (part / "c").touch()
    assert sorted(os.listdir(tmp_path)) == [".headway-lock", "a", "b"]


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(HeadwayError, match="cannot be written to"):
        Kept(tmp_path / "file" / "out").__enter__()
