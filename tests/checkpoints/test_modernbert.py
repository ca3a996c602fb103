"""ModernBERT: which layers see a window, the bases of their RoPE, and what older configs say of both."""

from pathlib import Path
from typing import Any

import pytest
import torch

from headway import HeadwayError, load
from headway.checkpoints import Config
from headway.checkpoints.modernbert import ModernBERT
from headway.masks import Window
from headway.testing.checkpoints import CLOSE, distance, their_model

CONFIG = ModernBERT.examples[0]
BASE = {
    "vocab_size": 50368,
    "hidden_size": 768,
    "intermediate_size": 1152,
    "num_hidden_layers": 22,
    "num_attention_heads": 12,
    "max_position_embeddings": 8192,
    "global_attn_every_n_layers": 3,
    "global_rope_theta": 160000.0,
    "local_attention": 128,
    "local_rope_theta": 10000.0,
    "hidden_activation": "gelu",
    "norm_eps": 1e-05,
    "decoder_bias": True,
    "position_embedding_type": "absolute",
}
"""What the config.json of ModernBERT-base says, as it was published."""


def test_the_published_config_is_read() -> None:
    with torch.device("meta"):
        model: Any = ModernBERT().build(Config(BASE), head=True)
    assert model.num_parameters == 149_655_232
    wide = [layer for layer, mask in enumerate(model.stack.masks) if mask is None]
    assert wide == list(range(0, 22, 3))
    assert {mask for mask in model.stack.masks if mask is not None} == {Window(64, 64)}
    bases = [encoding.base for encoding in model.stack.encoding_of_layer]
    assert bases == [10000.0 if layer % 3 else 160000.0 for layer in range(22)]


@torch.no_grad()
@pytest.mark.parametrize("size", [1, 2, 7, 16])
def test_a_window_reaches_as_far_as_in_transformers(size: int, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    theirs = their_model({**CONFIG, "local_attention": size})
    theirs.save_pretrained(tmp_path)
    ids = torch.randint(5, 40, (1, 40))
    assert distance(load(tmp_path)(ids), theirs(ids).logits) <= CLOSE


def test_the_first_attention_reads_the_embeddings_as_they_are() -> None:
    model: Any = ModernBERT().build(Config(CONFIG), head=False)
    normed = [any(True for _ in block.attention_norm.parameters()) for block in model.stack.blocks]
    assert normed == [False, True, True, True]


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("tie_word_embeddings", False, "config's tie_word_embeddings is False"),
        ("hidden_activation", "mish", "the config's hidden_activation. 'mish'"),
    ],
)
def test_what_it_cannot_say_is_refused(key: str, value: object, said: str) -> None:
    with pytest.raises(HeadwayError, match=said):
        ModernBERT().build(Config({**CONFIG, key: value}), head=True)
