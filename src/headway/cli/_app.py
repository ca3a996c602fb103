"""The command line as a typer app. A command's module is imported only when the command is called."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from .._common.language import LANGUAGES, choose
from ..errors import unknown
from ._options import completing
from ._remedies import telling_options

EXAMPLES = "Examples:\n"


class Group(TyperGroup):
    """Commands by name; an unknown name gets the nearest ones."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Returns the name of a command, the command and its arguments."""
        if args[0] not in self.commands and not args[0].startswith("-"):
            raise unknown("command", args[0], self.commands, see=f"`{ctx.command_path} --help`")
        return super().resolve_command(ctx, args)


def app_of(commands: Mapping[str, tuple[str, str]], resolve: Callable[[str, str], Any] | None = None) -> Any:
    """Returns the command ``headway``. ``resolve`` makes a command from its name and its module, as ``command_of``."""

    class Commands(Group):
        def __init__(self, **options: Any) -> None:
            super().__init__(**options)
            self.commands = {name: TyperCommand(name, help=said) for name, (_, said) in commands.items()}
            readable(self)

        def resolve_command(self, ctx: Any, args: list[str]) -> Any:
            name, _, rest = super().resolve_command(ctx, args)
            return name, (resolve or command_of)(name, commands[name][0]), rest

    app = typer.Typer(cls=Commands, rich_markup_mode="rich", pretty_exceptions_enable=False)
    app.callback()(headway)
    return typer.main.get_command(app)


def command_of(name: str, module: str) -> Any:
    """Imports a command: the ``run`` of its module, which is a function or a typer app with several commands."""
    run = import_module(module).run
    if not isinstance(run, typer.Typer):
        function, run = run, typer.Typer(add_completion=False, rich_markup_mode="rich")
        run.command(name)(function)
    command = typer.main.get_command(run)
    command.name = name
    return readable(command)


def readable(command: Any) -> Any:
    """Corrects the help and the errors of a command for the terminal, and returns the command.

    Rich would drop words in brackets as markup, and typer would keep the line breaks of the source within a paragraph.
    Examples are moved to the end. Errors name the command's options.
    """
    from rich.markup import escape

    if not hasattr(command, "commands"):
        command.invoke = telling_options(command)

    paragraphs = escape(inspect.cleandoc(command.help or "")).split("\n\n")
    examples = [one for one in paragraphs if one.startswith(EXAMPLES)]
    command.help = "\n\n".join(" ".join(one.split()) for one in paragraphs if one not in examples)
    command.epilog = "\n\n".join(examples) or None
    for parameter in command.params:
        if getattr(parameter, "help", None):
            parameter.help = escape(parameter.help)
    for one in getattr(command, "commands", {}).values():
        readable(one)
    return command


def _print_version(asked: bool) -> None:
    if asked:
        from .._common.version import version_line

        typer.echo(version_line())
        raise typer.Exit


def headway(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_print_version,
            is_eager=True,
            help="Print the versions of headway, torch and Python.",
        ),
    ] = False,
    language: Annotated[
        str | None,
        typer.Option(
            help="Language of what commands print and draw: en or zh. Default: by LANG.",
            autocompletion=completing(lambda: LANGUAGES),
        ),
    ] = None,
) -> None:
    """Multi-head attention for PyTorch that takes any position encoding.

    Examples:
        headway encodings rope
        headway compare --quick
        headway --language zh inspect
    """
    if language is not None:
        choose(language)
