"""LLaMA and models of its architecture: Mistral, Qwen 2 and 3, SmolLM 2 and 3."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from torch import nn

from ..masks import Mask
from ..models import Decoder, Stack
from ..nn import Block, Embedding, Head, MultiHeadAttention
from ..positions import PositionEncoding
from ._base import SMALL, Config, Family
from ._left_out import Copy, Frequencies
from ._rules import Rule, projections

ROPES: tuple[dict[str, Any], ...] = (
    {"rope_type": "default", "rope_theta": 500.0},
    {"rope_type": "linear", "rope_theta": 500.0, "factor": 4.0},
    {"rope_type": "dynamic", "rope_theta": 500.0, "factor": 4.0},
    {"rope_type": "yarn", "rope_theta": 500.0, "factor": 4.0, "original_max_position_embeddings": 16},
    {
        "rope_type": "longrope",
        "rope_theta": 500.0,
        "factor": 2.0,
        "original_max_position_embeddings": 32,
        "short_factor": [1.0, 1.5, 2.0, 3.0],
        "long_factor": [2.0, 3.0, 5.0, 9.0],
    },
    {
        "rope_type": "llama3",
        "rope_theta": 500.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16,
    },
)
"""One set of parameters for each rope_type, for the examples."""

COMMON: dict[str, Any] = {"rope_theta": 10000.0, "tie_word_embeddings": False}
BIAS = {"attention_bias": False}
WINDOWS = {"use_sliding_window": False, "sliding_window": None, "layer_types": None}
QWEN = {**WINDOWS, "sliding_window": 4096, "max_window_layers": 28}
TYPES: dict[str, dict[str, Any]] = {
    "llama": {**COMMON, **BIAS, "mlp_bias": False},
    "mistral": {**COMMON, "sliding_window": 4096},
    "qwen2": {**COMMON, **QWEN},
    "qwen3": {**COMMON, **BIAS, **QWEN},
    "smollm3": {
        **BIAS,
        **WINDOWS,
        "mlp_bias": False,
        "rope_theta": 2_000_000.0,
        "tie_word_embeddings": True,
        "no_rope_layers": None,
        "no_rope_layer_interval": 4,
    },
}
"""The values of keys that a config lacks, by model_type. A type does not read what only others list."""
SHOWN: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("LlamaModel", "llama", {"head_dim": 12, "attention_bias": True}),
    *(("LlamaForCausalLM", "llama", {"rope_parameters": rope}) for rope in ROPES),
    ("MistralForCausalLM", "mistral", {"sliding_window": 5, "tie_word_embeddings": True}),
    ("MistralForCausalLM", "mistral", {"rms_norm_eps": 0.1}),
    ("Qwen2ForCausalLM", "qwen2", {}),
    ("Qwen2ForCausalLM", "qwen2", {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1}),
    ("Qwen3ForCausalLM", "qwen3", {"head_dim": 16}),
    ("SmolLM3ForCausalLM", "smollm3", {"no_rope_layers": [1, 0, 1], "pad_token_id": 0}),
    (
        "SmolLM3ForCausalLM",
        "smollm3",
        {"pad_token_id": 0, "no_rope_layer_interval": 2, "use_sliding_window": True, "sliding_window": 5},
    ),
)
"""The architecture, the model_type and the further entries of each example."""


class LLaMA(Family):
    """A decoder with RMS pre-norm, gated feed-forward, grouped-query attention, and RoPE.

    Mistral adds a window in every layer, Qwen 2 biases of queries, keys and values, Qwen 3 a norm of each query and
    key, SmolLM 3 layers without positions. Some layers of Qwen may have windows.

    References:
        Touvron et al. 2023; Jiang et al. 2023 (Mistral); Yang et al. 2024 and 2025 (Qwen); Bakouch et al. 2025
        (SmolLM 3).
    """

    architectures = {
        f"{name}{suffix}": head
        for name in ("Llama", "Mistral", "Qwen2", "Qwen3", "SmolLM3")
        for suffix, head in (("Model", False), ("ForCausalLM", True))
    }
    examples = tuple(
        {
            "architectures": [architecture],
            "model_type": kind,
            **SMALL,
            "num_key_value_heads": 2,
            "max_position_embeddings": 64,
            **more,
        }
        for architecture, kind, more in SHOWN
    )
    prefix = "model."
    ignored = {
        "*rotary_emb.inv_freq": Frequencies(),
        "lm_head.weight": Copy(),
    }

    def build(self, config: Config, *, head: bool) -> nn.Module:
        config = config.of_type(TYPES)
        config.only("mlp_bias", False)
        kind = config["model_type"]
        width, heads, layers = config["hidden_size"], config["num_attention_heads"], config["num_hidden_layers"]
        head_dim = config.get("head_dim", width // heads)
        norm = partial(nn.RMSNorm, eps=config.get("rms_norm_eps", 1e-6))
        blocks = [
            Block(
                width,
                heads,
                norm=norm,
                bias=False,
                feed_forward_dim=config["intermediate_size"],
                activation=config.activation("hidden_act", "silu", gated=True),
                attention=MultiHeadAttention(
                    width,
                    heads,
                    num_kv_heads=config.get("num_key_value_heads", heads),
                    head_dim=head_dim,
                    bias="qkv" if kind == "qwen2" else config.get("attention_bias", False),
                    qk_norm=norm if kind == "qwen3" else None,
                    dropout=config.get("attention_dropout", 0.0),
                ),
            )
            for _ in range(layers)
        ]
        encodings = _encodings(config, head_dim, layers)
        stack = Stack(blocks, encodings, _masks(config, encodings), norm=norm(width))
        logits = Head(width, config["vocab_size"], tied=config["tie_word_embeddings"]) if head else None
        return Decoder.of_parts(Embedding(config["vocab_size"], width), stack, logits)

    def body(self, config: Config) -> tuple[Rule, ...]:
        layer, block = "layers.{}.", "stack.blocks.{}."
        return (
            Rule("embed_tokens.weight", "embedding.weight"),
            Rule(layer + "input_layernorm", block + "attention_norm"),
            *projections(layer + "self_attn.", "q_proj", "k_proj", "v_proj", "o_proj"),
            Rule(layer + "self_attn.q_norm", block + "attention.q_norm"),
            Rule(layer + "self_attn.k_norm", block + "attention.k_norm"),
            Rule(layer + "post_attention_layernorm", block + "feed_forward_norm"),
            Rule(layer + "mlp.gate_proj", block + "feed_forward.gate_proj"),
            Rule(layer + "mlp.up_proj", block + "feed_forward.up_proj"),
            Rule(layer + "mlp.down_proj", block + "feed_forward.down_proj"),
            Rule("norm", "stack.norm"),
        )

    def head(self, config: Config) -> tuple[Rule, ...]:
        return (Rule("lm_head.weight", "head.weight"),)


def _encodings(config: Config, head_dim: int, layers: int) -> list[PositionEncoding | None]:
    """The encoding of each layer: RoPE, or None in the layers without positions of SmolLM 3."""
    rope, every = config.rope(head_dim), config.get("no_rope_layer_interval", layers + 1)
    turned = config.get("no_rope_layers", [(layer + 1) % every for layer in range(layers)])  # 0: no rotation
    return [rope if turned[layer] else None for layer in range(layers)]


def _masks(config: Config, encodings: Sequence[PositionEncoding | None]) -> list[Mask | None]:
    """The mask of each layer: a window by layer_types, else in Qwen from a layer on, in SmolLM 3 without RoPE."""
    kinds, first = config.get("layer_types"), config.get("max_window_layers", 0)
    if kinds is not None:
        windowed = [kind == "sliding_attention" for kind in kinds]
        if any(windowed):
            config.only("use_sliding_window", True)
    elif config.get("sliding_window") is None or not config.get("use_sliding_window", True):
        windowed = [False] * len(encodings)
    else:
        smol = config["model_type"] == "smollm3"
        windowed = [encoding is None if smol else layer >= first for layer, encoding in enumerate(encodings)]
    return [config.window() if one else None for one in windowed]
