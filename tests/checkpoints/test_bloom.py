"""BLOOM's traps: older names of its sizes, files without a prefix, and what it cannot be."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from headway import HeadwayError
from headway.checkpoints import load
from headway.checkpoints._base import Config
from headway.checkpoints.bloom import BLOOM
from headway.testing.checkpoints import their_model

pytest.importorskip("transformers")


def test_older_folders_have_other_names_of_sizes_and_none_before_tensors(tmp_path: Path) -> None:
    their_model(BLOOM.examples[0]).save_pretrained(tmp_path)
    ids = torch.arange(5, 12)[None]
    with torch.no_grad():
        expected = load(tmp_path)(ids)
        config = json.loads((tmp_path / "config.json").read_text())
        for before, after in (("hidden_size", "n_embed"), ("n_head", "num_attention_heads")):
            config[after] = config.pop(before)
        (tmp_path / "config.json").write_text(json.dumps(config))
        tensors = load_file(tmp_path / "model.safetensors")
        bare = {name.removeprefix("transformer."): tensor for name, tensor in tensors.items()}
        save_file(bare, tmp_path / "model.safetensors", metadata={"format": "pt"})
        assert torch.equal(load(tmp_path)(ids), expected)


def test_a_residual_from_behind_the_norm_is_refused() -> None:
    said: dict[str, Any] = {**BLOOM.examples[0], "apply_residual_connection_post_layernorm": True}
    with pytest.raises(HeadwayError, match="apply_residual_connection_post_layernorm is True"):
        BLOOM().build(Config(said), head=True)
