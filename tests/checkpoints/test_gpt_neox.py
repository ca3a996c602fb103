"""GPT-NeoX's traps: buffers in older files, older names of the rotation, blocks of two kinds."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from headway.checkpoints import load
from headway.checkpoints._base import Config
from headway.checkpoints.gpt_neox import GPTNeoX
from headway.nn import Block, ParallelBlock
from headway.testing.checkpoints import their_model

pytest.importorskip("transformers")


def test_masks_in_older_files_are_read_by_nobody(tmp_path: Path) -> None:
    their_model(GPTNeoX.examples[0]).save_pretrained(tmp_path)
    ids = torch.arange(5, 12)[None]
    with torch.no_grad():
        expected = load(tmp_path)(ids)
        tensors = load_file(tmp_path / "model.safetensors")
        for layer in range(3):
            before = f"gpt_neox.layers.{layer}.attention."
            tensors[before + "bias"] = torch.ones(1, 1, 64, 64, dtype=torch.bool).tril()
            tensors[before + "masked_bias"] = torch.tensor(-1e9)
            tensors[before + "rotary_emb.inv_freq"] = torch.ones(1)
        save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
        assert torch.equal(load(tmp_path)(ids), expected)


@pytest.mark.parametrize(
    ("said", "width", "base"),
    [
        ({}, 2, 10000.0),
        ({"rotary_pct": 0.5, "rotary_emb_base": 500}, 4, 500.0),
        ({"rotary_pct": 0.5, "rope_parameters": {"rope_theta": 7.0, "partial_rotary_factor": 0.75}}, 6, 7.0),
    ],
)
def test_the_rotation_has_had_several_names(said: dict[str, Any], width: int, base: float) -> None:
    config = {key: value for key, value in GPTNeoX.examples[0].items() if not key.startswith("rotary")}
    model: Any = GPTNeoX().build(Config({**config, **said}), head=False)
    assert (model.stack.encodings[0].width, model.stack.encodings[0].base) == (width, base)


@pytest.mark.parametrize(("said", "kind"), [({}, ParallelBlock), ({"use_parallel_residual": False}, Block)])
def test_the_parts_stand_side_by_side_unless_the_config_says_otherwise(said: dict[str, Any], kind: type) -> None:
    model: Any = GPTNeoX().build(Config({**GPTNeoX.examples[0], **said}), head=False)
    assert [type(block) for block in model.stack.blocks] == [kind] * 3
