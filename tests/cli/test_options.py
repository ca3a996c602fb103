"""Options that several commands share mean the same in each: --json, --quiet, --out, --device."""

import json
import re
import runpy
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from headway import cli
from headway.bench import QUICK, verify
from headway.vectors import Word2Vec

from .conftest import commands

ALL = {" ".join(words): command for words, command in commands() if not hasattr(command, "commands")}
KEYS = ["command", "version", "rows", "notes", "files"]
SMALL = "--train-length 16 --lengths 16,32 --layers 1 --width 16 --heads 2 --steps 2 --batch 2 --baselines none"

RUNS: dict[str, str] = {
    "bench": "--quick --encodings none --lengths 128 --dims 64 --dtypes float32 --masks none --parts attention "
    "--only forward --seconds 0 --rounds 1 --out {out}",
    "compare": f"{{text}} --encodings rope --quick {SMALL} --out {{out}}",
    "encodings": "",
    "extend": "{llama} --text {text} --method yarn --factor 2 --out {out}",
    "inspect": "{gpt2} --roles positional",
    "plan": "--tokens 32k --heads 8 --head-dim 64 --ranks 4 --flops h100",
    "vectors compare": "{text} --methods one-hot --min-count 1 --dim 4 --steps 1 --words the --out {out}",
    "vectors similar": "{vectors} the of",
    "vectors analogy": "{vectors} the of and",
    "vectors encode": "{vectors} 'the of'",
    "vectors evaluate": "{vectors} --pairs {pairs}",
}
"""A short run of each command that has --json."""

PLACES: dict[str, tuple[str, str]] = {
    "bench": ("folder", "--only forward"),
    "compare": ("folder", "--encodings rope"),
    "encodings": ("file", "rope"),
    "extend": ("folder", "nowhere --text {text}"),
    "inspect": ("folder", "nowhere"),
    "new-encoding": ("folder", "my-bias"),
    "vectors compare": ("folder", "{text}"),
    "vectors train": ("file", "one-hot {text}"),
    "vectors encode": ("file", "{vectors} the"),
}
"""What --out is in each command that has it, and arguments that are valid."""


def names_of(command: Any) -> set[str]:
    return {name for parameter in command.params for name in parameter.opts}


