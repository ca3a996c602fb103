"""GPT-2."""

from __future__ import annotations

from functools import partial

from torch import nn

from ..models import Decoder, Stack
from ..nn import Block, Embedding, Head
from ..positions import Learned
from ._base import Config, Family
from ._left_out import Copy, Lowest, Triangle
from ._rules import QKV, TRANSPOSED, Fused, Rule


class GPT2(Family):
    """A decoder with pre-norm and learned positions.

    In a checkpoint, the projections of queries, keys and values are one matrix, and all matrices are [in, out].

    References:
        Radford et al. 2019.
    """

    architectures = {"GPT2Model": False, "GPT2LMHeadModel": True}
    examples = tuple(
        {
            "architectures": [architecture],
            "model_type": "gpt2",
            "vocab_size": 40,
            "n_embd": 32,
            "n_layer": 3,
            "n_head": 4,
            "n_positions": 64,
            "bos_token_id": 1,
            "eos_token_id": 2,
        }
        for architecture in ("GPT2LMHeadModel", "GPT2Model")
    )
    prefix = "transformer."
    aliases = {
        "hidden_size": "n_embd",
        "max_position_embeddings": "n_positions",
        "num_attention_heads": "n_head",
        "num_hidden_layers": "n_layer",
    }
    ignored = {
        "*.attn.bias": Triangle(),
        "*.attn.masked_bias": Lowest(),
        "lm_head.weight": Copy(),
    }

    def build(self, config: Config, *, head: bool) -> nn.Module:
        config.only("scale_attn_weights", True)
        config.only("scale_attn_by_inverse_layer_idx", False)
        config.only("add_cross_attention", False)
        config.only("tie_word_embeddings", True)
        width, norm = config["n_embd"], partial(nn.LayerNorm, eps=config.get("layer_norm_epsilon", 1e-5))
        blocks = [
            Block(
                width,
                config["n_head"],
                feed_forward_dim=config.get("n_inner"),
                activation=config.activation("activation_function", "gelu_new"),
                norm=norm,
                dropout=config.get("resid_pdrop", 0.1),
            )
            for _ in range(config["n_layer"])
        ]
        stack = Stack(
            blocks,
            Learned(config["n_positions"], width),
            norm=norm(width),
            dropout=config.get("embd_pdrop", 0.1),
        )
        embedding = Embedding(config["vocab_size"], width)
        return Decoder.of_parts(embedding, stack, Head(width, config["vocab_size"], tied=True) if head else None)

    def body(self, config: Config) -> tuple[Rule, ...]:
        layer, block = "h.{}.", "stack.blocks.{}."
        return (
            Rule("wte.weight", "embedding.weight"),
            Rule("wpe.weight", "stack.encodings.0.table"),
            Rule(layer + "ln_1", block + "attention_norm"),
            Rule(layer + "attn.c_attn", QKV, Fused(transposed=True)),
            Rule(layer + "attn.c_proj", block + "attention.out_proj", TRANSPOSED),
            Rule(layer + "ln_2", block + "feed_forward_norm"),
            Rule(layer + "mlp.c_fc", block + "feed_forward.up_proj", TRANSPOSED),
            Rule(layer + "mlp.c_proj", block + "feed_forward.down_proj", TRANSPOSED),
            Rule("ln_f", "stack.norm"),
        )
