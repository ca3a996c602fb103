"""DeBERTa v2 and v3."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, ClassVar

from torch import nn

from .. import positions
from ..models import Encoder, Stack
from ..nn import Block, Embedding, MultiHeadAttention
from ._base import Config, Family, masked_words
from ._left_out import HEADS, POOLER, Counted, Unused
from ._rules import Rule

SMALL: dict[str, Any] = {
    "vocab_size": 40,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
    "relative_attention": True,
    "pos_att_type": ["c2p", "p2c"],
}
V3: dict[str, Any] = {
    **SMALL,
    "model_type": "deberta-v2",
    "position_buckets": 8,
    "norm_rel_ebd": "layer_norm",
    "share_att_key": True,
    "position_biased_input": False,
}


class DeBERTaV2(Family):
    """An encoder with post-norm, whose scores include content-to-position and position-to-content products.

    Positions: one table of distances for all layers, with a norm. Each layer projects it by its projections of queries
    and keys (share_att_key) or by two more. With ``position_buckets``, far distances share rows, and distances
    are clamped to max_relative_positions − 1; transformers maps keys further ahead to a row that is never trained. The
    head for masked tokens is called cls by transformers and lm_predictions in the authors' files ("legacy": false in
    the config); both compute the same. The convolution of the two largest v2 models is not supported.

    References:
        He et al. 2021; He et al. 2023 (v3).
    """

    architectures = {"DebertaV2Model": False, "DebertaV2ForMaskedLM": True}
    examples: ClassVar[tuple[dict[str, Any], ...]] = (
        {**V3, "architectures": ["DebertaV2ForMaskedLM"], "max_relative_positions": 16},
        {**V3, "architectures": ["DebertaV2Model"], "max_position_embeddings": 16, "share_att_key": False},
        {
            **V3,
            "architectures": ["DebertaV2ForMaskedLM"],
            "legacy": False,
            "type_vocab_size": 2,
            "norm_rel_ebd": "none",
        },
        {**SMALL, "model_type": "deberta-v2", "architectures": ["DebertaV2Model"], "max_relative_positions": 4}
        | {"pos_att_type": "p2c"},
    )
    prefix = "deberta."
    ignored = {
        "cls.*": HEADS,
        "lm_predictions.*": HEADS,
        "mask_predictions.*": HEADS,
        "*pooler.*": POOLER,
        "*position_ids": Counted(),
        "*position_embeddings*": Unused("the decoder for masked tokens"),
    }

    biases: bool | str = True
    """The projections of a layer that have a bias."""

    def build(self, config: Config, *, head: bool) -> nn.Module:
        width, heads = config["hidden_size"], config["num_attention_heads"]
        config.only("relative_attention", True)
        config.only("conv_kernel_size", 0)
        config.only("attention_head_size", width // heads)
        config.only("embedding_size", width)
        config.only("talking_head", False)
        norm = partial(nn.LayerNorm, eps=config.get("layer_norm_eps", 1e-7))
        activation, dropout = config.activation("hidden_act"), config.get("hidden_dropout_prob", 0.1)
        weights_dropout = config.get("attention_probs_dropout_prob", 0.1)
        attentions = [
            MultiHeadAttention(width, heads, bias=self.biases, dropout=weights_dropout)
            for _ in range(config["num_hidden_layers"])
        ]
        blocks = [
            Block(
                width,
                heads,
                feed_forward_dim=config["intermediate_size"],
                activation=activation,
                norm=norm,
                norm_first=False,
                dropout=dropout,
                attention=attention,
            )
            for attention in attentions
        ]
        relative = [self.encoding(config, attention) for attention in attentions]
        table_norm = norm(width)
        for encoding in relative:
            encoding.table = relative[0].table
            encoding.table_norm = None if encoding.table_norm is None else table_norm
        encodings: list[positions.PositionEncoding] = [*relative]
        if config.get("position_biased_input", True):
            encodings[0] = positions.Compose(positions.Learned(config["max_position_embeddings"], width), encodings[0])
        stack = Stack(blocks, encodings, entry=norm(width), dropout=dropout)
        embedding = Embedding(config["vocab_size"], width, num_types=config.get("type_vocab_size", 0))
        logits = masked_words(width, width, config["vocab_size"], activation, norm) if head else None
        return Encoder.of_parts(embedding, stack, logits)

    def encoding(self, config: Config, attention: MultiHeadAttention) -> positions.DeBERTa:
        """The position encoding of the layer with this attention."""
        count = config.get("position_buckets", -1)
        normed = "layer_norm" in config.get("norm_rel_ebd", "none").lower()
        encoding = relative(config, num_buckets=count, buckets="log" if count > 0 else "clip", norm=normed)
        shared, width = config.get("share_att_key", False), encoding.embed_dim
        if "c2p" in encoding.parts:
            encoding.key = attention.k_proj if shared else nn.Linear(width, width)
        if "p2c" in encoding.parts and shared:
            encoding.query = attention.q_proj
        return encoding

    def body(self, config: Config) -> tuple[Rule, ...]:
        layer, block = "encoder.layer.{}.", "stack.blocks.{}."
        return (
            Rule("embeddings.word_embeddings.weight", "embedding.weight"),
            Rule("embeddings.position_embeddings.weight", "stack.encodings.0.parts.0.table"),
            Rule("embeddings.token_type_embeddings", "embedding.types"),
            Rule("embeddings.LayerNorm", "stack.entry"),
            *self.projections(layer + "attention.self.", config),
            Rule(layer + "attention.output.dense", block + "attention.out_proj"),
            Rule(layer + "attention.output.LayerNorm", block + "attention_norm"),
            Rule(layer + "intermediate.dense", block + "feed_forward.up_proj"),
            Rule(layer + "output.dense", block + "feed_forward.down_proj"),
            Rule(layer + "output.LayerNorm", block + "feed_forward_norm"),
            # all layers share the first layer's table; if there are absolute positions, it comes after them
            Rule("encoder.rel_embeddings.weight", "stack.encodings.0.table"),
            Rule("encoder.rel_embeddings.weight", "stack.encodings.0.parts.1.table"),
            Rule("encoder.LayerNorm", "stack.encodings.0.table_norm"),
            Rule("encoder.LayerNorm", "stack.encodings.0.parts.1.table_norm"),
        )

    def projections(self, layer: str, config: Config) -> tuple[Rule, ...]:
        """The rules of a layer's projections of tokens and of distances."""
        attention, shared = "stack.blocks.{}.attention.", config.get("share_att_key", False)
        return (
            *(() if shared else of_distances(layer, key="pos_key_proj", query="pos_query_proj")),
            Rule(layer + "query_proj", attention + "q_proj"),
            Rule(layer + "key_proj", attention + "k_proj"),
            Rule(layer + "value_proj", attention + "v_proj"),
        )

    def head(self, config: Config) -> tuple[Rule, ...]:
        legacy = config.get("legacy", True)
        before, turn = ("cls.predictions.", "transform.") if legacy else ("lm_predictions.lm_head.", "")
        return (
            Rule(before + turn + "dense", "head.transform.0"),
            Rule(before + turn + "LayerNorm", "head.transform.2"),
            Rule(before + "bias", "head.bias"),
        )


def relative(config: Config, **options: Any) -> positions.DeBERTa:
    """The encoding of a config, for v1 and later versions."""
    width, heads, reach = config["hidden_size"], config["num_attention_heads"], config.get("max_relative_positions", -1)
    parts = config["pos_att_type"]
    parts = [part.strip() for part in parts.lower().split("|")] if isinstance(parts, str) else parts
    reach = reach if reach > 0 else config["max_position_embeddings"]
    return positions.DeBERTa(width, heads, width // heads, max_distance=reach, parts=tuple(parts), **options)


def of_distances(layer: str, key: str, query: str) -> Iterator[Rule]:
    """The rules of a layer's projections of distances."""
    for encoding in ("stack.encodings.{}.", "stack.encodings.{}.parts.1."):
        yield Rule(layer + key, encoding + "key")
        yield Rule(layer + query, encoding + "query")
