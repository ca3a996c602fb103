"""Modules: multi-head attention, its cache, and the block of a Transformer with its parts."""

from .attention import MultiHeadAttention as MultiHeadAttention
from .block import Block as Block
from .block import ParallelBlock as ParallelBlock
from .cache import KeyValueCache as KeyValueCache
from .cache import StackCache as StackCache
from .embedding import Embedding as Embedding
from .embedding import Head as Head
from .feed_forward import FeedForward as FeedForward
from .memory import SegmentMemory as SegmentMemory
from .norm import LayerNorm as LayerNorm
from .norm import RMSNorm as RMSNorm
from .packed import pack as pack
from .packed import unpack as unpack

__all__ = [
    "MultiHeadAttention",
    "KeyValueCache",
    "StackCache",
    "SegmentMemory",
    "FeedForward",
    "Block",
    "ParallelBlock",
    "Embedding",
    "Head",
    "pack",
    "unpack",
]
