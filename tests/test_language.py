"""The language of commands: one table, which has every sentence that the sources say, and no other."""

from __future__ import annotations

import ast
from pathlib import Path
from string import Formatter

import pytest

import headway
from headway._common._chinese import CHINESE
from headway._common.language import of_environment, said, speaking
from headway.cli import main

SOURCES = Path(headway.__file__).parent
SAID_BY_NAME = {"Chinese", "English", "chinese", "english"}
"""Names of languages, which are values."""


def strings(node: ast.AST) -> set[str]:
    return {one.value for one in ast.walk(node) if isinstance(one, ast.Constant) and isinstance(one.value, str)}


def sentences(path: Path) -> set[str]:
    """The first arguments of ``said`` in a file, and the strings that ``map(said, …)`` goes through."""
    found: set[str] = set()
    assigned: dict[str, set[str]] = {}
    calls = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Assign) and isinstance(node.value, (ast.Constant, ast.IfExp)):
            for name in node.targets:
                assigned.setdefault(getattr(name, "id", ""), set()).update(strings(node.value))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            if node.func.id == "said":
                calls.append(node.args[0])
            if node.func.id == "map" and isinstance(node.args[0], ast.Name) and node.args[0].id == "said":
                found |= strings(node.args[1])
    for asked in calls:
        if isinstance(asked, ast.Constant):
            found.add(str(asked.value))
        elif isinstance(asked, ast.IfExp):
            found |= strings(asked.body) | strings(asked.orelse)
        elif isinstance(asked, ast.Name):
            found |= assigned.get(asked.id, set())
    return found


def fields(sentence: str) -> set[str | None]:
    return {name for _, name, _, _ in Formatter().parse(sentence) if name}


def test_the_table_has_every_sentence_and_no_other() -> None:
    spoken: set[str] = set().union(*(sentences(path) for path in SOURCES.rglob("*.py")))
    assert spoken | SAID_BY_NAME == set(CHINESE)
    assert all(fields(english) == fields(chinese) for english, chinese in CHINESE.items())


def test_a_sentence_is_said_in_the_chosen_language() -> None:
    assert said("head {head}", head=3) == "head 3"
    with speaking("zh"):
        assert said("head {head}", head=3) == "头 3"
        assert said("a name without a translation") == "a name without a translation"
    assert said("head {head}", head=3) == "head 3"


@pytest.mark.parametrize(
    ("names", "language"),
    [
        ({"LANG": "zh_CN.UTF-8"}, "zh"),
        ({"LANG": "C.UTF-8"}, "en"),
        ({"LANG": "zh_CN.UTF-8", "LC_ALL": "de_DE.UTF-8"}, "en"),
        ({"LANG": "", "LC_MESSAGES": "zh_TW"}, "zh"),
        ({}, "en"),
    ],
)
def test_the_environment_chooses(monkeypatch: pytest.MonkeyPatch, names: dict[str, str], language: str) -> None:
    for name in ("LC_ALL", "LC_MESSAGES", "LANG"):
        monkeypatch.delenv(name, raising=False)
    for name, value in names.items():
        monkeypatch.setenv(name, value)
    assert of_environment() == language


def test_commands_speak_by_option_and_by_environment(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["inspect", "小猫吃苹果。", "--roles", "broad"]
    monkeypatch.delenv("LC_ALL", raising=False)
    monkeypatch.setenv("LANG", "C.UTF-8")
    assert main(["--language", "zh", *asked]) == 0
    assert "中文小模型：角色由" in capsys.readouterr().out
    assert main(asked) == 0
    assert "small chinese model: roles measured on" in capsys.readouterr().out
    monkeypatch.setenv("LANG", "zh_CN.UTF-8")
    assert main(asked) == 0
    assert "中文小模型" in capsys.readouterr().out
    assert main([*asked, "--json"]) == 0
    assert "roles measured on 400 planted sentences in Chinese" in capsys.readouterr().out
    assert main(["--language", "latin", *asked]) == 2
    assert "latin" in capsys.readouterr().err
    assert main([*asked, "--language", "zh"]) == 2
    assert "headway --language zh inspect" in capsys.readouterr().err
