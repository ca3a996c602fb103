"""GPT-NeoX: Pythia and GPT-NeoX-20B."""

from __future__ import annotations

from functools import partial

from torch import nn

from ..models import Decoder, Stack
from ..nn import Block, Embedding, Head, MultiHeadAttention, ParallelBlock
from ._base import SMALL, Config, Family
from ._left_out import Copy, Frequencies, Lowest, Triangle
from ._rules import QKV, Fused, Rule


class GPTNeoX(Family):
    """A decoder with parallel attention and feed-forward, each with a norm of its own, and partial RoPE.

    Positions: the first quarter of each head is rotated, in the "half" layout. The projections of queries, keys and
    values are one matrix, grouped by head. Older configs have rotary_pct and rotary_emb_base. Files call the head
    embed_out, whatever transformers calls it.

    References:
        Black et al. 2022; Biderman et al. 2023 (Pythia).
    """

    architectures = {"GPTNeoXModel": False, "GPTNeoXForCausalLM": True}
    examples = tuple(
        {
            "architectures": [architecture],
            "model_type": "gpt_neox",
            **SMALL,
            "max_position_embeddings": 64,
            "layer_norm_eps": 1e-3,
            **more,
        }
        for architecture, more in (
            ("GPTNeoXForCausalLM", {"rotary_pct": 0.25, "rotary_emb_base": 500}),
            ("GPTNeoXForCausalLM", {"use_parallel_residual": False, "tie_word_embeddings": True, "rotary_pct": 1.0}),
            ("GPTNeoXModel", {"rotary_pct": 0.5, "attention_bias": False, "hidden_act": "gelu_new"}),
        )
    )
    prefix = "gpt_neox."
    ignored = {
        "*.attention.bias": Triangle(),
        "*.attention.masked_bias": Lowest(),
        "*rotary_emb.inv_freq": Frequencies(),
        "embed_out.weight": Copy(),
    }

    def build(self, config: Config, *, head: bool) -> nn.Module:
        width, heads = config["hidden_size"], config["num_attention_heads"]
        config.only("head_dim", None, width // heads)  # transformers would rotate by it, and split heads by the width
        norm = partial(nn.LayerNorm, eps=config.get("layer_norm_eps", 1e-5))
        block = ParallelBlock if config.get("use_parallel_residual", True) else Block
        blocks = [
            block(
                width,
                heads,
                feed_forward_dim=config["intermediate_size"],
                activation=config.activation("hidden_act"),
                norm=norm,
                dropout=config.get("hidden_dropout", 0.0),
                attention=MultiHeadAttention(
                    width,
                    heads,
                    bias=config.get("attention_bias", True),
                    dropout=config.get("attention_dropout", 0.0),
                ),
            )
            for _ in range(config["num_hidden_layers"])
        ]
        rope = config.rope(width // heads, theta=("rotary_emb_base", 10000.0), part=("rotary_pct", 0.25))
        stack = Stack(blocks, rope, norm=norm(width), dropout=config.get("hidden_dropout", 0.0))
        logits = Head(width, config["vocab_size"], tied=config.get("tie_word_embeddings", False)) if head else None
        return Decoder.of_parts(Embedding(config["vocab_size"], width), stack, logits)

    def body(self, config: Config) -> tuple[Rule, ...]:
        layer, block = "layers.{}.", "stack.blocks.{}."
        return (
            Rule("embed_in.weight", "embedding.weight"),
            Rule(layer + "input_layernorm", block + "attention_norm"),
            Rule(layer + "attention.query_key_value", QKV, Fused(groups=config["num_attention_heads"])),
            Rule(layer + "attention.dense", block + "attention.out_proj"),
            Rule(layer + "post_attention_layernorm", block + "feed_forward_norm"),
            Rule(layer + "mlp.dense_h_to_4h", block + "feed_forward.up_proj"),
            Rule(layer + "mlp.dense_4h_to_h", block + "feed_forward.down_proj"),
            Rule("final_layer_norm", "stack.norm"),
        )

    def head(self, config: Config) -> tuple[Rule, ...]:
        return (Rule("embed_out.weight", "head.weight"),)
