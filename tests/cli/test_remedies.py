"""The errors of commands name options, not the arguments of Python's functions."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import headway
from headway import HeadwayError, cli
from headway.cli._app import command_of
from headway.cli._remedies import in_options, options_of, telling_options, typed_in, with_options
from headway.vectors import VECTORS

OPTIONS = {"too_long": "--too-long", "top_k": "--top-k", "lengths": "--lengths", "fast": "--fast"}


def test_arguments_become_options() -> None:
    for message, said in {
        'shorten it, or give too_long="leave out"': "shorten it, or give --too-long 'leave out'",
        "top_k is 0: give at least 1, or None for all ids": "--top-k is 0: give at least 1, or leave it out",
        "give top_k=5 with a list or None": "give --top-k 5 with a list or None",
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
    said = in_options("norm is 'l9': give 'l2' or None", {"norm": "--option norm="})
    assert said == "--option norm is 'l9': give 'l2' or None"


def test_what_users_typed_stays() -> None:
    for typed, message, said in (
        ("a/top_k=3/x", "a/top_k=3/x is not there: give top_k=5", "a/top_k=3/x is not there: give --top-k 5"),
        (Path("a/top_k=3/x"), "the folder a/top_k=3 is not there", "the folder a/top_k=3 is not there"),
        (["x", "f(a=1, top_k=2)"], "no f(a=1, top_k=2)", "no f(a=1, top_k=2)"),
        ("x,top_k=2", "no encoding top_k=2", "no encoding top_k=2"),
        ("top_k=2 a b.txt", "no file top_k=2 a b.txt", "no file top_k=2 a b.txt"),
        ("window=3/x", "no file window=3/x", "no file window=3/x"),
        ("lengths", "lengths is a folder", "lengths is a folder"),
        ("1 or None", "top_k is '1 or None': give 5 or None", "--top-k is '1 or None': give 5, or leave it out"),
        ("a=b", "give lengths='a=b' or top_k=a=b", "give --lengths 'a=b' or --top-k a=b"),
        ("is", "top_k is 0: give more", "--top-k is 0: give more"),
    ):
        assert in_options(message, OPTIONS, typed_in({"one": typed, "other": 3, "none": None})) == said


def _commands() -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    for name, (module, _) in cli.COMMANDS.items():
        command = command_of(name, module)
        several = getattr(command, "commands", None)
        these = {name: command} if several is None else {f"{name} {word}": one for word, one in several.items()}
        found |= {path: options_of(one) for path, one in these.items()}
    for kind in VECTORS.values():
        found[f"vectors train {kind.name}"] = {name: f"--option {name}=" for name in kind().options}
    return found


@cache
def _arguments() -> list[ast.expr]:
    """What all errors in the package are made of."""
    files = sorted(Path(headway.__file__).parent.rglob("*.py"))
    nodes = (node for file in files for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))))
    calls = (node for node in nodes if isinstance(node, ast.Call) and node.args)
    return [call.args[0] for call in calls if _name(call.func).endswith("HeadwayError")]


def _name(node: ast.expr) -> str:
    return getattr(node, "id", getattr(node, "attr", ""))


def _messages(filled: str) -> Iterator[str]:
    """The messages of all errors in the package, with something in place of what they are filled with."""
    return (_text(argument, filled) for argument in _arguments())


def _text(node: ast.expr, filled: str) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part, filled) for part in node.values)
    if isinstance(node, ast.BinOp):
        return _text(node.left, filled) + _text(node.right, filled)
    return filled


def test_no_error_of_a_command_asks_for_an_argument_of_python() -> None:
    messages, commands = set(_messages("7")), _commands()
    assert len(messages) > 500
    changed = 0
    for path, options in commands.items():
        names = "|".join(name for name in options if "_" in name)
        bare = re.compile(rf"(?<!--option )(?<![-\w.('\"/])({names or '(?!)'})(?![\w.('\"/=])")
        for message in messages:
            said = in_options(message, options)
            changed += said != message
            about = said[said.rindex(" (") :] if said.endswith("has no such option)") else ""
            for name in re.findall(r"(?<= )[a-z_]+(?==['\"…\d])", said):
                known = f"{name}=" in about or message.startswith("--") or f"--option {name}=" in said
                assert known, f"headway {path}: {said}"
            assert message.startswith("--") or not bare.search(said), f"{path}: {said}"
    assert changed > 100


def test_what_messages_are_filled_with_stays() -> None:
    seven, typed, commands = list(_messages("7")), list(_messages("seed=3/x_y")), _commands()
    for path in ("bench", "compare", "inspect", "vectors train"):
        options = commands[path] if path in commands else commands["vectors train word2vec"]
        for plain, message in zip(seven, typed, strict=True):
            if re.search(r"\wseed=3|x_y\w", message):  # part of a word, such as a plural's s
                continue
            said = in_options(message, options, ["seed=3/x_y"])
            assert said.count("seed=3/x_y") == message.count("seed=3/x_y"), f"{path}: {said}"
            assert said.replace("seed=3/x_y", "7").replace("'", "") == in_options(plain, options).replace("'", "")


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("compare --seeds 0", "headway: --seeds is 0: give at least 1"),
        ("compare --lengths 1", "headway: --train-length is 128 and lengths are [1]"),
        ("vectors train fasttext text.txt --out w.safetensors --option min_n=4 --option max_n=2", "--option min_n"),
        ("bench --seconds -1", "headway: --seconds is -1"),
        ("inspect r/seed=3/none.gguf", "headway: r/seed=3/none.gguf does not exist"),
        ("inspect seed=3,b.txt", "there is no file seed=3,b.txt: give a text"),
        ("bench --encodings rope(base=1,rounds=2)", "headway: encoding 'rope(base=1,rounds=2)': got"),
        ("vectors similar limit=3/none.vec cat", "limit=3/none.vec"),
        ("vectors train word2vec window=3/no.txt --out w.safetensors", "headway: corpus window=3/no.txt cannot"),
        ("vectors train tf-idf text.txt --out z.safetensors --option norm=l9", "give 'l2', 'l1' or None"),
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


class Command:
    """As much of a command of click as its errors need."""

    params = ()

    def __init__(self, error: Exception, own: dict[str, str]) -> None:
        self.error, self.own, self.context = error, own, type("Context", (), {"params": {}})

    def invoke(self, context: object) -> None:
        with with_options(self.own):
            raise self.error


def test_a_message_is_changed_once() -> None:
    command = Command(HeadwayError("too few: give window=4 or dim=4"), {"window": "--option window="})
    with pytest.raises(HeadwayError) as raised:
        telling_options(command)(command.context)
    assert str(raised.value) == (
        "too few: give --option window=4 or dim=4 (dim= in Python: this command has no such option)"
    )


def test_other_errors_stay() -> None:
    command = Command(ZeroDivisionError(), OPTIONS)
    with pytest.raises(ZeroDivisionError):
        telling_options(command)(command.context)


def test_options_of_a_method_are_added_to_those_of_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fit(*_: object, **__: object) -> None:
        raise HeadwayError("give dim=4, window=3 or lengths=5")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(VECTORS["word2vec"], "fit", fit)
    Path("text.txt").write_text("one two three")
    assert cli.main(["vectors", "train", "word2vec", "text.txt", "--out", "w.safetensors", "--quiet"]) == 2
    assert capsys.readouterr().err == (
        "headway: give --dim 4, --option window=3 or lengths=5 (lengths= in Python: this command has no such option)\n"
    )
