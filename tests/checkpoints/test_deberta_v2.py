"""DeBERTa v2 and v3: what the layers share, rows of far distances, and the names that the authors gave the head."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from headway.checkpoints import load
from headway.checkpoints.deberta_v2 import V3
from headway.errors import HeadwayError
from headway.testing.checkpoints import CLOSE, distance, their_model

pytest.importorskip("transformers")


def pair(folder: Path, architecture: str = "DebertaV2Model", **config: Any) -> tuple[Any, Any]:
    """Theirs and ours."""
    theirs = their_model({**V3, "architectures": [architecture], **config})
    theirs.save_pretrained(folder)
    return theirs, load(folder)


def test_layers_share_the_table_and_its_norm_and_each_has_its_own_projections(tmp_path: Path) -> None:
    theirs, ours = pair(tmp_path, max_relative_positions=16)
    encodings, blocks = ours.stack.encodings, ours.stack.blocks
    assert len(encodings) == 3
    for encoding, block in zip(encodings, blocks, strict=True):
        assert encoding.table is encodings[0].table
        assert encoding.table_norm is encodings[0].table_norm
        assert encoding.key is block.attention.k_proj
        assert encoding.query is block.attention.q_proj
    assert ours.num_parameters == sum(parameter.numel() for parameter in theirs.parameters())


@torch.no_grad()
def test_the_buckets_are_those_of_the_published_sizes(tmp_path: Path) -> None:
    sizes = {"position_buckets": 256, "max_position_embeddings": 512, "num_hidden_layers": 1}
    theirs, ours = pair(tmp_path, **sizes)
    ids = torch.arange(512)[None] % 35 + 5
    assert distance(ours(ids), theirs(ids)[0]) <= CLOSE


@torch.no_grad()
def test_keys_far_ahead_count_as_the_farthest_that_training_has_met(tmp_path: Path) -> None:
    theirs, ours = pair(tmp_path, max_relative_positions=16)
    ids = torch.arange(24)[None] % 35 + 5
    assert distance(ours(ids), theirs(ids)[0]) > 100 * CLOSE
    rows = theirs.encoder.rel_embeddings.weight
    rows[0] = rows[1]
    assert distance(ours(ids), theirs(ids)[0]) <= CLOSE


def test_the_heads_of_a_published_file_are_left_out_of_the_bare_model(tmp_path: Path) -> None:
    pair(tmp_path, "DebertaV2ForMaskedLM", legacy=False)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    assert any(name.startswith("lm_predictions.lm_head.") for name in tensors)
    tensors["mask_predictions.classifier.weight"] = torch.zeros(1, 32)
    save_file(tensors, file)
    ids = torch.arange(5, 16)[None]
    assert load(tmp_path, architecture="DebertaV2Model")(ids).shape == (1, 11, 32)


@pytest.mark.parametrize(
    ("key", "value"),
    [("conv_kernel_size", 3), ("relative_attention", False), ("embedding_size", 16), ("attention_head_size", 4)],
)
def test_what_cannot_be_said_is_refused(tmp_path: Path, key: str, value: Any) -> None:
    pair(tmp_path)
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), key: value}))
    with pytest.raises(HeadwayError, match=f"the config's {key} is {value}"):
        load(tmp_path)
