"""Phi 1, 1.5 and 2."""

from __future__ import annotations

from functools import partial

from torch import nn

from ..models import Decoder, Stack
from ..nn import Embedding, Head, MultiHeadAttention, ParallelBlock
from ._base import SMALL, Config, Family
from ._left_out import Copy, Frequencies
from ._rules import Rule, projections


class Phi(Family):
    """A decoder with parallel attention and feed-forward after one norm, and partial RoPE in the "half" layout.

    Positions: the first half of each head is rotated unless partial_rotary_factor says otherwise. All linear maps have
    biases, also the head. (Phi 3 has the architecture of LLaMA and is not of this family.)

    References:
        Gunasekar et al. 2023; Li et al. 2023.
    """

    architectures = {"PhiModel": False, "PhiForCausalLM": True}
    examples = tuple(
        {
            "architectures": [architecture],
            "model_type": "phi",
            **SMALL,
            "max_position_embeddings": 64,
            "layer_norm_eps": 1e-3,
            **more,
        }
        for architecture, more in (
            ("PhiForCausalLM", {}),
            ("PhiForCausalLM", {"num_key_value_heads": 2, "qk_layernorm": True, "tie_word_embeddings": True}),
            ("PhiModel", {"partial_rotary_factor": 0.25, "rope_theta": 500.0}),
        )
    )
    prefix = "model."
    ignored = {
        "*rotary_emb.inv_freq": Frequencies(),
        "lm_head.weight": Copy(),
    }

    def build(self, config: Config, *, head: bool) -> nn.Module:
        width, heads = config["hidden_size"], config["num_attention_heads"]
        norm = partial(nn.LayerNorm, eps=config.get("layer_norm_eps", 1e-5))
        blocks = [
            ParallelBlock(
                width,
                heads,
                shared_norm=True,
                feed_forward_dim=config["intermediate_size"],
                activation=config.activation("hidden_act", "gelu_new"),
                norm=norm,
                dropout=config.get("resid_pdrop", 0.0),
                attention=MultiHeadAttention(
                    width,
                    heads,
                    num_kv_heads=config.get("num_key_value_heads"),
                    qk_norm=norm if config.get("qk_layernorm", False) else None,
                    dropout=config.get("attention_dropout", 0.0),
                ),
            )
            for _ in range(config["num_hidden_layers"])
        ]
        rope = config.rope(width // heads, part=("partial_rotary_factor", 0.5))
        stack = Stack(blocks, rope, norm=norm(width), dropout=config.get("embd_pdrop", 0.0))
        tied = config.get("tie_word_embeddings", False)
        logits = Head(width, config["vocab_size"], tied=tied, bias=True) if head else None
        return Decoder.of_parts(Embedding(config["vocab_size"], width), stack, logits)

    def body(self, config: Config) -> tuple[Rule, ...]:
        layer, block = "layers.{}.", "stack.blocks.{}."
        return (
            Rule("embed_tokens.weight", "embedding.weight"),
            Rule(layer + "input_layernorm", block + "attention_norm"),
            *projections(layer + "self_attn.", "q_proj", "k_proj", "v_proj", "dense"),
            Rule(layer + "self_attn.q_layernorm", block + "attention.q_norm"),
            Rule(layer + "self_attn.k_layernorm", block + "attention.k_norm"),
            Rule(layer + "mlp.fc1", block + "feed_forward.up_proj"),
            Rule(layer + "mlp.fc2", block + "feed_forward.down_proj"),
            Rule("final_layernorm", "stack.norm"),
        )

    def head(self, config: Config) -> tuple[Rule, ...]:
        return (Rule("lm_head", "head"),)
