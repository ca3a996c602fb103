"""T5's traps: what an older and a newer config say of its head, UMT5's scale, and the encoder of a whole model."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from headway import HeadwayError
from headway.checkpoints import load
from headway.checkpoints._base import Config
from headway.checkpoints.t5 import T5, T5Encoder
from headway.testing.checkpoints import distance, inputs, their_model

pytest.importorskip("transformers")

TIED, GATED, UNTIED = T5.examples[0], T5.examples[1], T5.examples[2]


def folder_of(config: dict[str, Any], folder: Path, **changes: Any) -> tuple[Path, Any]:
    """A saved model of transformers, its config changed afterwards; None takes a key away."""
    theirs = their_model(config)
    theirs.save_pretrained(folder)
    said = json.loads((folder / "config.json").read_text()) | changes
    (folder / "config.json").write_text(json.dumps({key: value for key, value in said.items() if value is not None}))
    return folder, theirs


def test_a_newer_file_says_tied_of_a_head_of_its_own(tmp_path: Path) -> None:
    folder, theirs = folder_of(UNTIED, tmp_path)
    said = json.loads((folder / "config.json").read_text())
    assert (said["tie_word_embeddings"], said["scale_decoder_outputs"]) == (True, False)
    assert torch.equal(load(folder).head.weight, theirs.lm_head.weight)


@pytest.mark.parametrize(("config", "tied"), [(TIED, None), (TIED, True), (UNTIED, False)])
def test_an_older_file_says_the_same_by_tie_word_embeddings(
    config: dict[str, Any], tied: bool | None, tmp_path: Path
) -> None:
    folder, theirs = folder_of(config, tmp_path, tie_word_embeddings=tied, scale_decoder_outputs=None)
    model, given = load(folder), inputs(theirs)
    with torch.no_grad():
        assert distance(model(*given.values()), theirs(**given).logits) < 1e-5
    assert (model.head.weight is None) == (config is TIED)
    assert model.head.scale == (32**-0.5 if config is TIED else 1)


@pytest.mark.parametrize("tied", [True, False])
def test_a_head_of_umt5_is_scaled_where_it_is_tied(tied: bool) -> None:
    model: Any = T5().build(Config({**T5.examples[4], "tie_word_embeddings": tied}), head=True)
    assert (model.head.weight is None) == tied
    assert model.head.scale == (32**-0.5 if tied else 1)


def test_a_table_serves_all_layers_of_t5_and_one_each_of_umt5() -> None:
    one: Any = T5().build(Config(TIED), head=False)
    each: Any = T5().build(Config(T5.examples[4]), head=False)
    assert (len(one.encoder.encodings), len(one.decoder.encodings)) == (1, 1)
    assert (len(each.encoder.encodings), len(each.decoder.encodings)) == (3, 2)


def test_the_encoder_of_a_whole_model_is_read_alone(tmp_path: Path) -> None:
    folder, theirs = folder_of(GATED, tmp_path)
    ids = inputs(theirs)["input_ids"]
    encoder = load(folder, architecture="T5EncoderModel")
    assert not any("decoder" in name for name, _ in encoder.named_parameters())
    with torch.no_grad():
        assert distance(encoder(ids), theirs.encoder(ids).last_hidden_state) < 1e-5


@pytest.mark.parametrize("said", ["gated-tanh", "tanh"])
def test_an_activation_that_is_not_there_is_refused(said: str) -> None:
    with pytest.raises(HeadwayError, match=r"give one of relu|did you mean"):
        T5Encoder().build(Config({**TIED, "feed_forward_proj": said}), head=False)
