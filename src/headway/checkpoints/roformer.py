"""RoFormer."""

from __future__ import annotations

from functools import partial

from torch import nn

from ..models import Encoder, Stack
from ..nn import Block, Embedding, Head
from ..nn.feed_forward import Activation
from ..positions import RoPE
from ._base import Config
from ._rules import Rule
from .bert import BERT


class RoFormer(BERT):
    """BERT with RoPE in place of the table of positions.

    Pairs are neighbours, (2c, 2c + 1), as in the paper and unlike most models since. Embeddings may be narrower than
    the layers, with a projection behind their norm. The table of sines and cosines that files have is left unread.
    Models that rotate values too (rotary_value) are refused.
    Cite: Su et al. 2021.
    """

    architectures = {"RoFormerModel": False, "RoFormerForMaskedLM": True}
    examples = tuple(
        {
            "architectures": [architecture],
            "model_type": "roformer",
            "vocab_size": 40,
            "hidden_size": 32,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "intermediate_size": 48,
            "max_position_embeddings": 64,
            **more,
        }
        for architecture, more in (
            ("RoFormerForMaskedLM", {}),
            ("RoFormerForMaskedLM", {"embedding_size": 16, "hidden_act": "relu", "layer_norm_eps": 0.1}),
            ("RoFormerModel", {"type_vocab_size": 3}),
        )
    )
    prefix = "roformer."
    ignored = (*BERT.ignored, "*encoder.embed_positions.weight")

    def build(self, config: Config, *, head: bool) -> nn.Module:
        config.only("rotary_value", False)
        config.only("is_decoder", False)
        config.only("tie_word_embeddings", True)
        width, heads = config["hidden_size"], config["num_attention_heads"]
        narrow, dropout = config.get("embedding_size", width), config.get("hidden_dropout_prob", 0.1)
        norm = partial(nn.LayerNorm, eps=config.get("layer_norm_eps", 1e-12))
        activation = config.activation("hidden_act")
        blocks = [
            Block(
                width,
                heads,
                feed_forward_dim=config["intermediate_size"],
                activation=activation,
                norm=norm,
                norm_first=False,
                dropout=dropout,
            )
            for _ in range(config["num_hidden_layers"])
        ]
        project = nn.Identity() if narrow == width else nn.Linear(narrow, width)
        stack = Stack(
            blocks,
            RoPE(width // heads, layout="interleaved"),
            entry=nn.Sequential(norm(narrow), nn.Dropout(dropout), project),
        )
        embedding = Embedding(config["vocab_size"], narrow, num_types=config.get("type_vocab_size", 2))
        turn = nn.Sequential(nn.Linear(width, narrow), Activation(activation), norm(narrow))
        return Encoder.of_parts(
            embedding,
            stack,
            Head(narrow, config["vocab_size"], tied=True, bias=True, transform=turn) if head else None,
        )

    def body(self, config: Config) -> tuple[Rule, ...]:
        return (
            *super().body(config),
            Rule("embeddings.LayerNorm", "stack.entry.0"),
            Rule("embeddings_project", "stack.entry.2"),
        )
