"""BERT and its like: MiniLM, BGE and most sentence encoders."""

from __future__ import annotations

from functools import partial
from typing import ClassVar

from torch import nn

from ..models import Encoder, Stack
from ..nn import Block, Embedding, Head
from ..nn.feed_forward import Activation
from ..positions import Learned
from ._base import Config, Family
from ._rules import Rule


class BERT(Family):
    """An encoder with the norm behind each part, learned positions and types of tokens.

    Positions: a table; a norm follows the sum of word, position and type. The head for masked words turns hidden states
    once more before the tied embeddings. The pooler is left out.
    Cite: Devlin et al. 2019.
    """

    architectures = {"BertModel": False, "BertForMaskedLM": True}
    examples = tuple(
        {
            "architectures": [architecture],
            "model_type": "bert",
            "vocab_size": 40,
            "hidden_size": 32,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "intermediate_size": 48,
            "max_position_embeddings": 64,
        }
        for architecture in ("BertForMaskedLM", "BertModel")
    )
    prefix = "bert."
    ignored: ClassVar[tuple[str, ...]] = (
        "*pooler.*",
        "*position_ids",
        "cls.predictions.decoder.*",
        "cls.seq_relationship.*",
    )

    def build(self, config: Config, *, head: bool) -> nn.Module:
        config.only("position_embedding_type", "absolute")
        config.only("is_decoder", False)
        config.only("tie_word_embeddings", True)
        width, norm = config["hidden_size"], partial(nn.LayerNorm, eps=config.get("layer_norm_eps", 1e-12))
        activation = config.activation("hidden_act")
        blocks = [
            Block(
                width,
                config["num_attention_heads"],
                feed_forward_dim=config["intermediate_size"],
                activation=activation,
                norm=norm,
                norm_first=False,
                dropout=config.get("hidden_dropout_prob", 0.1),
            )
            for _ in range(config["num_hidden_layers"])
        ]
        stack = Stack(
            blocks,
            Learned(config["max_position_embeddings"], width),
            entry=norm(width),
            dropout=config.get("hidden_dropout_prob", 0.1),
        )
        embedding = Embedding(config["vocab_size"], width, num_types=config.get("type_vocab_size", 2))
        turn = nn.Sequential(nn.Linear(width, width), Activation(activation), norm(width))
        return Encoder.of_parts(
            embedding,
            stack,
            Head(width, config["vocab_size"], tied=True, bias=True, transform=turn) if head else None,
        )

    def body(self, config: Config) -> tuple[Rule, ...]:
        layer, block = "encoder.layer.{}.", "stack.blocks.{}."
        return (
            Rule("embeddings.word_embeddings.weight", "embedding.weight"),
            Rule("embeddings.position_embeddings.weight", "stack.encodings.0.table"),
            Rule("embeddings.token_type_embeddings", "embedding.types"),
            Rule("embeddings.LayerNorm", "stack.entry"),
            Rule(layer + "attention.self.query", block + "attention.q_proj"),
            Rule(layer + "attention.self.key", block + "attention.k_proj"),
            Rule(layer + "attention.self.value", block + "attention.v_proj"),
            Rule(layer + "attention.output.dense", block + "attention.out_proj"),
            Rule(layer + "attention.output.LayerNorm", block + "attention_norm"),
            Rule(layer + "intermediate.dense", block + "feed_forward.up_proj"),
            Rule(layer + "output.dense", block + "feed_forward.down_proj"),
            Rule(layer + "output.LayerNorm", block + "feed_forward_norm"),
        )

    def head(self, config: Config) -> tuple[Rule, ...]:
        return (
            Rule("cls.predictions.transform.dense", "head.transform.0"),
            Rule("cls.predictions.transform.LayerNorm", "head.transform.2"),
            Rule("cls.predictions.bias", "head.bias"),
        )
