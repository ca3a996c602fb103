"""T5, its second version (v1.1, Flan), mT5 and UMT5."""

from __future__ import annotations

from functools import partial
from typing import ClassVar

from torch import nn

from .. import positions
from ..models import Encoder, EncoderDecoder, Stack
from ..nn import Block, Embedding, Head
from ..nn.feed_forward import GATED
from ._base import Config, Family
from ._left_out import HEADS, Copy, LeftOut, Unused
from ._rules import TRANSPOSED, Rule


class T5(Family):
    """An encoder and a decoder with RMS pre-norm, no biases, and a learned scalar for each bucket of distances.

    Positions: one table for all layers of a side, which the checkpoint stores as [num_buckets, heads] in the first of
    them; UMT5 has one in each layer. Scores are not divided by √head_dim, nor in cross-attention. The first version has
    relu and a tied head, whose input is scaled by 1/√width; from v1.1 on, the feed-forward is gated, and the head is a
    matrix of its own without a scale. A config distinguishes them by "tie_word_embeddings"; files of newer transformers
    by "scale_decoder_outputs", where "tie_word_embeddings" is always true. For UMT5, transformers 5.23 scales whatever
    the config says; here a head that is not tied is not scaled, as in training.

    References:
        Raffel et al. 2020; Shazeer 2020 (v1.1); Xue et al. 2021 (mT5); Chung et al. 2023 (UMT5).
    """

    architectures = {
        f"{name}{suffix}": head
        for name in ("T5", "MT5", "UMT5")
        for suffix, head in (("Model", False), ("ForConditionalGeneration", True))
    }
    examples = tuple(
        {
            "architectures": [architecture],
            "model_type": kind,
            "vocab_size": 40,
            "d_model": 32,
            "d_kv": 12,
            "d_ff": 48,
            "num_layers": 3,
            "num_heads": 4,
            "relative_attention_num_buckets": 8,
            "relative_attention_max_distance": 9,
            "decoder_start_token_id": 0,
            **more,
        }
        for architecture, kind, more in (
            ("T5ForConditionalGeneration", "t5", {"num_decoder_layers": 2}),
            ("T5Model", "t5", {"feed_forward_proj": "gated-silu"}),
            (
                "T5ForConditionalGeneration",
                "t5",
                {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
            ),
            ("MT5ForConditionalGeneration", "mt5", {"tie_word_embeddings": False}),
            ("UMT5ForConditionalGeneration", "umt5", {"num_decoder_layers": 2}),
        )
    )
    aliases = {
        "hidden_size": "d_model",
        "num_attention_heads": "num_heads",
        "num_hidden_layers": "num_layers",
        "head_dim": "d_kv",
    }
    ignored: ClassVar[dict[str, LeftOut]] = {
        "encoder.embed_tokens.weight": Copy(head=False),
        "decoder.embed_tokens.weight": Copy(head=False),
        "*EncDecAttention.relative_attention_bias.weight": Unused("a table that no code uses"),
        "lm_head.weight": Copy(),
    }

    def build(self, config: Config, *, head: bool) -> nn.Module:
        config.only("is_encoder_decoder", True)
        embedding, encoder, decoder = _embedding(config), _stack(config), _stack(config, decoder=True)
        return EncoderDecoder.of_parts(embedding, encoder, decoder, _head(config) if head else None)

    def body(self, config: Config) -> tuple[Rule, ...]:
        return (
            Rule("shared.weight", "embedding.weight"),
            *_rules(config, "encoder", "encoder"),
            *_rules(config, "decoder", "decoder"),
        )

    def head(self, config: Config) -> tuple[Rule, ...]:
        return (Rule("lm_head.weight", "head.weight"),)


class T5Encoder(T5):
    """The encoder of T5, mT5 or UMT5, with which image generators encode prompts.

    The other tensors of a complete model are not read.
    """

    title = "T5's encoder alone"
    architectures = {f"{name}EncoderModel": False for name in ("T5", "MT5", "UMT5")}
    examples = tuple(
        {**T5.examples[0], "architectures": [f"{kind.upper()}EncoderModel"], "model_type": kind}
        for kind in ("t5", "umt5")
    )
    ignored = {
        "encoder.embed_tokens.weight": Copy(head=False),
        "decoder.*": Unused("the decoder"),
        "lm_head.weight": HEADS,
    }

    def build(self, config: Config, *, head: bool) -> nn.Module:
        return Encoder.of_parts(_embedding(config), _stack(config))

    def body(self, config: Config) -> tuple[Rule, ...]:
        return (Rule("shared.weight", "embedding.weight"), *_rules(config, "encoder", "stack"))


def _embedding(config: Config) -> Embedding:
    return Embedding(config["vocab_size"], config["d_model"])


def _head(config: Config) -> Head:
    width = config["d_model"]
    said = "scale_decoder_outputs" in config
    tied = bool(config["scale_decoder_outputs"]) if said else config.get("tie_word_embeddings", True)
    if config.get("model_type") == "mt5":  # every mT5 has an untied head, though newer files say otherwise
        tied = False
    return Head(width, config["vocab_size"], tied=tied, scale=width**-0.5 if tied else 1.0)


def _stack(config: Config, *, decoder: bool = False) -> Stack:
    width, layers = config["d_model"], config["num_layers"]
    if decoder:
        layers = config.get("num_decoder_layers", layers)
    norm, dropout = partial(nn.RMSNorm, eps=config.get("layer_norm_epsilon", 1e-6)), config.get("dropout_rate", 0.1)
    blocks = [
        Block(
            width,
            config["num_heads"],
            head_dim=config["d_kv"],
            feed_forward_dim=config["d_ff"],
            activation=_activation(config),
            norm=norm,
            bias=False,
            dropout=dropout,
            scale=1.0,
            cross_attention=decoder,
        )
        for _ in range(layers)
    ]
    tables = [
        positions.T5(
            config["num_heads"],
            config.get("relative_attention_num_buckets", 32),
            config.get("relative_attention_max_distance", 128),
            bidirectional=not decoder,
        )
        for _ in range(layers if _tables(config) else 1)
    ]
    return Stack(blocks, tables if _tables(config) else tables[0], norm=norm(width), dropout=dropout)


def _tables(config: Config) -> bool:
    """Whether each layer has a table."""
    return bool(config.get("model_type") == "umt5")


def _activation(config: Config) -> str:
    """The activation for "relu", "gated-gelu", "gated-silu" and so on; "gated-gelu" is the tanh form.

    Files of older transformers repeat its parts as dense_act_fn and is_gated_act, which precede it.
    """
    said = config.get("feed_forward_proj", "relu" if config.get("model_type", "t5") == "t5" else "gated-gelu")
    gate, _, name = said.rpartition("-")
    gated = config.get("is_gated_act", gate == "gated")
    return config.activation("dense_act_fn", "gelu_new" if said == "gated-gelu" else name, gated=gated)


def _rules(config: Config, theirs: str, ours: str) -> list[Rule]:
    """The rules of one side; the parts of a layer have numbers in the checkpoint, the feed-forward the last."""
    layer, block = theirs + ".block.{}.layer.", ours + ".blocks.{}."
    attentions = [("0.SelfAttention", "attention")]
    if theirs == "decoder":
        attentions.append(("1.EncDecAttention", "cross_attention"))
    last = f"{layer}{len(attentions)}."
    inner = [("wi_0", "gate"), ("wi_1", "up")] if _activation(config) in GATED else [("wi", "up")]
    each = "{}" if _tables(config) else "0"
    table = f"{theirs}.block.{each}.layer.0.SelfAttention.relative_attention_bias.weight"
    return [
        Rule(table, f"{ours}.encodings.{each}.table", TRANSPOSED),
        *(
            Rule(f"{layer}{there}.{letter}", f"{block}{here}.{name}_proj")
            for there, here in attentions
            for letter, name in (("q", "q"), ("k", "k"), ("v", "v"), ("o", "out"))
        ),
        *(Rule(f"{layer}{there[0]}.layer_norm", f"{block}{here}_norm") for there, here in attentions),
        *(Rule(f"{last}DenseReluDense.{name}", f"{block}feed_forward.{here}_proj") for name, here in inner),
        Rule(last + "DenseReluDense.wo", block + "feed_forward.down_proj"),
        Rule(last + "layer_norm", block + "feed_forward_norm"),
        Rule(theirs + ".final_layer_norm", ours + ".norm"),
    ]
