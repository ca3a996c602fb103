"""Marian: OPUS-MT's models, each for translation from one language to another."""

from __future__ import annotations

from torch import nn

from ..models import EncoderDecoder
from ..nn import Embedding, Head
from ..positions import Sinusoidal
from ._base import Config, Family
from ._left_out import Copy, Sines
from ._rules import AsItIs, Rule
from .bart import BART, embedding_scale, rules, stack


class Marian(Family):
    """An encoder and a decoder with post-norm and sinusoidal positions, like the first Transformer.

    Positions are computed for any length, from 0 on: sines in the first half of the width and cosines in the second, as
    in tensor2tensor, but with the paper's frequencies ω_c = 10000^(−2c/width). Files may contain a table of them, which
    is not read. Embeddings are multiplied by √width. Both languages share them unless the config says otherwise. Logits
    have a bias, stored as [1, vocab_size]. A translation begins with the id of padding.

    References:
        Junczys-Dowmunt et al. 2018; Tiedemann and Thottingal 2020 (OPUS-MT).
    """

    architectures = {"MarianModel": False, "MarianMTModel": True}
    examples = tuple(
        {
            "architectures": [architecture],
            "model_type": "marian",
            "vocab_size": 40,
            "d_model": 32,
            "encoder_layers": 3,
            "encoder_attention_heads": 4,
            "encoder_ffn_dim": 48,
            "decoder_layers": 2,
            "decoder_attention_heads": 2,
            "decoder_ffn_dim": 56,
            "max_position_embeddings": 64,
            "pad_token_id": 0,
            "decoder_start_token_id": 0,
            "eos_token_id": 1,
            **more,
        }
        for architecture, more in (
            ("MarianMTModel", {"scale_embedding": True, "activation_function": "swish"}),
            ("MarianMTModel", {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 44}),
            ("MarianModel", {"activation_function": "relu"}),
        )
    )
    prefix = "model."
    aliases = BART.aliases
    ignored = {
        "*.embed_positions.weight": Sines(),
        "*encoder.embed_tokens.weight": Copy(head=False),
        "*decoder.embed_tokens.weight": Copy(head=False),
        "lm_head.weight": Copy(),
    }

    def build(self, config: Config, *, head: bool) -> nn.Module:
        config.only("tie_word_embeddings", True)
        width, scale = config["d_model"], embedding_scale(config)
        encoder, decoder = (stack(config, side, _sinusoids(width), norm_first=False) for side in ("encoder", "decoder"))
        source, target = config["vocab_size"], config["vocab_size"]
        if not _shared(config):
            target = config.get("decoder_vocab_size", source)
        return EncoderDecoder.of_parts(
            Embedding(target, width, scale=scale),
            encoder,
            decoder,
            Head(width, target, tied=True, bias=True) if head else None,
            source_embedding=None if _shared(config) else Embedding(source, width, scale=scale),
        )

    def body(self, config: Config) -> tuple[Rule, ...]:
        embeddings = [Rule("shared.weight", "embedding.weight")]
        if not _shared(config):
            embeddings = [
                Rule("encoder.embed_tokens.weight", "source_embedding.weight"),
                Rule("decoder.embed_tokens.weight", "embedding.weight"),
            ]
        return (*embeddings, *rules("encoder"), *rules("decoder"))

    def head(self, config: Config) -> tuple[Rule, ...]:
        return (Rule("final_logits_bias", "head.bias", AsItIs(1, -1)),)


def _shared(config: Config) -> bool:
    """Whether both languages share their embeddings."""
    return bool(config.get("share_encoder_decoder_embeddings", True))


def _sinusoids(width: int) -> Sinusoidal:
    # tensor2tensor's last wavelength is 2π·base, the paper's is one step shorter
    return Sinusoidal(width, base=10000.0 ** ((width - 2) / width), variant="tensor2tensor")
