"""Marian's traps: where its sinusoids lie, what its files hold besides, and the bias of its logits."""

from pathlib import Path
from typing import Any

import pytest
import torch

from headway import HeadwayError
from headway.checkpoints import load, save
from headway.checkpoints._base import Config
from headway.checkpoints._files import read_tensors
from headway.checkpoints.marian import Marian
from headway.testing.checkpoints import CLOSE, compare, their_model

pytest.importorskip("transformers")

SHARED, APART, BARE = Marian.examples


@pytest.mark.parametrize("width", [4, 32, 512])
def test_sinusoids_lie_where_transformers_has_them(width: int) -> None:
    from transformers.models.marian.modeling_marian import MarianSinusoidalPositionalEmbedding

    model: Any = Marian().build(Config({**SHARED, "d_model": width, "decoder_attention_heads": 1}), head=False)
    encoding = model.encoder.encodings[0]
    table = MarianSinusoidalPositionalEmbedding(100, width).create_weight()
    computed = encoding.embed(torch.zeros(1, 100, width))[0]
    torch.testing.assert_close(computed, table, rtol=0, atol=1e-6)


@torch.no_grad()
def test_positions_do_not_end_with_the_table(tmp_path: Path) -> None:
    theirs = their_model(BARE)
    theirs.save_pretrained(tmp_path)
    assert "encoder.embed_positions.weight" in read_tensors(tmp_path)
    ids = torch.randint(5, 40, (1, 100))
    assert load(tmp_path)(ids, ids).isfinite().all()
    with pytest.raises(IndexError):
        theirs(input_ids=ids, decoder_input_ids=ids)


@pytest.mark.parametrize("config", [SHARED, APART])
def test_logits_have_a_bias(config: dict[str, Any], tmp_path: Path) -> None:
    theirs = their_model(config)
    theirs.final_logits_bias.copy_(torch.randn_like(theirs.final_logits_bias))
    theirs.save_pretrained(tmp_path / "theirs")
    ours = load(tmp_path / "theirs")
    assert compare(ours, theirs).outputs <= CLOSE
    save(ours, tmp_path / "ours")
    assert torch.equal(read_tensors(tmp_path / "ours")["final_logits_bias"], theirs.final_logits_bias)


def test_languages_share_their_embeddings_unless_the_config_says_otherwise(tmp_path: Path) -> None:
    both: Any = Marian().build(Config(SHARED), head=True)
    each: Any = Marian().build(Config(APART), head=True)
    assert both.source_embedding is None
    assert (each.source_embedding.weight.shape, each.embedding.weight.shape) == ((40, 32), (44, 32))
    assert (both.embedding.scale, each.source_embedding.scale) == (32**0.5, 1)


def test_what_is_saved_holds_the_embeddings_once(tmp_path: Path) -> None:
    their_model(SHARED).save_pretrained(tmp_path / "theirs")
    save(load(tmp_path / "theirs"), tmp_path / "ours")
    names = [name for name in read_tensors(tmp_path / "ours") if "embed" in name or "shared" in name]
    assert names == ["model.shared.weight"]


def test_a_head_of_its_own_is_refused() -> None:
    with pytest.raises(HeadwayError, match="tie_word_embeddings is False"):
        Marian().build(Config({**SHARED, "tie_word_embeddings": False}), head=True)
