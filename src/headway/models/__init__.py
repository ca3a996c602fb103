"""Whole models: the Transformer as encoder, as decoder and as both, and a recurrent baseline."""

from ._generated import Generated as Generated
from .config import TransformerConfig as TransformerConfig
from .generate import Step as Step
from .generate import generate as generate
from .generate import probabilities as probabilities
from .generate import stream as stream
from .recurrent import RecurrentLM as RecurrentLM
from .stack import Stack as Stack
from .transformer import Decoder as Decoder
from .transformer import Encoder as Encoder
from .transformer import EncoderDecoder as EncoderDecoder
from .transformer import Transformer as Transformer

__all__ = [
    "TransformerConfig",
    "Transformer",
    "Encoder",
    "Decoder",
    "EncoderDecoder",
    "Stack",
    "generate",
    "stream",
    "probabilities",
    "Generated",
    "Step",
    "RecurrentLM",
]


def __dir__() -> list[str]:
    return __all__
