"""OPT's traps: two rows of positions that nobody reads, and embeddings narrower than the model."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from headway import HeadwayError
from headway.checkpoints import load, save
from headway.checkpoints._base import Config
from headway.checkpoints.opt import OPT
from headway.testing.checkpoints import their_model

pytest.importorskip("transformers")

TABLE = "model.decoder.embed_positions.weight"


def test_two_rows_of_positions_are_left_out_and_saved_as_zeros(tmp_path: Path) -> None:
    theirs: Any = their_model(OPT.examples[0])
    theirs.save_pretrained(tmp_path / "theirs")
    ours = load(tmp_path / "theirs")
    assert torch.equal(ours.stack.encodings[0].table, theirs.state_dict()[TABLE][2:])
    save(ours, tmp_path / "ours")
    saved = load_file(tmp_path / "ours" / "model.safetensors")[TABLE]
    assert saved.shape == (66, 32)
    assert not saved[:2].any()


def test_a_projection_behind_a_norm_is_refused() -> None:
    with pytest.raises(HeadwayError, match="word_embed_proj_dim is 20"):
        OPT().build(Config({**OPT.examples[0], "word_embed_proj_dim": 20}), head=True)


@pytest.mark.parametrize(
    "said", [{"layer_norm_elementwise_affine": False}, {"_remove_final_layer_norm": True}], ids=str
)
def test_what_is_refused(said: dict[str, Any]) -> None:
    with pytest.raises(HeadwayError, match=next(iter(said))):
        OPT().build(Config({**OPT.examples[0], **said}), head=True)
