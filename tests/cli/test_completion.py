"""Completion knows every command, option and name, and does not import torch for it."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from headway import cli
from headway.cli import _completion
from headway.cli._app import command_of
from headway.inspection import ROLES, STATISTICS
from headway.positions import ENCODINGS
from headway.study.extension import METHODS
from headway.vectors import VECTORS


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def _asked(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWAY_CACHE", str(cache))
    monkeypatch.setenv(_completion.COMPLETING, "complete_bash")


def ask(typed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMP_WORDS", f"headway {typed}")
    monkeypatch.setenv("COMP_CWORD", str(len(typed.split(" "))))


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("enc", {"encodings"}),
        ("vectors si", {"similar"}),
        ("encodings ", {*ENCODINGS}),
        ("encodings rope --ou", {"--out"}),
        ("bench --encodings ro", {name for name in ENCODINGS if name.startswith("ro")}),
        ("compare --encodings alibi,sha", {"alibi,shaw", "alibi,shape"}),
        ("vectors train ", {*VECTORS}),
        ("vectors compare --methods ", {*VECTORS}),
        ("inspect --roles ", {*ROLES}),
        ("inspect --statistics ", {*STATISTICS}),
        ("extend --method ", {*METHODS}),
        ("generate --device c", {"cpu", "cuda"}),
        ("new-encoding mine --kind ", {"bias", "rotary", "gate"}),
    ],
)
def test_names_complete(
    typed: str, expected: set[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ask(typed, monkeypatch)
    with pytest.raises(SystemExit) as done:
        cli.main()
    assert done.value.code == 0
    assert set(capsys.readouterr().out.split()) == expected


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_what_is_kept_of_a_command_completes_as_the_command_itself(name: str) -> None:
    found = _completion.facts_of(command_of(name, cli.COMMANDS[name][0]))
    assert _completion.facts(cli.COMMANDS)[name] == found
    assert _completion.facts_of(_completion.command_from(name, found)) == found


def test_torch_is_not_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    _completion.facts(cli.COMMANDS)
    ask("encodings rop", monkeypatch)
    code = """
import sys
from headway.cli import main
try:
    main()
finally:
    print("torch" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["rope", "rope-pp", "False"]


@pytest.mark.parametrize("kept", ["", "{", "[]", '{"state": "of other sources", "commands": {}}'])
def test_a_cache_that_does_not_fit_is_made_anew(kept: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def made(*_: Any, env: dict[str, str], **__: Any) -> Any:
        assert _completion.COMPLETING not in env
        return subprocess.CompletedProcess((), 0, stdout='{"new": {}}')

    monkeypatch.setattr(subprocess, "run", made)
    monkeypatch.setenv("HEADWAY_CACHE", str(tmp_path))
    place = _completion.cached()
    place.write_text(kept, encoding="utf-8")
    assert _completion.facts(cli.COMMANDS) == {"new": {}}
    assert json.loads(place.read_text(encoding="utf-8"))["commands"] == {"new": {}}
    assert os.listdir(place.parent) == [place.name]


def test_without_a_place_for_the_cache_names_complete_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("HEADWAY_CACHE", str(tmp_path / "file"))
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: subprocess.CompletedProcess((), 0, stdout='{"new": {}}'))
    assert _completion.facts(cli.COMMANDS) == {"new": {}}
