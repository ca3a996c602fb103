"""Ids on the Hugging Face hub, from the cache of the package, in every place that takes a model's folder."""

from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

import headway as hw
from headway import checkpoints
from headway.cli import COMMANDS, main
from headway.study.word_vectors import PUBLISHED, Protocol, make
from headway.testing.checkpoints import their_model

pytest.importorskip("huggingface_hub")
pytest.importorskip("transformers")

DECODER, ENCODER = "owner/tiny-gpt2", "owner/tiny-bert@main"
QUESTION = [{"role": "user", "content": "a"}]
LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 256,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "max_position_embeddings": 16,
}
BERT: dict[str, Any] = {
    "architectures": ["BertModel"],
    "model_type": "bert",
    "vocab_size": 8,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "max_position_embeddings": 64,
}

FUNCTIONS: dict[str, Callable[[], Any]] = {
    "load": lambda: hw.load(DECODER),
    "load with dtype": lambda: checkpoints.load(ENCODER, dtype=torch.bfloat16),
    "tokenizer": lambda: checkpoints.tokenizer(DECODER).encode("a").ids,
    "tokenizer of words": lambda: checkpoints.tokenizer(ENCODER).encode("cat").ids,
    "conversation": lambda: checkpoints.conversation(DECODER, QUESTION),
    "stop_ids": lambda: checkpoints.stop_ids(DECODER)[0],
    "vectors.load": lambda: hw.vectors.load(ENCODER).encode("cat").sum(),
    "Bert": lambda: hw.vectors.Bert(path=ENCODER).encode("cat").sum(),
    "Bert.read": lambda: hw.vectors.Bert.read(ENCODER).encode("cat").sum(),
    "study.word_vectors": lambda: make(PUBLISHED, Protocol(encoder=ENCODER), 0).encode("cat").sum(),
}
"""Functions that take a model, with an id on the hub; each returns something that is true."""

TINY = (
    "--encodings none --baselines none --train-length 8 --lengths 8 --layers 1 --width 16 --heads 2 --steps 2 --seeds 1"
)

ARGUMENTS: dict[tuple[str, str], list[str] | None] = {
    ("generate", "model"): [DECODER, "a", "-n", "2"],
    ("extend", "model"): [DECODER, "--text", "{text}", "--method", "linear", "--factor", "2", "--out", "{out}"],
    ("compare", "tokenizer"): [
        "{text}",
        "--tokenizer",
        DECODER,
        *TINY.split(),
        "--recall-steps",
        "0",
        "--out",
        "{out}",
    ],
    ("inspect", "model"): [DECODER, "the value of a class", "--roles", "sink"],
    ("vectors similar", "file"): None,
    ("vectors analogy", "file"): None,
    ("vectors encode", "file"): [ENCODER, "cat"],
    ("vectors evaluate", "file"): None,
    ("vectors convert", "file"): None,
    ("vectors map", "file"): None,
    ("vectors compare", "encoder"): None,
}
"""Parameters of commands that take a model, with a command line. None of those that need a fitted BERT, which load it
by the same function, and of the comparison, which takes minutes."""


@pytest.fixture
def cached(hub_cache: Callable[..., Path], tmp_path: Path, gpt2_of_bytes: Path) -> None:
    folder = tmp_path / "decoder"
    their_model(LLAMA).save_pretrained(folder)
    (folder / "tokenizer.json").write_bytes((gpt2_of_bytes / "tokenizer.json").read_bytes())
    (folder / "chat_template.jinja").write_text("{{ messages[0].content }}")
    (folder / "generation_config.json").write_text('{"eos_token_id": 3}')
    hub_cache("owner/tiny-gpt2", folder)
    folder = tmp_path / "encoder"
    their_model(BERT).save_pretrained(folder)
    (folder / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nthe\ncat\nsat\n")
    hub_cache("owner/tiny-bert", folder)
    torch.manual_seed(0)


@pytest.mark.one_in(1)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_every_function_takes_an_id(cached: None, function: str) -> None:
    assert FUNCTIONS[function]()


@pytest.mark.one_in(1)
@pytest.mark.parametrize("command", [command for command, given in ARGUMENTS.items() if given], ids=" ".join)
def test_every_command_takes_an_id(
    cached: None, tmp_path: Path, capsys: pytest.CaptureFixture[str], command: tuple[str, str]
) -> None:
    text = tmp_path / "text.txt"
    text.write_text("the cat sat on the mat. " * 20)
    given = [word.format(text=text, out=tmp_path / "out") for word in ARGUMENTS[command] or ()]
    assert main([*command[0].split(), *given]) == 0
    assert capsys.readouterr().out


def parameters() -> Iterator[tuple[str, Any]]:
    """(command, parameter) of every command and those within it."""
    import typer

    for name, (module, _) in COMMANDS.items():
        app = run = import_module(module).run
        if not isinstance(run, typer.Typer):
            app = typer.Typer()
            app.command(name)(run)
        command = typer.main.get_command(app)
        for inner, one in getattr(command, "commands", {"": command}).items():
            yield from ((f"{name} {inner}".strip(), parameter) for parameter in one.params)


def test_every_parameter_that_takes_a_model_is_in_the_table() -> None:
    found = {
        (command, parameter.name)
        for command, parameter in parameters()
        if any(word in (getattr(parameter, "help", "") or "") for word in ("Hugging Face", "config.json", "encoder"))
    }
    assert found == set(ARGUMENTS)


def test_a_word_with_a_slash_is_a_model_and_not_a_text(cached: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "owner/nothing"]) == 2
    assert "owner/nothing is neither a file or folder here nor in the cache" in capsys.readouterr().err
