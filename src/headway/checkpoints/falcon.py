"""Falcon."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ..models import Decoder, Stack
from ..nn import Block, Embedding, FeedForward, Head, MultiHeadAttention, ParallelBlock
from ..positions import ALiBi, PositionEncoding
from ._base import Config, Family
from ._left_out import Copy, Frequencies
from ._rules import QKV, Fused, Rule


class Falcon(Family):
    """A decoder with parallel attention and feed-forward, multi-query or grouped-query attention, and RoPE or ALiBi.

    Falcon 7B: one norm for attention and feed-forward, one head of keys and values. Falcon 40B
    (new_decoder_architecture): a norm for each, several heads of keys and values. Falcon RW: sequential attention and
    feed-forward, and ALiBi, whose bias is divided by √head_dim like the scores. Queries, keys and values are one
    matrix, in which each head of keys follows its queries. transformers rounds slope times position to bfloat16
    whatever the dtype of the model: if slopes are not powers of two (Falcon RW's 32 heads), or beyond 256 tokens, its
    scores differ from these by the rounding.

    References:
        Almazrouei et al. 2023.
    """

    architectures = {"FalconModel": False, "FalconForCausalLM": True}
    examples = tuple(
        {
            "architectures": [architecture],
            "model_type": "falcon",
            "vocab_size": 40,
            "hidden_size": 32,
            "ffn_hidden_size": 48,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "max_position_embeddings": 64,
            "layer_norm_epsilon": 1e-3,
            "bos_token_id": 1,
            "eos_token_id": 2,
            **more,
        }
        for architecture, more in (
            ("FalconForCausalLM", {}),
            ("FalconForCausalLM", {"new_decoder_architecture": True, "num_kv_heads": 2, "tie_word_embeddings": False}),
            ("FalconModel", {"new_decoder_architecture": True, "num_kv_heads": 2, "num_ln_in_parallel_attn": 1}),
            ("FalconForCausalLM", {"alibi": True, "multi_query": False, "parallel_attn": False, "bias": True}),
            ("FalconModel", {"alibi": True, "rope_theta": 500.0, "hidden_size": 48, "num_attention_heads": 6}),
        )
    )
    prefix = "transformer."
    aliases = {"n_embed": "hidden_size"}
    ignored = {
        "*rotary_emb.inv_freq": Frequencies(),
        "lm_head.weight": Copy(),
    }

    def build(self, config: Config, *, head: bool) -> nn.Module:
        if config.get("new_decoder_architecture", False):
            config.only("parallel_attn", True)
        else:
            config.only("num_ln_in_parallel_attn", None, 1)
        width, heads, bias = config["hidden_size"], config["num_attention_heads"], config.get("bias", False)
        norm = partial(nn.LayerNorm, eps=config.get("layer_norm_epsilon", 1e-5))

        def block() -> Block:
            parts: dict[str, Any] = {
                "norm": norm,
                "dropout": config.get("hidden_dropout", 0.0),
                "attention": MultiHeadAttention(
                    width,
                    heads,
                    num_kv_heads=_kv_heads(config),
                    bias=bias,
                    dropout=config.get("attention_dropout", 0.0),
                ),
                "feed_forward": FeedForward(
                    width, config.get("ffn_hidden_size", 4 * width), config.activation("activation"), bias=bias
                ),
            }
            if config.get("parallel_attn", True):
                return ParallelBlock(width, heads, shared_norm=not _two_norms(config), **parts)
            return Block(width, heads, **parts)

        positions: PositionEncoding = (
            ScaledALiBi(heads, width // heads) if config.get("alibi", False) else config.rope(width // heads)
        )
        stack = Stack([block() for _ in range(config["num_hidden_layers"])], positions, norm=norm(width))
        logits = Head(width, config["vocab_size"], tied=config.get("tie_word_embeddings", True)) if head else None
        return Decoder.of_parts(Embedding(config["vocab_size"], width), stack, logits)

    def body(self, config: Config) -> tuple[Rule, ...]:
        layer, block = "h.{}.", "stack.blocks.{}."
        first, second = ("ln_attn", "ln_mlp") if _two_norms(config) else ("input_layernorm", "post_attention_layernorm")
        return (
            Rule("word_embeddings.weight", "embedding.weight"),
            Rule(layer + first, block + "attention_norm"),
            Rule(layer + "self_attention.query_key_value", QKV, Fused(groups=_kv_heads(config))),
            Rule(layer + "self_attention.dense", block + "attention.out_proj"),
            Rule(layer + second, block + "feed_forward_norm"),
            Rule(layer + "mlp.dense_h_to_4h", block + "feed_forward.up_proj"),
            Rule(layer + "mlp.dense_4h_to_h", block + "feed_forward.down_proj"),
            Rule("ln_f", "stack.norm"),
        )

    def head(self, config: Config) -> tuple[Rule, ...]:
        return (Rule("lm_head.weight", "head.weight"),)


class ScaledALiBi(ALiBi):
    """ALiBi whose bias is scaled like the scores: score = head_dim^−½·(⟨q, k⟩ − m·|δ|)."""

    def __init__(self, num_heads: int, head_dim: int) -> None:
        super().__init__(num_heads)
        self.head_dim = head_dim

    def slopes(self, device: torch.device | str | None = None) -> Tensor:
        return super().slopes(device) * self.head_dim**-0.5


def _kv_heads(config: Config) -> int:
    """The number of heads of keys and values; the older architecture ignores num_kv_heads and has one or all."""
    heads: int = config["num_attention_heads"]
    if config.get("new_decoder_architecture", False):
        kv_heads: int = config.get("num_kv_heads", heads)
        return kv_heads
    return 1 if config.get("multi_query", True) else heads


def _two_norms(config: Config) -> bool:
    return bool(config.get("new_decoder_architecture", False) and config.get("num_ln_in_parallel_attn", 2) == 2)
