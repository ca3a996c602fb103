"""BERT and related models: MiniLM, BGE and most sentence encoders."""

from __future__ import annotations

from functools import partial
from typing import ClassVar

from torch import nn

from ..models import Encoder, Stack
from ..nn import Block, Embedding
from ..positions import Learned, PositionEncoding
from ._base import SMALL, Config, Family, masked_words
from ._left_out import POOLER, Copy, Counted, LeftOut, Unused
from ._rules import Rule, projections


class BERT(Family):
    """An encoder with post-norm, learned positions and token types.

    Positions: a table; a norm follows the sum of token, position and type. The head for masked tokens transforms hidden
    states before the tied embeddings. The pooler is not read.

    References:
        Devlin et al. 2019.
    """

    architectures = {"BertModel": False, "BertForMaskedLM": True}
    examples = tuple(
        {
            "architectures": [architecture],
            "model_type": "bert",
            **SMALL,
            "max_position_embeddings": 64,
        }
        for architecture in ("BertForMaskedLM", "BertModel")
    )
    head_activation: ClassVar[str | None] = None
    """The activation of the head; that of the layers if None."""
    prefix = "bert."
    ignored: ClassVar[dict[str, LeftOut]] = {
        "*pooler.*": POOLER,
        "*position_ids": Counted(),
        "cls.predictions.decoder.weight": Copy(),
        "cls.predictions.decoder.bias": Copy("head.bias"),
        "cls.seq_relationship.*": Unused("the head for the next sentence"),
    }

    def build(self, config: Config, *, head: bool) -> nn.Module:
        config.only("position_embedding_type", "absolute")
        config.only("is_decoder", False)
        config.only("tie_word_embeddings", True)
        width, heads, narrow = config["hidden_size"], config["num_attention_heads"], self.embedding_width(config)
        norm = partial(nn.LayerNorm, eps=config.get("layer_norm_eps", 1e-12))
        activation, dropout = config.activation("hidden_act"), config.get("hidden_dropout_prob", 0.1)
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
        entry = nn.Sequential(norm(narrow), nn.Dropout(dropout), project)
        stack = Stack(blocks, self.encoding(config), entry=entry)
        embedding = Embedding(config["vocab_size"], narrow, num_types=config.get("type_vocab_size", 2))
        turned_by = self.head_activation or activation
        logits = masked_words(width, narrow, config["vocab_size"], turned_by, norm) if head else None
        return Encoder.of_parts(embedding, stack, logits)

    def embedding_width(self, config: Config) -> int:
        """The width of the embeddings, which are projected if the layers have another width."""
        width: int = config["hidden_size"]
        return width

    def encoding(self, config: Config) -> PositionEncoding:
        """The position encoding of all layers."""
        return Learned(config["max_position_embeddings"], self.embedding_width(config))

    def body(self, config: Config) -> tuple[Rule, ...]:
        layer, block = "encoder.layer.{}.", "stack.blocks.{}."
        return (
            Rule("embeddings.word_embeddings.weight", "embedding.weight"),
            Rule("embeddings.position_embeddings.weight", "stack.encodings.0.table"),
            Rule("embeddings.token_type_embeddings", "embedding.types"),
            Rule("embeddings.LayerNorm", "stack.entry.0"),
            Rule("embeddings_project", "stack.entry.2"),
            *projections(layer + "attention.", "self.query", "self.key", "self.value", "output.dense"),
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
