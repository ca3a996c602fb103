"""BART's traps: the two rows before the first position, and the bias of its logits."""

from pathlib import Path

import pytest
import torch

from headway import HeadwayError
from headway.checkpoints import load, save
from headway.checkpoints._base import Config
from headway.checkpoints._files import read_tensors
from headway.checkpoints.bart import BART
from headway.testing.checkpoints import CLOSE, compare, their_model

pytest.importorskip("transformers")


def test_positions_begin_with_the_third_row(tmp_path: Path) -> None:
    theirs = their_model(BART.examples[0])
    table = theirs.model.encoder.embed_positions.weight.detach()
    theirs.save_pretrained(tmp_path / "theirs")
    ours = load(tmp_path / "theirs")
    assert torch.equal(ours.encoder.encodings[0].table, table[2:])
    save(ours, tmp_path / "ours")
    written = read_tensors(tmp_path / "ours")["model.encoder.embed_positions.weight"]
    assert torch.equal(written[2:], table[2:])
    assert not written[:2].any()


def test_logits_have_a_bias(tmp_path: Path) -> None:
    theirs = their_model(BART.examples[0])
    theirs.final_logits_bias.copy_(torch.randn_like(theirs.final_logits_bias))
    theirs.save_pretrained(tmp_path)
    assert compare(load(tmp_path), theirs).outputs <= CLOSE


def test_a_head_of_its_own_is_refused() -> None:
    with pytest.raises(HeadwayError, match="tie_word_embeddings is False"):
        BART().build(Config({**BART.examples[0], "tie_word_embeddings": False}), head=True)
