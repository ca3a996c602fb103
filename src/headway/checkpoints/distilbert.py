"""DistilBERT."""

from __future__ import annotations

from functools import partial

from torch import nn

from ..models import Encoder, Stack
from ..nn import Block, Embedding
from ..positions import Learned
from ._base import Config, Family, masked_words
from ._left_out import Copy, Counted
from ._rules import Rule, projections


class DistilBERT(Family):
    """BERT with half the layers, without token types and without pooler.

    Positions: a table, which was initialized at random or with sinusoids. Norms have an epsilon of 1e-12.

    References:
        Sanh et al. 2019.
    """

    architectures = {"DistilBertModel": False, "DistilBertForMaskedLM": True}
    examples = tuple(
        {
            "architectures": [architecture],
            "model_type": "distilbert",
            "vocab_size": 40,
            "dim": 32,
            "n_layers": 3,
            "n_heads": 4,
            "hidden_dim": 48,
            "max_position_embeddings": 64,
            **more,
        }
        for architecture, more in (
            ("DistilBertForMaskedLM", {}),
            ("DistilBertForMaskedLM", {"activation": "relu", "sinusoidal_pos_embds": True}),
            ("DistilBertModel", {}),
        )
    )
    prefix = "distilbert."
    aliases = {
        "hidden_size": "dim",
        "num_attention_heads": "n_heads",
        "num_hidden_layers": "n_layers",
    }
    ignored = {
        "*position_ids": Counted(),
        "vocab_projector.weight": Copy(),
    }

    def build(self, config: Config, *, head: bool) -> nn.Module:
        config.only("tie_word_embeddings", True)
        width, norm, dropout = config["dim"], partial(nn.LayerNorm, eps=1e-12), config.get("dropout", 0.1)
        activation = config.activation("activation")
        blocks = [
            Block(
                width,
                config["n_heads"],
                feed_forward_dim=config["hidden_dim"],
                activation=activation,
                norm=norm,
                norm_first=False,
                dropout=dropout,
            )
            for _ in range(config["n_layers"])
        ]
        positions = Learned(config["max_position_embeddings"], width)
        stack = Stack(blocks, positions, entry=norm(width), dropout=dropout)
        return Encoder.of_parts(
            Embedding(config["vocab_size"], width),
            stack,
            masked_words(width, width, config["vocab_size"], activation, norm) if head else None,
        )

    def body(self, config: Config) -> tuple[Rule, ...]:
        layer, block = "transformer.layer.{}.", "stack.blocks.{}."
        return (
            Rule("embeddings.word_embeddings.weight", "embedding.weight"),
            Rule("embeddings.position_embeddings.weight", "stack.encodings.0.table"),
            Rule("embeddings.LayerNorm", "stack.entry"),
            *projections(layer + "attention.", "q_lin", "k_lin", "v_lin", "out_lin"),
            Rule(layer + "sa_layer_norm", block + "attention_norm"),
            Rule(layer + "ffn.lin1", block + "feed_forward.up_proj"),
            Rule(layer + "ffn.lin2", block + "feed_forward.down_proj"),
            Rule(layer + "output_layer_norm", block + "feed_forward_norm"),
        )

    def head(self, config: Config) -> tuple[Rule, ...]:
        return (
            Rule("vocab_transform", "head.transform.0"),
            Rule("vocab_layer_norm", "head.transform.2"),
            Rule("vocab_projector.bias", "head.bias"),
        )
