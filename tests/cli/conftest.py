from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headway.cli import COMMANDS
from headway.cli._app import command_of


def commands() -> Iterator[tuple[tuple[str, ...], Any]]:
    """The words and the command of every command, with those below it."""
    for name, (module, _) in COMMANDS.items():
        command = command_of(name, module)
        yield (name,), command
        for below, one in getattr(command, "commands", {}).items():
            yield (name, below), one


@pytest.fixture(autouse=True)
def _plain_and_wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.fixture(scope="session")
def gpt2_of_bytes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a GPT-2 of single bytes."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    from headway.checkpoints.gpt2 import GPT2
    from headway.testing.checkpoints import their_model

    path = tmp_path_factory.mktemp("bytes")
    alphabet = {letter: number for number, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    words = Tokenizer(models.BPE(alphabet, []))
    words.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    words.decoder = decoders.ByteLevel()
    words.save(str(path / "tokenizer.json"))
    their_model({**GPT2.examples[0], "vocab_size": 256}).save_pretrained(path)
    return path
