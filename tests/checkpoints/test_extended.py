"""Models whose rotary encodings are rescaled, for a while or permanently."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch

import headway
from headway import HeadwayError
from headway.checkpoints import FAMILIES
from headway.checkpoints._extended import extend, extended
from headway.masks import Window
from headway.models import Decoder, Stack
from headway.nn import Block, Embedding, Head
from headway.positions._encodings.rope import RoPE
from headway.positions._rescaling import METHODS

from .small_llama import CONFIG, VOCABULARY, WINDOW, small, tokens

RESCALED = [name for name in METHODS if name != "none"]


def test_none_changes_no_bit() -> None:
    model, ids = small(), tokens(40)[None]
    before = model(ids)
    with extended(model, "none", 4.0):
        assert torch.equal(model(ids), before)


@pytest.mark.parametrize("method", RESCALED)
def test_a_model_is_extended_and_put_back(method: str) -> None:
    model, ids = small(), tokens(40)[None]
    weights = {name: value.data_ptr() for name, value in model.named_parameters()}
    before, own = model(ids), model.stack.encodings[0]
    with extended(model, method, 4.0) as further:
        assert further is model
        assert {name: value.data_ptr() for name, value in model.named_parameters()} == weights
        assert not torch.allclose(model(ids), before, atol=1e-3)
    assert model.stack.encodings[0] is own
    assert torch.equal(model(ids), before)


def test_it_is_put_back_after_an_error() -> None:
    model = small()
    own = model.stack.encodings[0]
    with pytest.raises(KeyError), extended(model, "yarn", 4.0):
        raise KeyError
    assert model.stack.encodings[0] is own


def test_layers_that_see_little_are_left_alone() -> None:
    """Gemma 3's way: one encoding for layers with a window, one for those without."""
    near, far = RoPE(8, layout="half"), RoPE(8, base=1e6, layout="half")
    blocks = [Block(32, 4, feed_forward_dim=32) for _ in range(2)]
    stack = Stack(blocks, [near, far], [Window(WINDOW - 1), None])
    model = Decoder.of_parts(Embedding(VOCABULARY, 32), stack, Head(32, VOCABULARY))
    with extended(model, "linear", 4.0, WINDOW):
        assert model.stack.encodings[0] is near
        assert type(model.stack.encodings[1]).__name__ == "PositionInterpolation"
    with extended(model, "linear", 4.0, WINDOW - 1):
        assert model.stack.encodings[0] is not near


SAVED = [
    *(pytest.param(CONFIG, method, id=f"llama-{method}") for method in METHODS),
    *(
        pytest.param({**next(e for e in FAMILIES[family].examples if e["architectures"][0].endswith("LM"))}, "yarn",
                     id=f"{family}-yarn")
        for family in ("phi", "falcon") if family in FAMILIES
    ),
]  # fmt: skip


@pytest.mark.parametrize(("config", "method"), SAVED)
def test_transformers_reads_what_is_saved(config: dict[str, Any], method: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    model = small(**config)
    window = model.checkpoint.config["max_position_embeddings"]
    headway.save(extend(model, method, 4.0), tmp_path)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    again = headway.load(tmp_path)
    for length in (3 * window, window - 2):
        ids = tokens(length)[None]
        torch.testing.assert_close(theirs(ids).logits, model(ids), rtol=1e-4, atol=1e-4)
        assert torch.equal(again(ids), model(ids))


@pytest.mark.parametrize(
    ("method", "said", "longest"),
    [
        ("ntk", {"rope_type": "default", "rope_theta": 100.0 * 4 ** (8 / 6)}, 64),
        ("dynamic", {"rope_type": "dynamic", "rope_theta": 100.0, "factor": 1.0}, WINDOW),
        ("linear", {"rope_type": "linear", "rope_theta": 100.0, "factor": 4.0}, 64),
    ],
)
def test_what_the_config_says(method: str, said: dict[str, Any], longest: int) -> None:
    config = extend(small(), method, 4.0).checkpoint.config  # type: ignore[union-attr]
    assert config["rope_parameters"] == said
    assert config["max_position_embeddings"] == longest
    assert "rope_theta" not in config


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_layer": 1, "n_head": 2, "n_embd": 8,
          "n_positions": 32}, "the model has learned: there is nothing to rescale"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, r"is rescaled already, by yarn\(factor=4.0"),
        ({"architectures": ["BertForMaskedLM"], "model_type": "bert"}, "is a BertForMaskedLM: give a causal"),
        ({"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": 8},
         "every layer sees fewer than 16 tokens back"),
        ({"max_position_embeddings": None}, "no max_position_embeddings: give window"),
        ({"max_position_embeddings": 4}, "window is 4"),
    ],
)  # fmt: skip
def test_models_that_are_refused(changes: dict[str, Any], message: str) -> None:
    model = small(**changes)
    with pytest.raises(HeadwayError, match=message), extended(model, "yarn", 4.0):
        pass


@pytest.mark.parametrize(
    ("method", "factor", "message"),
    [
        ("yam", 4.0, "no method 'yam': did you mean 'dynamic' or 'yarn'"),
        ("yarn", 1.0, "factor is 1.0: give a number above 1"),
        ("yarn", math.nan, "factor is nan"),
    ],
)
def test_what_cannot_be(method: str, factor: float, message: str) -> None:
    with pytest.raises(HeadwayError, match=message), extended(small(), method, factor):
        pass
    with pytest.raises(HeadwayError, match=message):
        extend(small(), method, factor)


def test_a_config_without_words_for_it() -> None:
    """GPT-J's has none for anything but plain RoPE; the model stays as it was."""
    config = {"architectures": ["GPTJForCausalLM"], "model_type": "gptj", "n_layer": 1, "n_head": 2, "n_embd": 16,
              "n_positions": 32, "rotary_dim": 4, "vocab_size": VOCABULARY}  # fmt: skip
    model = small(**config)
    before = repr(model)
    with pytest.raises(HeadwayError, match="cannot express yarn"):
        extend(model, "yarn", 4.0)
    assert repr(model) == before
    assert "rope_parameters" not in model.checkpoint.config
