"""Whole models: the Transformer as encoder, as decoder and as both, and a recurrent baseline."""

from .config import TransformerConfig as TransformerConfig
from .recurrent import RecurrentLM as RecurrentLM
from .transformer import Decoder as Decoder
from .transformer import Encoder as Encoder
from .transformer import EncoderDecoder as EncoderDecoder
from .transformer import Stack as Stack
from .transformer import Transformer as Transformer

__all__ = [
    "TransformerConfig",
    "Transformer",
    "Encoder",
    "Decoder",
    "EncoderDecoder",
    "Stack",
    "RecurrentLM",
]
