"""``headway extend`` on a small model with random weights."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import headway
from headway.cli import main
from headway.study import extension
from headway.testing.checkpoints import their_model

transformers = pytest.importorskip("transformers")
WINDOW = 16
LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 256,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": WINDOW,
}
GPT2: dict[str, Any] = {
    "architectures": ["GPT2LMHeadModel"],
    "model_type": "gpt2",
    "vocab_size": 256,
    "n_embd": 32,
    "n_layer": 1,
    "n_head": 2,
    "n_positions": WINDOW,
}


def a_folder(path: Path, config: dict[str, Any], begin: bool = False) -> Path:
    """A model of single bytes; ``begin`` puts a token before each text, as Llama's tokenizer does."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

    alphabet = {letter: number for number, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    words = Tokenizer(models.BPE(alphabet, []))
    words.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    words.decoder = decoders.ByteLevel()
    if begin:
        words.post_processor = processors.TemplateProcessing(single=["!", "$A"], special_tokens=[("!", alphabet["!"])])
    path.mkdir()
    words.save(str(path / "tokenizer.json"))
    their_model(config).save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return a_folder(tmp_path_factory.mktemp("models") / "tiny", LLAMA)


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("To be, or not to be, that is the question: " * 5)
    return path


def test_before_and_after(folder: Path, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["extend", str(folder), "--method", "yarn", "--factor", "4", "--text", str(text), "--windows", "2"]
    assert main([*given, "--out", str(tmp_path / "out")]) == 0
    said = capsys.readouterr().out
    rows = [json.loads(line) for line in (tmp_path / "out" / "results.jsonl").read_text().splitlines()]
    assert [(row["method"], row["window"]) for row in rows] == [
        (method, window) for method in ("none", "restarted", "yarn") for window in (0, 1)
    ]
    assert rows[-1]["encodings"] == ["yarn(factor=4.0, layout='half')"]
    titles, *lines = (line.split() for line in said.splitlines() if line.startswith((" method", " none", " yarn")))
    assert titles == ["method", "0–7", "8–15", "16–31", "32–63", "seconds"]
    assert [line[0] for line in lines] == ["none", "yarn"]
    report = (tmp_path / "out" / "extension.md").read_text()
    assert "tiny (float32), trained for 16 tokens; factor 4; no training." in report
    assert "text.txt: 2 windows of 64 tokens" in report
    assert (tmp_path / "out" / "extension.png").stat().st_size > 10_000
    assert "restarted" in said


def test_all_methods_and_going_on(folder: Path, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["extend", str(folder), "--factor", "2", "--text", str(text), "--out", str(tmp_path / "out")]
    assert main(given) == 0
    first = (tmp_path / "out" / "results.jsonl").read_text()
    assert len(first.splitlines()) == len(extension.METHODS) + 1
    assert main(given) == 0
    assert (tmp_path / "out" / "results.jsonl").read_text() == first
    assert main([*given, "--dtype", "bfloat16"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_stopped_run_says_how_to_go_on(
    folder: Path, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stopped(*_given: object, **_options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(extension, "losses", stopped)
    assert main(["extend", str(folder), "--text", str(text), "--factor", "2", "--out", str(tmp_path / "o")]) == 130
    assert "the same command resumes from" in capsys.readouterr().err


def test_the_extended_model_is_saved(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With all that conversations need."""
    folder, out = Path(shutil.copytree(folder, tmp_path / "near")), tmp_path / "far"
    for name, held in (
        ("chat_template.jinja", "{{ bos_token }}{{ messages[0].content }}"),
        ("additional_chat_templates/rag.jinja", "rag"),
        ("tokenizer_config.json", '{"tokenizer_class": "PreTrainedTokenizerFast"}'),
        ("special_tokens_map.json", '{"bos_token": "!"}'),
        ("generation_config.json", '{"eos_token_id": [1, 2]}'),
    ):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(held)
    assert main(["extend", str(folder), "--method", "yarn", "--factor", "4", "--save", str(out)]) == 0
    assert str(out) in capsys.readouterr().out
    ids = torch.arange(60)[None]
    theirs = transformers.AutoModelForCausalLM.from_pretrained(out)
    assert theirs.config.max_position_embeddings == 64
    torch.testing.assert_close(theirs(ids).logits, headway.load(out)(ids), rtol=1e-4, atol=1e-4)
    assert (headway.load(out)(ids) - headway.load(folder)(ids)).abs().max() > 0.01
    assert headway.checkpoints.tokenizer(out).encode("To be").ids
    asked = [{"role": "user", "content": "Why?"}]
    assert headway.checkpoints.conversation(out, asked) == "!Why?"
    assert headway.checkpoints.conversation(out, asked, template="rag") == "rag"
    assert headway.checkpoints.stop_ids(out) == [1, 2]


def test_measured_and_saved(folder: Path, text: Path, tmp_path: Path) -> None:
    given = ["extend", str(folder), "--method", "ntk", "--factor", "2", "--text", str(text)]
    assert main([*given, "--out", str(tmp_path / "o"), "--save", str(tmp_path / "far")]) == 0
    assert (tmp_path / "o" / "extension.md").exists()
    headway.load(tmp_path / "far")


def test_a_save_that_was_killed_is_repeated(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["extend", str(folder), "--method", "ntk", "--factor", "2", "--save", str(tmp_path / "far")]

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("headway.checkpoints._conversation.write_texts", killed)
        assert main(given) == 130
    assert not (tmp_path / "far").exists()
    assert main(given) == 0
    assert sorted(file.name for file in tmp_path.iterdir()) == ["far"]


def test_each_window_begins_as_a_text_does(tmp_path: Path, text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = a_folder(tmp_path / "begun", LLAMA, begin=True)
    seen = []
    real = extension.losses
    monkeypatch.setattr(
        extension,
        "losses",
        lambda model, tokens, *rest, **more: seen.append(tokens) or real(model, tokens, *rest, **more),
    )
    given = ["extend", str(begun), "--method", "none", "--factor", "2", "--text", str(text), "--windows", "2"]
    assert main([*given, "--out", str(tmp_path / "o")]) == 0
    words = headway.checkpoints.tokenizer(begun)
    spelled = [words.decode(one.tolist()) for one in seen[:2]]
    whole = text.read_text()
    assert spelled == ["!" + whole[:32], "!" + whole[32:64]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--text", "missing.txt"], "missing.txt cannot be read (No such file or directory)"),
        (["--text", "."], "cannot be read (Is a directory)"),
        (["--text", "bytes"], "bytes cannot be read (line 1: byte"),
        (["--text", "short"], "the text has 6 tokens but a window takes 65"),
        (["--factor", "1", "--text", "short"], "factor is 1.0: give a number above 1"),
        (["--method", "yam", "--text", "short"],
         "no method 'yam': did you mean 'dynamic' or 'yarn'?"),
        (["--method", "yarn,ntk", "--save", "far"], "--save saves one model and there are 2 methods"),
        ([], "nothing to do: give --text to measure on, or --save"),
        (["--dtype", "int8", "--text", "short"], "no dtype 'int8': give one of float32, bfloat16"),
        (["--window", "3", "--text", "short"], "window is 3"),
        (["--method", ",", "--text", "short"], "no method ''"),
        (["--device", "abacus", "--text", "short"], "no device 'abacus': give one of auto, cpu, cuda, mps"),
    ],
)  # fmt: skip
def test_what_cannot_be(
    folder: Path,
    tmp_path: Path,
    arguments: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("bytes").write_bytes(b"\xff\xfe\xfd")
    Path("short").write_text("To be.")
    assert main(["extend", str(folder), *arguments]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1
    assert not Path("headway-extend").exists()


def test_gpt2_has_nothing_to_rescale(
    tmp_path: Path, text: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["extend", str(a_folder(tmp_path / "gpt2", GPT2)), "--text", str(text)]) == 2
    assert "the model has learned: there is nothing to rescale, give one with RoPE" in capsys.readouterr().err
    assert not Path("headway-extend").exists()
