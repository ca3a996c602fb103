"""The command line, with a module for each command."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from io import TextIOWrapper
from typing import Any

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
        "Show what each head of a model does: its role with figure, interval and baseline, and its links in a text.",
    ),
    "new-encoding": (
        "headway.cli.new_encoding",
        "Write a file with a position encoding that works, to be changed into your own, and its test.",
    ),
    "vectors": (
        "headway.cli.vectors",
        "Make and use vectors of words: one-hot, bag of words, TF-IDF, word2vec, GloVe, fastText, BERT.",
    ),
}
"""The module and the summary of each command. The module's ``run`` is the function of the command, or a typer app of
several; the summary is the first sentence of its docstring."""

WRONG_INPUT = 2
INTERRUPTED = 130
GONE = 141
"""Whoever read the output has gone away."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command line.

    Args:
        arguments: the arguments; those of the process if None.

    Returns:
        The exit code: 0, or 2 with one line on stderr if the input is wrong, or 130 if it was interrupted.
    """
    from ..errors import HeadwayError
    from ..extras import PACKAGES, install_command

    if "_HEADWAY_COMPLETE" in os.environ:  # a shell asks, which headway/__init__.py has seen too
        from ._completion import complete

        complete(COMMANDS)
    given = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
    try:
        import typer

        from ._app import app_of
    except ModuleNotFoundError as error:
        if given[0] == "doctor":  # which says what is missing, and so needs none of it
            from ._diagnosis import show

            return show("--json" in given)
        return _say(f"headway needs {error.name} for its command line: {install_command('study')}")
    # click is part of typer in some versions and a separate package in others
    usage_error: Any = next(base for base in typer.BadParameter.__mro__ if base.__name__ == "ClickException")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # for characters that the terminal lacks
    try:
        code = app_of(COMMANDS).main(given, prog_name="headway", standalone_mode=False)
        sys.stdout.flush()  # here, where a reader that has gone away is caught
    except HeadwayError as error:
        return _say(f"headway: {error}")
    except (KeyboardInterrupt, typer.Abort):
        return _say("headway: stopped", INTERRUPTED)
    except ModuleNotFoundError as error:
        package = PACKAGES.get(error.name or "")
        if package is None:
            raise
        return _say(f"headway needs {package.name} for this: {install_command(package.extra)}")
    except usage_error as error:
        path = "headway" if getattr(error, "ctx", None) is None else error.ctx.command_path
        said = error.format_message().rstrip(".").replace("Value error, ", "")
        hint = _option_of_a_method(error, path) or _option_of_another(error)
        return _say(f"headway: {said}: {hint}see {path} --help")
    except BrokenPipeError:  # as in `headway encodings | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return GONE
    return code if isinstance(code, int) else 0


def _option_of_a_method(error: Any, path: str) -> str:
    """What to give in place of an option that is one of a method's own."""
    name = (getattr(error, "option_name", None) or "").lstrip("-")
    return f"if {name} is an option of the method, give --option {name}=…; " if name and path.endswith(" train") else ""


def _option_of_another(error: Any) -> str:
    """Which commands have the option that a command has not, if it has none of a similar name."""
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
    print(" ".join(line.split()), file=sys.stderr)
    return code
