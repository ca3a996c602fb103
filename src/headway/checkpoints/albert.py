"""ALBERT."""

from __future__ import annotations

from functools import partial

from torch import nn

from ..models import Encoder, Stack
from ..nn import Block, Embedding
from ..positions import Learned
from ._base import SMALL, Config, Family, masked_words
from ._left_out import POOLER, Copy, Counted, Unused
from ._rules import Rule, projections


class ALBERT(Family):
    """An encoder like BERT whose layers share their parameters, with narrower embeddings.

    Layer i of L is group ⌊i·G/L⌋ of G, and each group is a sequence of one or more blocks; published models have one
    group of one block. Tokens, positions and types are embedding_size wide; a norm and a projection to hidden_size
    follow. The head for masked tokens projects back to embedding_size before the tied embeddings. The pooler and the
    head for the order of sentences are not read.

    References:
        Lan et al. 2020.
    """

    architectures = {"AlbertModel": False, "AlbertForMaskedLM": True}
    examples = tuple(
        {
            "architectures": [architecture],
            "model_type": "albert",
            **SMALL,
            "embedding_size": 16,
            "max_position_embeddings": 64,
            **groups,
        }
        for architecture, groups in (
            ("AlbertForMaskedLM", {}),
            (
                "AlbertModel",
                {"num_hidden_groups": 2, "inner_group_num": 2, "hidden_act": "relu", "layer_norm_eps": 0.1},
            ),
        )
    )
    prefix = "albert."
    ignored = {
        "*pooler.*": POOLER,
        "*position_ids": Counted(),
        "predictions.decoder.weight": Copy(),
        "predictions.decoder.bias": Copy("head.bias"),
        "sop_classifier.*": Unused("the head for the order of sentences"),
    }

    def build(self, config: Config, *, head: bool) -> nn.Module:
        config.only("position_embedding_type", "absolute")
        config.only("tie_word_embeddings", True)
        narrow, width, layers = config["embedding_size"], config["hidden_size"], config["num_hidden_layers"]
        norm = partial(nn.LayerNorm, eps=config.get("layer_norm_eps", 1e-12))
        activation = config.activation("hidden_act", "gelu_new")
        dropout = config.get("hidden_dropout_prob", 0.0)
        groups = [
            [
                Block(
                    width,
                    config["num_attention_heads"],
                    feed_forward_dim=config["intermediate_size"],
                    activation=activation,
                    norm=norm,
                    norm_first=False,
                    dropout=dropout,
                )
                for _ in range(config.get("inner_group_num", 1))
            ]
            for _ in range(config.get("num_hidden_groups", 1))
        ]
        stack = Stack(
            # in floats, as in transformers: the rounding decides the group of some layers if L is not a multiple of G
            [block for layer in range(layers) for block in groups[int(layer / (layers / len(groups)))]],
            Learned(config["max_position_embeddings"], narrow),
            entry=nn.Sequential(norm(narrow), nn.Dropout(dropout), nn.Linear(narrow, width)),
        )
        embedding = Embedding(config["vocab_size"], narrow, num_types=config.get("type_vocab_size", 2))
        return Encoder.of_parts(
            embedding,
            stack,
            masked_words(width, narrow, config["vocab_size"], activation, norm) if head else None,
        )

    def body(self, config: Config) -> tuple[Rule, ...]:
        rules = [
            Rule("embeddings.word_embeddings.weight", "embedding.weight"),
            Rule("embeddings.position_embeddings.weight", "stack.encodings.0.table"),
            Rule("embeddings.token_type_embeddings", "embedding.types"),
            Rule("embeddings.LayerNorm", "stack.entry.0"),
            Rule("encoder.embedding_hidden_mapping_in", "stack.entry.2"),
        ]
        inner = config.get("inner_group_num", 1)
        for number in range(inner * config.get("num_hidden_groups", 1)):
            layer = f"encoder.albert_layer_groups.{number // inner}.albert_layers.{number % inner}."
            block = f"stack.blocks.{number}."
            rules += [
                *projections(layer + "attention.", "query", "key", "value", "dense", block),
                Rule(layer + "attention.LayerNorm", block + "attention_norm"),
                Rule(layer + "ffn", block + "feed_forward.up_proj"),
                Rule(layer + "ffn_output", block + "feed_forward.down_proj"),
                Rule(layer + "full_layer_layer_norm", block + "feed_forward_norm"),
            ]
        return tuple(rules)

    def head(self, config: Config) -> tuple[Rule, ...]:
        return (
            Rule("predictions.dense", "head.transform.0"),
            Rule("predictions.LayerNorm", "head.transform.2"),
            Rule("predictions.bias", "head.bias"),
        )