@pytest.fixture(scope="module")
def things(tmp_path_factory: pytest.TempPathFactory, gpt2_of_bytes: Path) -> dict[str, Path]:
    """Texts, models and vectors that runs need."""
    from headway.testing.checkpoints import their_model

    folder = tmp_path_factory.mktemp("things")
    words = ["the", "of", "and", "to", "in"]
    text = "\n\n".join(" ".join(words[(i * i + 3 * j) % 5] for i in range(40)) for j in range(40))
    (folder / "text.txt").write_text(text)
    (folder / "pairs.tsv").write_text("the\tof\t9\nthe\tand\t2\nof\tto\t1\nthe\tunheard\t5\n")
    Word2Vec(dim=4, min_count=1, epochs=1).fit(text.split("\n\n")).save(folder / "words.safetensors")
    llama = folder / "llama"
    llama.mkdir()
    (llama / "tokenizer.json").write_bytes((gpt2_of_bytes / "tokenizer.json").read_bytes())
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 256, "hidden_size": 16}
    config |= {"num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16, "max_position_embeddings": 8}
    their_model(config).save_pretrained(llama)
    return {
        "text": folder / "text.txt",
        "pairs": folder / "pairs.tsv",
        "vectors": folder / "words.safetensors",
        "llama": llama,
        "gpt2": gpt2_of_bytes,
    }


@pytest.fixture(autouse=True)
def _a_short_bench(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without FlexAttention, whose compilation takes longest, and with one case to verify before it measures."""
    monkeypatch.setattr("headway.cli.bench.QUICK", replace(QUICK, flex_seconds=0.0))
    monkeypatch.setattr(verify, "term_names", lambda: ["none"])
    monkeypatch.setattr(verify, "mask_names", lambda: ["causal"])


def arguments(words: str, given: str, things: dict[str, Path], out: Path | str = "") -> list[str]:
    return [*words.split(), *(part.format(**things, out=out) for part in shlex.split(given))]


def test_every_table_can_be_printed_as_json() -> None:
    without = {"generate", "new-encoding", "vectors train", "vectors convert", "doctor", "vectors map", "tune"}
    assert {words for words, command in ALL.items() if "--json" in names_of(command)} >= set(RUNS)
    assert set(ALL) - set(RUNS) <= without


@pytest.mark.parametrize("words", RUNS)
def test_json_is_one_object_and_nothing_else(
    words: str, things: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [*arguments(words, RUNS[words], things, tmp_path / "out"), "--json"]
    assert cli.main(given) == 0, capsys.readouterr().err
    out = capsys.readouterr().out
    found = json.loads(out, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert list(found) == KEYS
    assert found["command"] == words
    assert found["rows"]
    assert len({tuple(row) for row in found["rows"] if words != "vectors compare"}) <= 1
    for path in found["files"]:
        assert Path(path).exists()
    if "--quiet" in names_of(ALL[words]):
        assert cli.main([*given, "--quiet"]) == 0
        again, errors = capsys.readouterr()
        assert list(json.loads(again)) == KEYS
        assert errors == ""


QUIET = [words for words, command in ALL.items() if "--quiet" in names_of(command) and words != "tune"]
"""The test of tune is in tests/tuning, since it takes minutes by itself."""


@pytest.mark.parametrize("words", QUIET)
def test_quiet_prints_no_progress(
    words: str, things: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = {**RUNS, "vectors train": "one-hot {text} --out {out}"}[words]
    assert cli.main([*arguments(words, given, things, tmp_path / "out.safetensors"), "--quiet"]) == 0
    out, errors = capsys.readouterr()
    assert errors == ""
    assert not re.search(r"^ *\d+ %  ", out, re.MULTILINE)
    assert "fixed before any result" not in out
    assert out.strip()


@pytest.mark.parametrize("words", [words for words, command in ALL.items() if "--out" in names_of(command)])
def test_out_is_checked_before_any_work(
    words: str,
    things: dict[str, Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if words not in PLACES:
        pytest.skip("a command that another test covers")
    monkeypatch.chdir(tmp_path)
    kind, given = PLACES[words]
    out = next(parameter for parameter in ALL[words].params if "--out" in parameter.opts)
    assert ("folder" if kind == "folder" else "file") in out.help.lower()
    mine = tmp_path / "mine.txt"
    mine.write_text("mine")
    taken = {"folder": [mine, mine / "below"], "file": [tmp_path, tmp_path / "none" / "a.npy"]}[kind]
    for place in taken:
        assert cli.main([*arguments(words, given, things), "--out", str(place)]) == 2
        printed, errors = capsys.readouterr()
        assert errors.count("\n") == 1
        assert str(place) in errors
        assert "give " in errors
        assert printed == ""
        assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
    assert mine.read_text() == "mine"


def test_a_folder_for_results_says_that_the_command_resumes() -> None:
    for words in PLACES:
        out = next(parameter for parameter in ALL[words].params if "--out" in parameter.opts)
        resumes = words in ("bench", "compare", "extend", "vectors compare")
        assert ("the same command resumes from it" in out.help) == resumes
        assert resumes or "replaced" in out.help


@pytest.mark.parametrize("words", [words for words, command in ALL.items() if "--device" in names_of(command)])
def test_a_device_that_is_not_there_is_said_first(
    words: str,
    things: dict[str, Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(torch.version, "hip", None)
    given = {**RUNS, "generate": "{gpt2} A", "tune": ""}[words]
    assert cli.main([*arguments(words, given, things, tmp_path / "out"), "--device", "cuda"]) == 2
    out, errors = capsys.readouterr()
    assert "has no CUDA: give cpu, or install a torch with CUDA" in errors
    assert errors.count("\n") == 1
    assert out == ""
    assert list(tmp_path.iterdir()) == []


def test_quick_results_say_so_and_are_kept_apart(
    things: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in ("compare", "extend", "vectors compare"):
        out = tmp_path / words
        given = arguments(words, RUNS[words].replace("--quick ", ""), things, out)
        assert cli.main([*given, "--quick"]) == 0
        assert "quick" in capsys.readouterr().out.lower()
        report = next(path for path in out.iterdir() if path.suffix in (".html", ".md"))
        assert "quick" in report.read_text(encoding="utf-8").lower()
        assert cli.main(given) == 2
        assert "quick = true" in capsys.readouterr().err


def test_the_version_is_one_line_and_the_package_runs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cli.main(["--version"]) == 0
    said = capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", ["headway", "--version"])
    with pytest.raises(SystemExit) as done:
        runpy.run_module("headway", run_name="__main__")
    assert done.value.code == 0
    assert capsys.readouterr().out == said
    assert said.startswith(f"headway {__import__('headway').__version__}, torch {torch.__version__}, Python 3.")
    assert said.count("\n") == 1


@pytest.mark.slow
def test_commands_are_imported_when_they_are_called() -> None:
    code = "from headway import cli; cli.main(['--help']); import sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "headway.cli._app" in loaded
    assert not loaded & {module for module, _ in cli.COMMANDS.values()}
    assert not loaded & {"headway.study", "headway.bench", "headway.checkpoints", "matplotlib"}


@pytest.mark.parametrize("path", ["vectors simlar", "encoding", "vectors"])
def test_an_unknown_command_gets_the_nearest(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    code = cli.main(path.split())
    out, errors = capsys.readouterr()
    if path == "vectors":
        assert (code, errors) == (0, "")
        assert "similar" in out
        return
    assert code == 2
    assert f"there is no command '{path.split()[-1]}': did you mean '" in errors
    assert errors.count("\n") == 1
