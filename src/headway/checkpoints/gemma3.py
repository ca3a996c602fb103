"""Gemma 2 and 3, text only."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from ..models import Decoder, Stack
from ..nn import Block, Embedding, Head, MultiHeadAttention
from ._base import SMALL, Config, Family
from ._left_out import Copy, Frequencies
from ._rules import Plus, Rule, projections

FULL, SLIDING = "full_attention", "sliding_attention"


class Gemma3(Family):
    """A decoder with RMS norms before and after attention and feed-forward, windows in most layers, and RoPE.

    Gemma 3: five layers with a window and a small base of RoPE alternate with one layer of full attention and a large
    base; queries and keys are normalized. Gemma 2: every other layer has a window, all layers have one base, and scores
    and logits have soft caps. In both, norms multiply by 1 + weight, scores are multiplied by query_pre_attn_scalar^−½
    and embeddings by √width, rounded to their dtype. Models that also read images (Gemma3ForConditionalGeneration) are
    not supported.

    References:
        Gemma Team 2024 (Gemma 2) and 2025 (Gemma 3).
    """

    architectures = {
        f"{name}{suffix}": head
        for name, bare in (("Gemma2", "Model"), ("Gemma3", "TextModel"))
        for suffix, head in ((bare, False), ("ForCausalLM", True))
    }
    examples = tuple(
        {
            "architectures": [architecture],
            "model_type": kind,
            **SMALL,
            "num_key_value_heads": 2,
            "head_dim": 12,
            "query_pre_attn_scalar": 10,
            "sliding_window": 4,
            "max_position_embeddings": 64,
            "rms_norm_eps": 1e-3,
            **more,
        }
        for architecture, kind, more in (
            ("Gemma3ForCausalLM", "gemma3_text", {"layer_types": [SLIDING, FULL, SLIDING]}),
            (
                "Gemma3TextModel",
                "gemma3_text",
                {
                    "sliding_window_pattern": 2,
                    "rope_local_base_freq": 100.0,
                    "rope_theta": 5000.0,
                    "rope_scaling": {"rope_type": "linear", "factor": 8.0},
                    "attention_bias": True,
                },
            ),
            (
                "Gemma2ForCausalLM",
                "gemma2",
                {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0, "attn_implementation": "eager"},
            ),
        )
    )
    prefix = "model."
    ignored = {
        "lm_head.weight": Copy(),
        "*rotary_emb*inv_freq": Frequencies(),
    }

    def build(self, config: Config, *, head: bool) -> nn.Module:
        second = config["model_type"] == "gemma2"
        config.only("use_bidirectional_attention", False)
        if not second:
            config.only("attn_logit_softcapping", None)
        width, heads = config["hidden_size"], config["num_attention_heads"]
        norm = partial(nn.RMSNorm, eps=config.get("rms_norm_eps", 1e-6))
        kinds = _kinds(config, 2 if second else config.get("sliding_window_pattern", 6))
        blocks = [
            Block(
                width,
                heads,
                norm=norm,
                norm_after=norm,
                bias=False,
                feed_forward_dim=config["intermediate_size"],
                activation=config.activation("hidden_activation", "gelu_pytorch_tanh", gated=True),
                attention=MultiHeadAttention(
                    width,
                    heads,
                    num_kv_heads=config["num_key_value_heads"],
                    head_dim=config["head_dim"],
                    bias=config.get("attention_bias", False),
                    scale=config["query_pre_attn_scalar"] ** -0.5,
                    qk_norm=None if second else norm,
                    soft_cap=config.get("attn_logit_softcapping"),
                    dropout=config.get("attention_dropout", 0.0),
                ),
            )
            for _ in kinds
        ]
        if second:
            rope = dict.fromkeys((FULL, SLIDING), config.rope(config["head_dim"]))
        else:
            far, near = ("rope_theta", 1_000_000.0), ("rope_local_base_freq", 10_000.0)
            rope = {
                FULL: config.rope(config["head_dim"], theta=far, kind=FULL),
                SLIDING: config.rope(config["head_dim"], theta=near, kind=SLIDING, scaled=False),
            }
        window = config.window()
        stack = Stack(
            blocks,
            [rope[kind] for kind in kinds],
            [window if kind == SLIDING else None for kind in kinds],
            norm=norm(width),
        )
        cap, tied = config.get("final_logit_softcapping"), config.get("tie_word_embeddings", True)
        logits = Head(width, config["vocab_size"], tied=tied, soft_cap=cap) if head else None
        return Decoder.of_parts(_Embedding(config["vocab_size"], width), stack, logits)

    def body(self, config: Config) -> tuple[Rule, ...]:
        layer, block, more = "layers.{}.", "stack.blocks.{}.", Plus(1.0)
        return (
            Rule("embed_tokens.weight", "embedding.weight"),
            Rule(layer + "input_layernorm", block + "attention_norm", more),
            *projections(layer + "self_attn.", "q_proj", "k_proj", "v_proj", "o_proj"),
            Rule(layer + "self_attn.q_norm", block + "attention.q_norm", more),
            Rule(layer + "self_attn.k_norm", block + "attention.k_norm", more),
            Rule(layer + "post_attention_layernorm", block + "attention_norm_after", more),
            Rule(layer + "pre_feedforward_layernorm", block + "feed_forward_norm", more),
            Rule(layer + "mlp.gate_proj", block + "feed_forward.gate_proj"),
            Rule(layer + "mlp.up_proj", block + "feed_forward.up_proj"),
            Rule(layer + "mlp.down_proj", block + "feed_forward.down_proj"),
            Rule(layer + "post_feedforward_layernorm", block + "feed_forward_norm_after", more),
            Rule("norm", "stack.norm", more),
        )

    def head(self, config: Config) -> tuple[Rule, ...]:
        return (Rule("lm_head.weight", "head.weight"),)


class _Embedding(Embedding):
    """Embeddings times √width, a factor that is rounded to their dtype: 55.5 in bfloat16 for a width of 3,072."""

    def embed(self, ids: Tensor, types: Tensor | None = None) -> Tensor:
        factor = torch.full((), self.embedding_dim**0.5, dtype=self.weight.dtype, device=self.weight.device)
        return super().embed(ids, types) * factor


def _kinds(config: Config, every: int) -> list[str]:
    """The kind of each layer: full attention at the end of each pattern, else a window."""
    kinds: list[str] = config.get(
        "layer_types", [SLIDING if (layer + 1) % every else FULL for layer in range(config["num_hidden_layers"])]
    )
    return kinds
