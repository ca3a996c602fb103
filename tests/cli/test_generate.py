"""``headway generate`` on a small model with random weights, and on a published one where it is there."""

import io
import json
from pathlib import Path

import pytest

import headway
from headway.checkpoints.bert import BERT
from headway.cli import main
from headway.cli.generate import pieces
from headway.testing.checkpoints import their_model

pytest.importorskip("transformers")
FORM = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"


@pytest.fixture
def folder(gpt2_of_bytes: Path) -> Path:
    return gpt2_of_bytes


def test_it_goes_on_with_a_text(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", str(folder), "To be", "-n", "9"]) == 0
    written = capsys.readouterr().out
    model, words = headway.load(folder), headway.checkpoints.tokenizer(folder)
    new = headway.models.generate(model, [words.encode("To be").ids], max_new_tokens=9).ids[0]
    assert written == words.decode(new) + "\n"


def test_draws_are_those_of_the_seed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = []
    for seed in ("1", "1", "2"):
        main(["generate", str(folder), "To be", "-n", "20", "--temperature", "1.5", "--seed", seed])
        said.append(capsys.readouterr().out)
    assert said[0] == said[1] != said[2]


def test_characters_come_whole(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bytes of a character are several tokens; what is shown never ends within one."""
    words = headway.checkpoints.tokenizer(folder)
    steps = [headway.models.Step([one], [0.0]) for one in words.encode("aé注b").ids]
    monkeypatch.setattr(headway.models, "stream", lambda *_given, **_options: iter(steps))
    shown = pieces(headway.load(folder), words, [0], {})
    assert [piece for piece in shown if piece] == ["a", "é", "注", "b"]


def test_a_terminal_without_the_letters(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(written, encoding="ascii"))
    assert main(["generate", str(folder), "To be", "-n", "20", "--temperature", "2", "--seed", "3"]) == 0
    assert b"?" in written.getvalue()


def test_a_conversation(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": FORM}))
    assert main(["generate", str(tmp_path), "Why?", "--chat", "-n", "5"]) == 0
    one = capsys.readouterr().out
    monkeypatch.setattr("sys.stdin", io.StringIO("Why?\nHow?\n\nnever read"))
    assert main(["generate", str(tmp_path), "-n", "5"]) == 0
    out = capsys.readouterr().out
    assert "An empty line ends the conversation." in out
    assert one.strip() in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["Why?", "--chat"], "has no chat template: leave --chat out"),
        ([], "has no chat template: give a prompt"),
        (["Why?", "--dtype", "int8"], "no dtype 'int8': give one of float32, bfloat16"),
        (["Why?", "--top-p", "3"], "--top-p is 3.0"),
        (["Why?", "--temperature", "-1"], "temperature is -1.0"),
        ([""], "prompt"),
        (["caf\udce9"], "the prompt is not UTF-8"),
    ],
)
def test_what_cannot_be(folder: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", str(folder), *arguments]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1


def test_a_model_that_does_not_write(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    their_model({**BERT.examples[0], "vocab_size": 256}).save_pretrained(tmp_path)
    (tmp_path / "tokenizer.json").write_bytes((folder / "tokenizer.json").read_bytes())
    assert main(["generate", str(tmp_path), "x"]) == 2
    assert "is a BertForMaskedLM, which does not generate text" in capsys.readouterr().err
