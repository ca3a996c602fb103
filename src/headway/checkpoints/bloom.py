"""BLOOM."""

from __future__ import annotations

from functools import partial

from torch import nn

from ..models import Decoder, Stack
from ..nn import Block, Embedding, Head
from ..positions import ALiBi
from ._base import Config, Family
from ._left_out import Copy
from ._rules import QKV, Fused, Rule


class BLOOM(Family):
    """A decoder with pre-norm, a norm of the embeddings, and ALiBi.

    Positions: the bias is slope·(position of the key) in transformers and slope·(−distance) here. They differ by a
    constant for each query, which cancels in the softmax; neither counts padding. The projections of queries, keys and
    values are one matrix, grouped by head. Older configs have n_embed in place of hidden_size.

    References:
        Le Scao et al. 2022.
    """

    architectures = {"BloomModel": False, "BloomForCausalLM": True}
    examples = tuple(
        {
            "architectures": [architecture],
            "model_type": "bloom",
            "vocab_size": 40,
            "hidden_size": 8 * heads,
            "n_layer": 3,
            "n_head": heads,
            "layer_norm_epsilon": 1e-3,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "pad_token_id": 3,
            **more,
        }
        for architecture, heads, more in (
            ("BloomForCausalLM", 4, {}),
            ("BloomForCausalLM", 6, {"tie_word_embeddings": False}),
            ("BloomModel", 4, {}),
        )
    )
    prefix = "transformer."
    aliases = {
        "n_embed": "hidden_size",
        "num_attention_heads": "n_head",
        "num_hidden_layers": "n_layer",
    }
    ignored = {"lm_head.weight": Copy()}

    def build(self, config: Config, *, head: bool) -> nn.Module:
        config.only("apply_residual_connection_post_layernorm", False)
        width, heads = config["hidden_size"], config["n_head"]
        norm = partial(nn.LayerNorm, eps=config.get("layer_norm_epsilon", 1e-5))
        blocks = [
            Block(width, heads, activation="gelu_tanh", norm=norm, dropout=config.get("hidden_dropout", 0.0))
            for _ in range(config["n_layer"])
        ]
        stack = Stack(blocks, ALiBi(heads), entry=norm(width), norm=norm(width))
        logits = Head(width, config["vocab_size"], tied=config.get("tie_word_embeddings", True)) if head else None
        return Decoder.of_parts(Embedding(config["vocab_size"], width), stack, logits)

    def body(self, config: Config) -> tuple[Rule, ...]:
        layer, block = "h.{}.", "stack.blocks.{}."
        return (
            Rule("word_embeddings.weight", "embedding.weight"),
            Rule("word_embeddings_layernorm", "stack.entry"),
            Rule(layer + "input_layernorm", block + "attention_norm"),
            Rule(layer + "self_attention.query_key_value", QKV, Fused(groups=config["n_head"])),
            Rule(layer + "self_attention.dense", block + "attention.out_proj"),
            Rule(layer + "post_attention_layernorm", block + "feed_forward_norm"),
            Rule(layer + "mlp.dense_h_to_4h", block + "feed_forward.up_proj"),
            Rule(layer + "mlp.dense_4h_to_h", block + "feed_forward.down_proj"),
            Rule("ln_f", "stack.norm"),
        )

    def head(self, config: Config) -> tuple[Rule, ...]:
        return (Rule("lm_head.weight", "head.weight"),)
