"""Completion without torch: a shell asks at each press of Tab, but importing the commands takes seconds.

Completion needs the commands with their options and values. These facts are kept in a file in the user's cache, which
is written again when a source file has changed.
"""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from .._common.files import cache_folder, make_folder, write_text
from ..errors import HeadwayError
from ._app import Group, app_of, command_of
from ._options import completing

COMPLETING = "_HEADWAY_COMPLETE"
"""The variable by which a shell asks for completion."""
PACKAGE = Path(__file__).parents[1]


def complete(commands: Mapping[str, tuple[str, str]]) -> None:
    """Prints the completions of the command line that the shell has put into the environment, and exits."""
    app_of(commands, lambda name, _: command_from(name, facts(commands)[name])).main(prog_name="headway")


def facts(commands: Mapping[str, tuple[str, str]]) -> dict[str, Any]:
    """Returns the facts of all commands by name, from the cache if no source file has changed since it was written."""
    state = state_of_the_sources()
    try:
        kept = json.loads(cached().read_text(encoding="utf-8"))
        if kept["state"] == state:
            return kept["commands"]
    except (OSError, ValueError, KeyError, TypeError):  # without a cache there is a HeadwayError, which is a ValueError
        pass
    environment = {name: value for name, value in os.environ.items() if name != COMPLETING}
    asked = [sys.executable, "-m", "headway.cli._completion", json.dumps(commands)]
    made = subprocess.run(asked, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True)
    its = json.loads(made.stdout)
    try:
        make_folder(cached().parent)
        write_text(cached(), json.dumps({"state": state, "commands": its}))
    except HeadwayError:  # then the next press waits too
        pass
    return its


def cached() -> Path:
    """Returns the file with the facts; each installation has its own."""
    return cache_folder() / f"completion-{zlib.crc32(str(PACKAGE).encode()):08x}.json"


def state_of_the_sources() -> str:
    """Returns a text that changes with each file of the package."""
    files = sorted((str(path), path.stat().st_mtime_ns) for path in PACKAGE.rglob("*.py"))
    return f"{zlib.crc32(repr(files).encode()):08x}"


def facts_of(command: Any) -> dict[str, Any]:
    """Returns the facts that complete a command: its help, its parameters with their values, and its subcommands."""
    context = typer.Context(command)
    below = getattr(command, "commands", {})
    return {
        "help": command.help,
        "parameters": [_parameter(one, context) for one in command.params],
        "commands": {name: facts_of(one) for name, one in below.items()},
    }


def _parameter(one: Any, context: Any) -> dict[str, Any]:
    is_option = one.param_type_name == "option"
    return {
        "name": one.name,
        "options": [*one.opts, *one.secondary_opts] if is_option else [],
        "is_flag": getattr(one, "is_flag", False),
        "many": one.nargs == -1 or one.multiple,
        "help": one.help,
        "values": [item.value for item in one.shell_complete(context, "")],
    }


def command_from(name: str, known: Mapping[str, Any]) -> Any:
    """Returns a command that does nothing but complete like the one whose facts (``facts_of``) are given."""

    def nothing(**_: Any) -> None: ...

    signature = inspect.Signature([_described(one) for one in known["parameters"]])
    nothing.__signature__ = signature  # type: ignore[attr-defined]
    nothing.__annotations__ = {one.name: one.annotation for one in signature.parameters.values()}
    nothing.__doc__ = known["help"]
    below = {one: command_from(one, its) for one, its in known["commands"].items()}
    app = typer.Typer(cls=Group, add_completion=False)
    if below:
        app.callback()(nothing)
    else:
        app.command(name)(nothing)
    command: Any = typer.main.get_command(app)
    command.name = name
    if below:
        command.commands = below
    return command


def _described(one: Mapping[str, Any]) -> inspect.Parameter:
    shared: dict[str, Any] = {"help": one["help"]}
    if one["values"]:
        shared["autocompletion"] = completing(lambda: one["values"])
    made = typer.Option(*one["options"], **shared) if one["options"] else typer.Argument(**shared)
    kind: Any = bool if one["is_flag"] else list[str] if one["many"] else str
    return inspect.Parameter(
        one["name"], inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind | None, made]
    )


if __name__ == "__main__":
    print(
        json.dumps({name: facts_of(command_of(name, module)) for name, (module, _) in json.loads(sys.argv[1]).items()})
    )
