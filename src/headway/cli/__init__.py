"""The command line, with a module for each command."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

COMMANDS: dict[str, str] = {
    "bench": "headway.cli.bench",
    "compare": "headway.cli.compare",
    "doctor": "headway.cli.doctor",
    "encodings": "headway.cli.encodings",
    "extend": "headway.cli.extend",
    "generate": "headway.cli.generate",
    "inspect": "headway.cli.inspect",
    "new-encoding": "headway.cli.new_encoding",
    "vectors": "headway.cli.vectors",
}
"""The module of each command. Its ``run`` is the function of the command, or a typer app of several."""

WRONG_INPUT = 2
INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command line.

    Args:
        arguments: the arguments; those of the process if None.

    Returns:
        The exit code: 0, or 2 with one line on stderr if the input is wrong, or 130 if it was interrupted.
    """
    from ..errors import HeadwayError
    from ..extras import PACKAGES, install_command

    given = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
    try:
        import typer
    except ModuleNotFoundError as error:
        if given[0] == "doctor":  # which says what is missing, and so needs none of it
            from ._diagnosis import show

            return show("--json" in given)
        return _say(f"headway needs {error.name} for its command line: {install_command('study')}")
    # click is part of typer in some versions and a separate package in others
    usage_error: Any = next(base for base in typer.BadParameter.__mro__ if base.__name__ == "ClickException")
    app = typer.Typer(add_completion=False, rich_markup_mode="rich", pretty_exceptions_enable=False)
    app.callback()(_headway)
    for name, module in COMMANDS.items():
        run = import_module(module).run
        if isinstance(run, typer.Typer):
            app.add_typer(run, name=name)
        else:
            app.command(name)(run)
    try:
        code = typer.main.get_command(app).main(given, prog_name="headway", standalone_mode=False)
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
        return _say(f"headway: {error.format_message()}: see headway {given[0]} --help")
    return code if isinstance(code, int) else 0


def _headway() -> None:
    """Multi-head attention for PyTorch that takes any position encoding."""


def _say(line: str, code: int = WRONG_INPUT) -> int:
    print(" ".join(line.split()), file=sys.stderr)
    return code
