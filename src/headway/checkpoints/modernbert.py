"""ModernBERT."""

from __future__ import annotations

from functools import partial

from torch import nn

from ..masks import Mask, Window
from ..models import Encoder, Stack
from ..nn import Block, Embedding, FeedForward, Head, MultiHeadAttention
from ..nn.feed_forward import Activation
from ..positions import PositionEncoding
from ._base import Config, Family
from ._left_out import Copy
from ._rules import QKV, Fused, Rule

BASES = {"full_attention": ("global_rope_theta", 160000.0), "sliding_attention": ("local_rope_theta", 10000.0)}
"""The base of RoPE in each kind of layer: its key in older configs, and its default."""


class ModernBERT(Family):
    """An encoder with pre-norm, gated feed-forward, and RoPE, in which most layers attend to a window.

    Every third layer, beginning with the first, has full attention; the others have a window of ⌊local_attention/2⌋
    tokens on each side and RoPE of another base. The embeddings are normalized, so the first layer has no norm before
    its attention. Norms have no biases. In a checkpoint, queries, keys and values are one matrix, and so are the two of
    the gated feed-forward, the first half of which is activated.

    References:
        Warner et al. 2025.
    """

    architectures = {"ModernBertModel": False, "ModernBertForMaskedLM": True}
    examples = tuple(
        {
            "architectures": [architecture],
            "model_type": "modernbert",
            "vocab_size": 40,
            "hidden_size": 32,
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
            "intermediate_size": 48,
            "max_position_embeddings": 64,
            "pad_token_id": 0,
            **more,
        }
        for architecture, more in (
            ("ModernBertForMaskedLM", {}),
            (
                "ModernBertModel",
                {
                    "global_rope_theta": 50.0,
                    "local_rope_theta": 5.0,
                    "global_attn_every_n_layers": 2,
                    "local_attention": 5,
                },
            ),
            (
                "ModernBertForMaskedLM",
                {
                    "local_attention": 8,
                    "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "sliding_attention"],
                    "rope_parameters": {
                        "full_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 80.0},
                        "sliding_attention": {"rope_type": "default", "rope_theta": 20.0},
                    },
                    "attention_bias": True,
                    "mlp_bias": True,
                    "norm_bias": True,
                    "classifier_bias": True,
                    "decoder_bias": False,
                    "norm_eps": 0.1,
                    "hidden_activation": "silu",
                    "classifier_activation": "relu",
                },
            ),
        )
    )
    prefix = "model."
    ignored = {"decoder.weight": Copy()}

    def build(self, config: Config, *, head: bool) -> nn.Module:
        config.only("tie_word_embeddings", True)
        width, heads = config["hidden_size"], config["num_attention_heads"]
        norm = partial(nn.LayerNorm, eps=config.get("norm_eps", 1e-5), bias=config.get("norm_bias", False))
        blocks = [
            Block(
                width,
                heads,
                norm=norm,
                attention=MultiHeadAttention(
                    width, heads, bias=config.get("attention_bias", False), dropout=config.get("attention_dropout", 0.0)
                ),
                feed_forward=FeedForward(
                    width,
                    config["intermediate_size"],
                    config.activation("hidden_activation", gated=True),
                    bias=config.get("mlp_bias", False),
                    dropout=config.get("mlp_dropout", 0.0),
                ),
            )
            for _ in range(config["num_hidden_layers"])
        ]
        blocks[0].attention_norm = nn.Identity()  # the embeddings are already normalized
        stack = Stack(
            blocks,
            _encodings(config, width // heads),
            _masks(config),
            entry=norm(width),
            norm=norm(width),
            dropout=config.get("embedding_dropout", 0.0),
        )
        turn = nn.Sequential(
            nn.Linear(width, width, bias=config.get("classifier_bias", False)),
            Activation(config.activation("classifier_activation")),
            norm(width),
        )
        bias = config.get("decoder_bias", True)
        return Encoder.of_parts(
            Embedding(config["vocab_size"], width),
            stack,
            Head(width, config["vocab_size"], tied=True, bias=bias, transform=turn) if head else None,
        )

    def body(self, config: Config) -> tuple[Rule, ...]:
        layer, block = "layers.{}.", "stack.blocks.{}."
        return (
            Rule("embeddings.tok_embeddings.weight", "embedding.weight"),
            Rule("embeddings.norm", "stack.entry"),
            Rule(layer + "attn_norm", block + "attention_norm"),
            Rule(layer + "attn.Wqkv", QKV, Fused()),
            Rule(layer + "attn.Wo", block + "attention.out_proj"),
            Rule(layer + "mlp_norm", block + "feed_forward_norm"),
            Rule(layer + "mlp.Wi", (block + "feed_forward.gate_proj", block + "feed_forward.up_proj"), Fused()),
            Rule(layer + "mlp.Wo", block + "feed_forward.down_proj"),
            Rule("final_norm", "stack.norm"),
        )

    def head(self, config: Config) -> tuple[Rule, ...]:
        return (
            Rule("head.dense", "head.transform.0"),
            Rule("head.norm", "head.transform.2"),
            Rule("decoder.bias", "head.bias"),
        )


def _kinds(config: Config) -> list[str]:
    """The kind of each layer: full attention or a window."""
    every = config.get("global_attn_every_n_layers", 3)
    rhythm = [
        "sliding_attention" if layer % every else "full_attention" for layer in range(config["num_hidden_layers"])
    ]
    return list(config.get("layer_types", rhythm))


def _encodings(config: Config, head_dim: int) -> list[PositionEncoding]:
    ropes = {kind: config.rope(head_dim, theta=theta, kind=kind) for kind, theta in BASES.items()}
    return [ropes[kind] for kind in _kinds(config)]


def _masks(config: Config) -> list[Mask | None]:
    side = config.get("sliding_window", config.get("local_attention", 128) // 2)
    return [Window(side, side) if kind == "sliding_attention" else None for kind in _kinds(config)]
