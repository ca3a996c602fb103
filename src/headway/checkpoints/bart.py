"""BART, and the layers and tensor names that Whisper and Marian share with it."""

from __future__ import annotations

from typing import Any

from torch import nn

from ..models import EncoderDecoder, Stack
from ..nn import Block, Embedding, FeedForward, Head, MultiHeadAttention
from ..positions import Learned, PositionEncoding
from ._base import Config, Family
from ._left_out import Copy, Unused
from ._rules import After, AsItIs, Rule

OFFSET = 2
"""The row of the first position in the table; the rows before it, formerly for padding, are not used."""


class BART(Family):
    """An encoder and a decoder with post-norm, learned positions and shared embeddings.

    Positions: a table for each side, whose first two rows are not used; a norm follows the sum of token and position.
    Embeddings are multiplied by √width if the config says so. Logits have a bias, which is stored as [1, vocab_size].

    References:
        Lewis et al. 2020.
    """

    title = "BART"
    architectures = {"BartModel": False, "BartForConditionalGeneration": True}
    examples = tuple(
        {
            "architectures": [architecture],
            "model_type": "bart",
            "vocab_size": 40,
            "d_model": 32,
            "encoder_layers": 3,
            "encoder_attention_heads": 4,
            "encoder_ffn_dim": 48,
            "decoder_layers": 2,
            "decoder_attention_heads": 2,
            "decoder_ffn_dim": 56,
            "max_position_embeddings": 64,
            **more,
        }
        for architecture, more in (
            ("BartForConditionalGeneration", {"scale_embedding": True}),
            ("BartModel", {"activation_function": "relu"}),
        )
    )
    prefix = "model."
    aliases = {
        "hidden_size": "d_model",
        "num_attention_heads": "encoder_attention_heads",
        "num_hidden_layers": "encoder_layers",
    }
    ignored = {
        "*encoder.embed_tokens.weight": Copy(head=False),
        "*decoder.embed_tokens.weight": Copy(head=False),
        "lm_head.weight": Copy(),
        "*coder.version": Unused("the version number"),
    }

    def build(self, config: Config, *, head: bool) -> nn.Module:
        config.only("tie_word_embeddings", True)
        width, vocab_size = config["d_model"], config["vocab_size"]
        encoder, decoder = (
            stack(
                config,
                side,
                Learned(config.get("max_position_embeddings", 1024), width),
                entry=nn.LayerNorm(width),
                norm_first=False,
            )
            for side in ("encoder", "decoder")
        )
        embedding = Embedding(vocab_size, width, scale=embedding_scale(config))
        logits = Head(width, vocab_size, tied=True, bias=True) if head else None
        return EncoderDecoder.of_parts(embedding, encoder, decoder, logits)

    def body(self, config: Config) -> tuple[Rule, ...]:
        return (
            Rule("shared.weight", "embedding.weight"),
            *(
                Rule(f"{side}.embed_positions.weight", f"{side}.encodings.0.table", After(OFFSET))
                for side in ("encoder", "decoder")
            ),
            *(Rule(f"{side}.layernorm_embedding", f"{side}.entry") for side in ("encoder", "decoder")),
            *rules("encoder"),
            *rules("decoder"),
        )

    def head(self, config: Config) -> tuple[Rule, ...]:
        return (Rule("final_logits_bias", "head.bias", AsItIs(1, -1)),)


def embedding_scale(config: Config) -> float:
    """√width if the config scales embeddings, else 1."""
    return float(config["d_model"] ** 0.5) if config.get("scale_embedding", False) else 1.0


def stack(
    config: Config,
    side: str,
    encoding: PositionEncoding,
    *,
    norm_first: bool,
    bias: bool | str = True,
    dropout: float = 0.1,
    **ends: Any,
) -> Stack:
    """The layers of one side, "encoder" or "decoder", whose sizes are in the config under its name.

    ``dropout`` is used if the config has none; ``ends`` are the stack's ``entry`` and ``norm``.
    """
    width, heads = config["d_model"], config[f"{side}_attention_heads"]
    activation, dropout = config.activation("activation_function"), config.get("dropout", dropout)

    def attention() -> MultiHeadAttention:
        return MultiHeadAttention(width, heads, bias=bias, dropout=config.get("attention_dropout", 0.0))

    blocks = [
        Block(
            width,
            heads,
            norm_first=norm_first,
            dropout=dropout,
            attention=attention(),
            cross_attention=attention() if side == "decoder" else False,
            feed_forward=FeedForward(
                width, config[f"{side}_ffn_dim"], activation, dropout=config.get("activation_dropout", 0.0)
            ),
        )
        for _ in range(config[f"{side}_layers"])
    ]
    return Stack(blocks, encoding, dropout=dropout, **ends)


def rules(side: str) -> list[Rule]:
    """The rules of the layers of one side."""
    layer, block = side + ".layers.{}.", side + ".blocks.{}."
    attentions = [("self_attn", "attention")]
    if side == "decoder":
        attentions.append(("encoder_attn", "cross_attention"))
    return [
        *(
            Rule(f"{layer}{there}.{name}_proj", f"{block}{here}.{name}_proj")
            for there, here in attentions
            for name in ("q", "k", "v", "out")
        ),
        *(Rule(f"{layer}{there}_layer_norm", f"{block}{here}_norm") for there, here in attentions),
        Rule(layer + "fc1", block + "feed_forward.up_proj"),
        Rule(layer + "fc2", block + "feed_forward.down_proj"),
        Rule(layer + "final_layer_norm", block + "feed_forward_norm"),
    ]
