"""The errors of commands name options, not the arguments of Python's functions."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import headway
from headway import HeadwayError, cli
from headway.cli._app import command_of
from headway.cli._remedies import in_options, options_of, told_in
from headway.vectors import VECTORS

OPTIONS = {"too_long": "--too-long", "top_k": "--top-k", "lengths": "--lengths", "fast": "--fast"}


def test_arguments_become_options() -> None:
    for message, said in {
        'shorten it, or give too_long="leave out"': "shorten it, or give --too-long 'leave out'",
        "top_k is 0: give at least 1, or None for all ids": "--top-k is 0: give at least 1, or leave it out",
        "give top_k=8, or lengths=…": "give --top-k 8, or --lengths …",
        "choose another by top_k=": "choose another by --top-k",
        "give fast=True": "give --fast",
        "train_length is 5 and top_k 3": "train_length is 5 and --top-k 3",
        "lengths is '1,x': give numbers": "--lengths is '1,x': give numbers",
        "give encoding=": "give encoding= (encoding= in Python: this command has no such option)",
        "no encoding 'rope(top_k=5)'": "no encoding 'rope(top_k=5)'",
        "the file top_k.txt is empty": "the file top_k.txt is empty",
        "--option is 'x': give name=value": "--option is 'x': give name=value",
        "too few, as in --option top_k=1": "too few, as in --option top_k=1",
    }.items():
        assert in_options(message, OPTIONS) == said
    assert in_options("give window=5", {"window": "--option window="}) == "give --option window=5"


def _commands() -> dict[str, dict[str, str]]:
    found = {}
    for name, (module, _) in cli.COMMANDS.items():
        command = command_of(name, module)
        several = getattr(command, "commands", None)
        these = {name: command} if several is None else {f"{name} {word}": one for word, one in several.items()}
        found |= {path: options_of(one) for path, one in these.items()}
    for kind in VECTORS.values():
        found[f"vectors train {kind.name}"] = {name: f"--option {name}=" for name in kind().options}
    return found


def _messages() -> Iterator[str]:
    """The messages of all errors in the package, with 7 in place of what they are filled with."""
    for file in sorted(Path(headway.__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("HeadwayError") and node.args:
                yield _text(node.args[0])


def _text(node: ast.expr) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part) for part in node.values)
    if isinstance(node, ast.BinOp):
        return _text(node.left) + _text(node.right)
    return "7"


def test_no_error_of_a_command_asks_for_an_argument_of_python() -> None:
    messages, commands = set(_messages()), _commands()
    assert len(messages) > 500
    changed = 0
    for path, options in commands.items():
        for message in messages:
            said = in_options(message, options)
            changed += said != message
            about = said.partition(" in Python: ")[0] if said.endswith("has no such option)") else ""
            for name in re.findall(r"(?<= )[a-z_]+(?==['\"…\d])", said):
                known = f"{name}=" in about or message.startswith("--") or f"--option {name}=" in said
                assert known, f"headway {path}: {said}"
            for name in options:
                bare = rf"(?<!--option )(?<![-\w.('\"/]){name}(?![\w.('\"/=])"
                assert "_" not in name or message.startswith("--") or not re.search(bare, said), f"{path}: {said}"
    assert changed > 100


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("compare --seeds 0", "headway: --seeds is 0: give at least 1"),
        ("compare --lengths 1", "headway: --train-length is 128 and lengths are [1]"),
        ("vectors train fasttext text.txt --out w.safetensors --option min_n=4 --option max_n=2", "--option min_n"),
        ("bench --seconds -1", "headway: --seconds is -1"),
        ("generate nowhere/at-all hello --top-k 0", "headway: --top-k is 0: give at least 1, or leave it out"),
        ("generate nowhere/at-all hello --top-k 5", "--top-k is 5 but temperature is 0, which takes the likeliest id"),
    ],
)
def test_commands_say_so(
    typed: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text("one two three\n" * 40)
    assert cli.main(typed.split()) == 2
    errors = capsys.readouterr().err
    assert said in errors
    assert errors.count("\n") == 1


def test_other_errors_stay() -> None:
    with pytest.raises(HeadwayError, match="--top-k is 0"), told_in(OPTIONS):
        raise HeadwayError("top_k is 0: give more")
    with pytest.raises(ZeroDivisionError), told_in(OPTIONS):
        raise ZeroDivisionError
