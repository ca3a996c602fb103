"""The command line; each command has its own module."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from io import TextIOWrapper
from typing import Any, TextIO

COMMANDS: dict[str, tuple[str, str]] = {
    "bench": (
        "headway.cli.bench",
        "Measure the speed and memory of attention against torch and against the processor's limit (the roof).",
    ),
    "compare": (
        "headway.cli.compare",
        "Train a small Transformer for each position encoding, and measure it at the trained length and beyond.",
    ),
    "doctor": (
        "headway.cli.doctor",
        "Show versions, kernels, threads and caches, check what the kernels compute, and say what is missing.",
    ),
    "encodings": (
        "headway.cli.encodings",
        "List the position encodings, or show one: its formula, arguments, kernels, measured properties and a picture.",
    ),
    "extend": (
        "headway.cli.extend",
        "Rescale a model's rotary encoding, without training, and measure its perplexity by position.",
    ),
    "generate": ("headway.cli.generate", "Continue a text or answer questions with a published model."),
    "inspect": (
        "headway.cli.inspect",
        "Show what each head of a model does: its role with score, interval and baseline, and its links in a text.",
    ),
    "new-encoding": (
        "headway.cli.new_encoding",
        "Write a file with a working position encoding, to be changed into your own, and its test.",
    ),
    "plan": (
        "headway.cli.plan",
        "Compute what attention over several processes costs with each method: bytes, memory, and the link it needs.",
    ),
    "tune": (
        "headway.cli.tune",
        'Check what the kernels compute on this machine and time them, so that "auto" takes the fastest right one.',
    ),
    "vectors": (
        "headway.cli.vectors",
        "Make and use vectors of words: one-hot, bag of words, TF-IDF, word2vec, GloVe, fastText, BERT.",
    ),
}
"""The module and the summary of each command. The module's ``run`` is the function of the command, or a typer app of
several; the summary is the first sentence of its docstring."""

NOT_WRITTEN = 1
WRONG_INPUT = 2
INTERRUPTED = 130
GONE = 141
"""The exit code if the program that reads the output has ended."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command line, by default that of the process, and returns its exit code.

    The code is 0 after success and 130 after an interruption. It is 2 if the input is wrong and 1 if standard output
    cannot be written; one line on standard error then says why.
    """
    from .._common import language
    from .._common.extras import PACKAGES
    from ..errors import HeadwayError

    if "_HEADWAY_COMPLETE" in os.environ:  # a shell asks for completion; headway/__init__.py reads this too
        from ._completion import complete

        complete(COMMANDS)
    given = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
    _open_streams()
    if sys.stdout is None:
        return _say("headway: standard output is closed: send it to a file, or to /dev/null", NOT_WRITTEN)
    try:
        _need_decoded(given)
        with language.speaking(language.of_environment()):
            code = _called(given)
        sys.stdout.flush()  # here, where a reader that has gone away is caught
    except HeadwayError as error:
        return _say(f"headway: {error}")
    except KeyboardInterrupt:
        return _say("headway: stopped", INTERRUPTED)
    except ModuleNotFoundError as error:
        package = PACKAGES.get(error.name or "")
        if package is None:
            raise
        return _say(_needs(package.name, "this", package.extra))
    except OSError as error:
        # progress may fail on standard error, where no message can be written, or results on standard output
        refused = error.filename is None and (_refuses(sys.stderr) or _refuses(sys.stdout, "\n"))
        if isinstance(error, BrokenPipeError):  # as in `headway encodings | head`
            return GONE
        what = "standard output cannot be written" if refused else "a file cannot be used"
        where = "send it to another place" if refused else "see to that file"
        return _say(f"headway: {what} ({error if error.filename else error.strerror or error}): {where}", NOT_WRITTEN)
    return code


def _called(given: list[str]) -> int:
    """Calls a command, and returns its exit code."""
    try:
        import typer

        from ._app import app_of
    except ModuleNotFoundError as error:
        if given[0] == "doctor":  # it reports missing packages, so it needs none
            from ._diagnosis import show

            return show("--json" in given)
        if given[0] == "--version":
            from .._common.version import version_line

            print(version_line())
            return 0
        return _say(_needs(error.name, "its command line", "study"))
    # click is part of typer in some versions and a separate package in others
    usage_error: Any = next(base for base in typer.BadParameter.__mro__ if base.__name__ == "ClickException")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # for characters that the terminal lacks
    columns = os.environ.get("COLUMNS")
    if columns is not None and not (columns.isdecimal() and int(columns)):
        del os.environ["COLUMNS"]  # POSIX: as if it were not set
    try:
        code = app_of(COMMANDS).main(given, prog_name="headway", standalone_mode=False)
    except typer.Abort:
        return _say("headway: stopped", INTERRUPTED)
    except usage_error as error:
        path = "headway" if getattr(error, "ctx", None) is None else error.ctx.command_path
        said = error.format_message().rstrip(".").replace("Value error, ", "")
        hint = _option_of_a_method(error, path) or _option_of_another(error)
        return _say(f"headway: {said}: {hint}see {path} --help")
    return code if isinstance(code, int) else 0


def _open_streams() -> None:
    """Opens the null device in place of closed standard streams.

    Otherwise the next file that is opened would get the number of a closed stream, and libraries would write into it.
    Standard output stays None, so that ``main`` can refuse it.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free
    if sys.stdin is None:
        sys.stdin = open(0)  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(2, "w")  # noqa: SIM115


def _need_decoded(given: Sequence[str]) -> None:
    """Raises HeadwayError for arguments that Python could not decode, such as Chinese in an ASCII locale."""
    from ..errors import HeadwayError

    encoding = sys.getfilesystemencoding()
    if encoding != "utf-8" and any("\udc80" <= letter <= "\udcff" for one in given for letter in one):
        raise HeadwayError(
            f"Python reads the arguments as {encoding}, and one of them is not: set PYTHONUTF8=1 for UTF-8"
        )


def _refuses(stream: TextIO, more: str = "") -> bool:
    """Whether a stream cannot be flushed; its rest then goes to the null device, so that Python prints no error."""
    try:
        stream.write(more)
        stream.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        return True
    return False


def _needs(package: str | None, what: str, extra: str) -> str:
    from .._common.extras import install_command

    return f"headway needs {package} for {what}: {install_command(extra)}"


def _option_of_a_method(error: Any, path: str) -> str:
    """The hint that an option may be one of the method, set by --option."""
    name = (getattr(error, "option_name", None) or "").lstrip("-")
    return f"if {name} is an option of the method, give --option {name}=…; " if name and path.endswith(" train") else ""


def _option_of_another(error: Any) -> str:
    """The commands that have an option which this command lacks, unless it has one of a similar name."""
    from ._app import command_of

    name = getattr(error, "option_name", None)
    if not name or getattr(error, "possibilities", True):
        return ""
    commands = {f"headway {word}": command_of(word, module) for word, (module, _) in COMMANDS.items()}
    for path, group in list(commands.items()):
        commands |= {f"{path} {word}": one for word, one in getattr(group, "commands", {}).items()}
    having = [path for path, one in commands.items() if any(name in parameter.opts for parameter in one.params)]
    return f"it is an option of {' and '.join(having)}; " if having else ""


def _say(line: str, code: int = WRONG_INPUT) -> int:
    with suppress(OSError):  # nobody can be told
        print(" ".join(line.split()), file=sys.stderr)
    return code
