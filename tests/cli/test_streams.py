"""A command whose output or input is closed or full, or that is stopped, says one line or nothing."""

import ast
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from headway import cli
from headway._common import files
from headway._common.version import version_line
from headway.cli import _diagnosis, inspect
from headway.errors import HeadwayError

FULL = Path("/dev/full")
needs_full = pytest.mark.skipif(not FULL.exists(), reason="needs /dev/full")


def started(command: str, **options: Any) -> Any:
    """A command in a shell, as a user starts it, with its outcome."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHON": sys.executable}
    return subprocess.run(
        ["sh", "-c", command], env=environment, capture_output=True, text=True, check=False, **options
    )


@needs_full
@pytest.mark.parametrize("form", ["none", "--json"])
def test_output_that_cannot_be_written_is_one_line(
    form: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with FULL.open("w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        assert cli.main(["encodings", form]) == 1
    said = "headway: standard output cannot be written (No space left on device): send it to another place\n"
    assert capsys.readouterr().err == said


@needs_full
def test_python_says_nothing_after_it() -> None:
    done = started('"$PYTHON" -m headway encodings >/dev/full')
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)


@needs_full
def test_a_line_that_nobody_can_be_told_is_none(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with os.fdopen(os.open(FULL, os.O_WRONLY), "w", buffering=1) as full:
        monkeypatch.setattr(sys, "stderr", full)
        assert cli.main(["encodings", "rop"]) == 2
        monkeypatch.setattr(cli, "_called", lambda given: print("progress", file=sys.stderr))
        assert cli.main(["encodings"]) == 1
        assert capsys.readouterr().out == ""
        assert os.path.sameopenfile(full.fileno(), os.open(os.devnull, os.O_WRONLY))  # Python closes it without a fault


def test_output_that_is_closed_is_one_line_before_any_work(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(cli, "_called", lambda given: pytest.fail("it works"))
    assert cli.main(["encodings"]) == 1
    assert capsys.readouterr().err == "headway: standard output is closed: send it to a file, or to /dev/null\n"


def test_no_file_gets_the_number_of_a_stream_that_is_closed(tmp_path: Path) -> None:
    """Libraries write to the numbers; and print() writes to standard output where standard error is None."""
    (tmp_path / "run.py").write_text(
        "import os, sys\n"
        "from headway.cli import main\n"
        "codes = [main(['encodings'])]\n"
        "sys.stdout = open('printed', 'w')\n"
        "codes += [main(['encodings', 'rop']), sys.stdin.read()]\n"
        "sys.stdout.close()\n"
        "open('found', 'w').write(repr((codes, {os.path.realpath(f'/dev/fd/{n}') for n in range(3)})))\n"
    )
    started('exec <&- >&- 2>&-; "$PYTHON" run.py', cwd=tmp_path)
    codes, numbers = ast.literal_eval((tmp_path / "found").read_text())
    assert codes == [1, 2, ""]
    assert sys.platform != "linux" or numbers == {"/dev/null"}
    assert (tmp_path / "printed").read_text() == ""


@pytest.mark.parametrize("columns", ["0", "00", "-5", "", "many", "²"])
def test_a_width_that_is_none_is_no_width(
    columns: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cli.main(["encodings", "none"])
    usual = capsys.readouterr().out
    monkeypatch.setenv("COLUMNS", columns)
    assert cli.main(["encodings", "none"]) == 0
    assert capsys.readouterr().out == usual


def test_the_version_needs_no_package(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "typer", None)  # its import fails
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"{version_line()}\n"
    assert cli.main(["encodings"]) == 2
    assert capsys.readouterr().err.startswith("headway needs typer for its command line: ")


def test_arguments_that_the_locale_does_not_know_are_named_as_such(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    given = ["generate", "nowhere", "旋转".encode().decode("ascii", "surrogateescape")]
    monkeypatch.setattr(sys, "getfilesystemencoding", lambda: "ascii")
    assert cli.main(given) == 2
    said = "headway: Python reads the arguments as ascii, and one of them is not: set PYTHONUTF8=1 for UTF-8\n"
    assert capsys.readouterr().err == said


def test_a_file_that_cannot_be_used_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise FileNotFoundError(2, "No usable temporary directory found in ['/tmp']")

    monkeypatch.setattr(cli, "_called", refused)
    assert cli.main(["bench"]) == 1
    found = capsys.readouterr().err
    assert (
        found == "headway: a file cannot be used (No usable temporary directory found in ['/tmp']): see to that file\n"
    )


@pytest.mark.skipif(not hasattr(os, "kill") or sys.platform == "win32", reason="needs signals")
@pytest.mark.parametrize("way", ["script", "module"])
def test_a_stop_while_torch_is_imported_is_quiet(way: str, tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("import os, signal, time; os.kill(os.getpid(), signal.SIGINT); time.sleep(60)")
    (tmp_path / "headway").write_text("from headway.cli import main; main()")
    python = [sys.executable, *([str(tmp_path / "headway")] if way == "script" else ["-m", "headway"]), "encodings"]
    source = str(Path(cli.__file__).parents[2])
    given: dict[str, Any] = {
        "env": {**os.environ, "PYTHONPATH": f"{tmp_path}:{source}"},
        "preexec_fn": partial(signal.signal, signal.SIGINT, signal.SIG_DFL),  # a shell's background jobs ignore it
        "cwd": source,
        "timeout": 50,
    }
    done = subprocess.run(python, capture_output=True, check=False, **given)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, b"", b"")
    done = subprocess.run([sys.executable, "-c", "import headway"], capture_output=True, check=False, **given)
    assert b"KeyboardInterrupt" in done.stderr


# ---------------------------------------------------------------- what is no path


@pytest.mark.parametrize("text", ["the cat saw the dog " * 30, "~nobody-of-that-name said it"])
def test_a_text_that_can_be_no_path_is_a_text(text: str) -> None:
    assert not inspect.is_model(text)
    assert [one.text for one in inspect.texts_of(text)] == [text.strip()]


@pytest.mark.parametrize(
    "arguments",
    [
        ["generate", "~nobody-of-that-name/model", "a"],
        ["generate", "m" * 300, "a"],
        ["vectors", "similar", "v" * 300, "a"],
        ["encodings", "e" * 300 + ".py:Mine"],
        ["compare", "t" * 300],
        ["compare", "--out", "o" * 300],
        ["encodings", "rope", "--out", "o" * 300 + ".png"],
        ["new-encoding", "mine", "--out", "o" * 300],
    ],
)
def test_a_name_that_can_be_no_file_is_one_line(
    arguments: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(arguments) == 2
    found = capsys.readouterr().err
    assert found.startswith("headway: ")
    assert found.count("\n") == 1
    assert os.listdir() == []


def test_a_user_without_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HEADWAY_CACHE", raising=False)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # as where neither HOME nor the system has one
    with pytest.raises(HeadwayError, match="name a folder in HEADWAY_CACHE"):
        files.cache_folder()
    assert any("HEADWAY_CACHE" in fault.what for fault in _diagnosis.files().faults)
    monkeypatch.setenv("HEADWAY_CACHE", "/cache")
    assert files.cache_folder() == Path("/cache")
    monkeypatch.undo()
    monkeypatch.setenv("HOME", "/somewhere/anyone")
    monkeypatch.setenv("HEADWAY_CACHE", "~/cache")
    assert files.cache_folder() == Path("/somewhere/anyone/cache")
