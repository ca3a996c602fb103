"""RoFormer: pairs of neighbours at any length, and the table that files have, which has to be that of the sines."""

import math
from pathlib import Path

import pytest
import torch

from headway import HeadwayError, load
from headway.checkpoints import Config
from headway.checkpoints.roformer import RoFormer
from headway.testing.checkpoints import CLOSE, distance, their_model

CONFIG = RoFormer.examples[0]


@torch.no_grad()
def test_all_positions_of_their_table_turn_alike(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    theirs = their_model({**CONFIG, "max_position_embeddings": 300})
    theirs.save_pretrained(tmp_path)
    model, ids = load(tmp_path), torch.randint(5, 40, (1, 300))
    assert distance(model(ids), theirs(ids).logits) <= CLOSE
    assert model(ids.repeat(1, 2)).shape == (1, 600, 40)  # and there is no end


@pytest.mark.parametrize("table", ["theirs", "zeros"])
def test_another_table_of_sines_is_refused(table: str, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    from safetensors.torch import load_file, save_file

    their_model(CONFIG).save_pretrained(tmp_path)
    tensors, name = load_file(tmp_path / "model.safetensors"), "roformer.encoder.embed_positions.weight"
    angles = [[p / 10000 ** (c / 8) for c in range(0, 8, 2)] for p in range(64)]
    sines = torch.tensor([[*map(math.sin, row), *map(math.cos, row)] for row in angles])
    save_file({**tensors, name: sines * (table == "theirs")}, tmp_path / "model.safetensors")
    if table == "theirs":
        load(tmp_path)
    else:
        with pytest.raises(HeadwayError, match=f"{name} is not the sines and cosines that headway computes.*: run"):
            load(tmp_path)


@pytest.mark.parametrize(
    ("key", "value"), [("rotary_value", True), ("is_decoder", True), ("tie_word_embeddings", False)]
)
def test_what_it_cannot_say_is_refused(key: str, value: object) -> None:
    with pytest.raises(HeadwayError, match=f"config's {key} is {value!r}"):
        RoFormer().build(Config({**CONFIG, key: value}), head=True)
