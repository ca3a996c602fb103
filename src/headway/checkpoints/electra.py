"""ELECTRA."""

from __future__ import annotations

from functools import partial

from torch import nn

from ..models import Encoder, Stack
from ..nn import Block, Embedding, Head
from ..nn.feed_forward import Activation
from ..positions import Learned
from ._base import Config
from ._rules import Rule
from .bert import BERT


class ELECTRA(BERT):
    """BERT, the embeddings of which may be narrower than its layers, with a projection behind their norm.

    Generators have a head for masked words, with a gelu whatever the layers have; discriminators, whose config names
    ElectraForPreTraining, are read with architecture="ElectraModel".
    Cite: Clark et al. 2020.
    """

    architectures = {"ElectraModel": False, "ElectraForMaskedLM": True}
    examples = tuple(
        {
            "architectures": [architecture],
            "model_type": "electra",
            "vocab_size": 40,
            "hidden_size": 32,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "intermediate_size": 48,
            "max_position_embeddings": 64,
            **more,
        }
        for architecture, more in (
            ("ElectraForMaskedLM", {"embedding_size": 16, "hidden_act": "relu", "layer_norm_eps": 0.1}),
            ("ElectraForMaskedLM", {"embedding_size": 32}),
            ("ElectraModel", {}),
        )
    )
    prefix = "electra."
    ignored = ("*position_ids", "generator_lm_head.weight", "discriminator_predictions.*")

    def build(self, config: Config, *, head: bool) -> nn.Module:
        config.only("position_embedding_type", "absolute")
        config.only("is_decoder", False)
        config.only("tie_word_embeddings", True)
        narrow, width = config.get("embedding_size", 128), config["hidden_size"]
        dropout = config.get("hidden_dropout_prob", 0.1)
        norm = partial(nn.LayerNorm, eps=config.get("layer_norm_eps", 1e-12))
        blocks = [
            Block(
                width,
                config["num_attention_heads"],
                feed_forward_dim=config["intermediate_size"],
                activation=config.activation("hidden_act"),
                norm=norm,
                norm_first=False,
                dropout=dropout,
            )
            for _ in range(config["num_hidden_layers"])
        ]
        project = nn.Identity() if narrow == width else nn.Linear(narrow, width)
        stack = Stack(
            blocks,
            Learned(config["max_position_embeddings"], narrow),
            entry=nn.Sequential(norm(narrow), nn.Dropout(dropout), project),
        )
        embedding = Embedding(config["vocab_size"], narrow, num_types=config.get("type_vocab_size", 2))
        turn = nn.Sequential(nn.Linear(width, narrow), Activation("gelu"), norm(narrow))
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

    def head(self, config: Config) -> tuple[Rule, ...]:
        return (
            Rule("generator_predictions.dense", "head.transform.0"),
            Rule("generator_predictions.LayerNorm", "head.transform.2"),
            Rule("generator_lm_head.bias", "head.bias"),
        )
