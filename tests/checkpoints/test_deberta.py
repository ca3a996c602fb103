"""DeBERTa, the first: a matrix that is three, by heads, and biases apart."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from headway.checkpoints import load
from headway.checkpoints.deberta import V1
from headway.testing.checkpoints import their_model

pytest.importorskip("transformers")


def test_each_head_has_its_query_key_and_value_together(tmp_path: Path) -> None:
    their_model({**V1, "architectures": ["DebertaModel"]}).save_pretrained(tmp_path)
    theirs, ours = load_file(tmp_path / "model.safetensors"), load(tmp_path)
    attention, before = ours.stack.blocks[1].attention, "encoder.layer.1.attention.self."
    fused = theirs[before + "in_proj.weight"]  # [4 heads · (query, key, value) · 8, 32]
    torch.testing.assert_close(attention.k_proj.weight[16:24], fused[2 * 24 + 8 : 2 * 24 + 16], rtol=0, atol=0)
    torch.testing.assert_close(attention.v_proj.bias, theirs[before + "v_bias"], rtol=0, atol=0)
    assert attention.k_proj.bias is None
