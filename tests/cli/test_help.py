"""The help of every command says on the screen what its text says, and ends with examples that can be typed."""

import re
import shlex
from typing import Any

import pytest

from headway import cli
from headway.cli._app import app_of, readable

from .conftest import commands

ALL = {" ".join(words): command for words, command in commands()}
WIDE, NARROW, SMALL = 200, 80, 60


def screen(words: str, columns: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> str:
    """What `headway WORDS --help` prints at a width, without frames and white space."""
    monkeypatch.setenv("COLUMNS", str(columns))
    assert cli.main([*words.split(), "--help"]) == 0
    out, errors = capsys.readouterr()
    assert errors == ""
    assert max(map(len, out.splitlines())) <= columns
    return squeezed(out)


def squeezed(text: str) -> str:
    return re.sub(r"[\s│╭╮╰╯─]", "", text)


def written(text: str | None) -> str:
    """A help text as its author wrote it."""
    return squeezed((text or "").replace("\\[", "["))


def examples_of(command: Any) -> list[str]:
    """The examples at the end of a command's help, each a command line."""
    lines = (command.epilog or "").replace("\\[", "[").splitlines()
    return [line.strip() for line in lines if line.strip().startswith("headway ")]


@pytest.mark.parametrize("columns", [WIDE, NARROW, SMALL])
@pytest.mark.parametrize("words", ["", *ALL])
def test_every_word_of_the_help_is_on_the_screen(
    words: str, columns: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ALL[words] if words else app_of(cli.COMMANDS)
    shown = screen(words, columns, capsys, monkeypatch)
    assert written(command.help) in shown
    assert written(command.epilog) in shown
    for parameter in command.params:
        assert parameter.help, f"{words} has {parameter.name} without a help text"
        assert written(parameter.help) in shown, f"{words} {parameter.name}"
        shown_default = parameter.default not in (None, False, ()) and getattr(parameter, "show_default", True)
        if shown_default and "default:" not in parameter.help.lower() and not parameter.required:
            assert f"default:{squeezed(str(getattr(parameter.default, 'value', parameter.default)))}" in shown


def test_brackets_in_a_help_text_are_no_markup(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import typer

    app = typer.Typer(add_completion=False)

    @app.command()
    def run(names: str = typer.Option("a", help="Names; [all] of [tokens, dim] by default.")) -> None:
        """Takes [red] words.

        Broken
        lines.
        """

    monkeypatch.setenv("COLUMNS", "80")
    command = readable(typer.main.get_command(app))
    with pytest.raises(SystemExit):
        command.main(["--help"], prog_name="x")
    shown = capsys.readouterr().out
    for said in ("Takes [red] words.", "[all] of [tokens, dim]", "Broken lines.", "[default: a]"):
        assert said in shown


def test_every_option_that_may_be_left_out_says_what_happens_then() -> None:
    wrong = [
        f"{words} {parameter.name}"
        for words, command in ALL.items()
        for parameter in command.params
        if not (parameter.required or getattr(parameter, "is_flag", False))
        and parameter.default is None
        and not re.search(r"Default: |In place of ", parameter.help)
    ]
    assert not wrong


def test_no_option_is_explained_by_another_command() -> None:
    for words, command in ALL.items():
        for parameter in command.params:
            assert " as for headway" not in (getattr(parameter, "help", None) or ""), words


@pytest.mark.parametrize("words", ALL)
def test_the_examples_can_be_parsed(words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    command = ALL[words]
    examples = examples_of(command)
    assert 1 <= len(examples) <= 2
    for example in examples:
        assert len(example) <= 78
        named, *arguments = shlex.split(example)
        assert named == "headway"
        parsed = parse(app_of(cli.COMMANDS), arguments)
        assert parsed.startswith(words), example


def parse(command: Any, arguments: list[str], parent: Any = None, path: str = "") -> str:
    """Parses a command line without running anything; returns the commands that it names."""
    context = command.make_context(path or "headway", list(arguments), parent=parent)
    rest = [*context._protected_args, *context.args]
    if not hasattr(command, "commands") or not rest:
        assert not rest
        return path
    name, below, rest = command.resolve_command(context, rest)
    return parse(below, rest, context, f"{path} {name}".strip())


def test_the_top_has_examples_that_can_be_parsed() -> None:
    for example in examples_of(app_of(cli.COMMANDS)):
        assert parse(app_of(cli.COMMANDS), shlex.split(example)[1:]) in ALL
