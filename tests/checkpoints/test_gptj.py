"""GPT-J's traps: buffers in its files, and a rotation that must be named."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from headway import HeadwayError
from headway.checkpoints import load
from headway.checkpoints._base import Config
from headway.checkpoints.gptj import GPTJ
from headway.testing.checkpoints import their_model

pytest.importorskip("transformers")


def test_masks_in_older_files_are_read_by_nobody(tmp_path: Path) -> None:
    their_model(GPTJ.examples[0]).save_pretrained(tmp_path)
    ids = torch.arange(5, 12)[None]
    with torch.no_grad():
        expected = load(tmp_path)(ids)
        tensors = load_file(tmp_path / "model.safetensors")
        for layer in range(3):
            tensors[f"transformer.h.{layer}.attn.bias"] = torch.ones(1, 1, 64, 64).tril()
            tensors[f"transformer.h.{layer}.attn.masked_bias"] = torch.tensor(-1e9)
        save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
        assert torch.equal(load(tmp_path)(ids), expected)


def test_neighbours_are_turned_and_not_halves(tmp_path: Path) -> None:
    with torch.device("meta"):
        model = GPTJ().build(Config(GPTJ.examples[0]), head=True)
    assert (model.stack.encodings[0].layout, model.stack.encodings[0].width) == ("interleaved", 4)  # type: ignore


def test_an_odd_number_of_features_cannot_be_turned() -> None:
    with pytest.raises(HeadwayError, match="rotary_dim is 5"):
        GPTJ().build(Config({**GPTJ.examples[0], "rotary_dim": 5}), head=True)
