"""MPT."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from ..models import Decoder, Stack
from ..nn import Block, Embedding, Head, MultiHeadAttention
from ..positions import ALiBi
from ._base import Config, Family
from ._left_out import Copy
from ._rules import QKV, Fused, Rule


class MPT(Family):
    """A decoder with pre-norm, ALiBi, and no biases, not even in the norms.

    Positions: the bias is slope·(position of the key) in transformers and slope·(−distance) here, which give the same
    softmax. The smallest slope is 2^−alibi_bias_max; for 8, slopes are those of ALiBi's authors for any number of
    heads. Queries, keys and values are one matrix, one after the other. transformers ignores alibi_bias_max (16 in
    MPT-7B-StoryWriter), expansion_ratio, logit_scale and alibi=False. headway applies the first and refuses the others,
    and clip_qkv. The authors' config.json names MPTForCausalLM: give architecture="MptForCausalLM".

    References:
        MosaicML 2023.
    """

    architectures = {"MptModel": False, "MptForCausalLM": True}
    examples = tuple(
        {
            "architectures": [architecture],
            "model_type": "mpt",
            "vocab_size": 40,
            "d_model": 8 * heads,
            "n_layers": 3,
            "n_heads": heads,
            "max_seq_len": 64,
            "layer_norm_epsilon": 1e-3,
            "attn_config": attention,
            **more,
        }
        for architecture, heads, attention, more in (
            ("MptForCausalLM", 4, {}, {}),
            ("MptForCausalLM", 6, {"softmax_scale": 0.2}, {"tie_word_embeddings": False}),
            ("MptModel", 4, {}, {}),
        )
    )
    prefix = "transformer."
    aliases = {
        "hidden_size": "d_model",
        "num_attention_heads": "n_heads",
        "num_hidden_layers": "n_layers",
    }
    ignored = {"lm_head.weight": Copy()}

    def build(self, config: Config, *, head: bool) -> nn.Module:
        config.only("no_bias", True)
        config.only("expansion_ratio", 4)
        config.only("logit_scale", None)
        inner = Config(config.get("attn_config", {}))
        inner.only("attn_type", "multihead_attention")
        inner.only("alibi", True)
        for key in ("qk_ln", "prefix_lm", "attn_uses_sequence_id"):
            inner.only(key, False)
        inner.only("clip_qkv", None)
        width, heads, drop = config["d_model"], config["n_heads"], float(inner.get("attn_pdrop", 0))
        norm = partial(nn.LayerNorm, eps=config.get("layer_norm_epsilon", 1e-5), bias=False)
        blocks = [
            Block(
                width,
                heads,
                norm=norm,
                bias=False,
                dropout=drop,
                attention=MultiHeadAttention(width, heads, bias=False, scale=inner.get("softmax_scale"), dropout=drop),
            )
            for _ in range(config["n_layers"])
        ]
        largest = inner.get("alibi_bias_max", 8)
        positions = ALiBi(heads) if largest == 8 else SteepALiBi(heads, largest)
        stack = Stack(blocks, positions, norm=norm(width))
        logits = Head(width, config["vocab_size"], tied=config.get("tie_word_embeddings", True)) if head else None
        return Decoder.of_parts(Embedding(config["vocab_size"], width), stack, logits)

    def body(self, config: Config) -> tuple[Rule, ...]:
        layer, block = "blocks.{}.", "stack.blocks.{}."
        return (
            Rule("wte.weight", "embedding.weight"),
            Rule(layer + "norm_1", block + "attention_norm"),
            Rule(layer + "attn.Wqkv", QKV, Fused()),
            Rule(layer + "attn.out_proj", block + "attention.out_proj"),
            Rule(layer + "norm_2", block + "feed_forward_norm"),
            Rule(layer + "ffn.up_proj", block + "feed_forward.up_proj"),
            Rule(layer + "ffn.down_proj", block + "feed_forward.down_proj"),
            Rule("norm_f", "stack.norm"),
        )

    def head(self, config: Config) -> tuple[Rule, ...]:
        return (Rule("lm_head.weight", "head.weight"),)


class SteepALiBi(ALiBi):
    """ALiBi with the smallest slope 2^−largest in place of 2^−8: m_h = 2^(−largest·h/H)."""

    def __init__(self, num_heads: int, largest: float) -> None:
        super().__init__(num_heads)
        self.largest = largest

    def slopes(self, device: torch.device | str | None = None) -> Tensor:
        return super().slopes(device) ** (self.largest / 8)
