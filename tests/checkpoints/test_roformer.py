"""RoFormer: pairs of neighbours at any length, and the table that files have and nobody reads."""

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


def test_their_table_of_sines_is_left_unread(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    from safetensors.torch import load_file, save_file

    their_model(CONFIG).save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    save_file(
        {**tensors, "roformer.encoder.embed_positions.weight": torch.zeros(64, 8)}, tmp_path / "model.safetensors"
    )
    ids = torch.randint(5, 40, (1, 20))
    assert not torch.allclose(load(tmp_path)(ids), load(tmp_path)(ids.flip(1)).flip(1))


@pytest.mark.parametrize(
    ("key", "value"), [("rotary_value", True), ("is_decoder", True), ("tie_word_embeddings", False)]
)
def test_what_it_cannot_say_is_refused(key: str, value: object) -> None:
    with pytest.raises(HeadwayError, match=f"config's {key} is {value!r}"):
        RoFormer().build(Config({**CONFIG, key: value}), head=True)
