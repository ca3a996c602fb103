"""Modules: multi-head attention with its caches, and the block of a Transformer with its parts."""

from ..kernels._products import linear_kernel as linear_kernel
from .attention import MultiHeadAttention as MultiHeadAttention
from .block import Block as Block
from .block import ParallelBlock as ParallelBlock
from .cache import KeyValueCache as KeyValueCache
from .cross_layer import CrossLayerAttention as CrossLayerAttention
from .embedding import Embedding as Embedding
from .embedding import Head as Head
from .feed_forward import FeedForward as FeedForward
from .latent import LatentAttention as LatentAttention
from .memory import SegmentMemory as SegmentMemory
from .norm import LayerNorm as LayerNorm
from .norm import RMSNorm as RMSNorm
from .parts import PARTS as PARTS
from .parts import DifferentialAttention as DifferentialAttention
from .parts import ElementGate as ElementGate
from .parts import ExclusiveSelfAttention as ExclusiveSelfAttention
from .parts import FirstValues as FirstValues
from .parts import HeadGate as HeadGate
from .parts import LayerSizes as LayerSizes
from .parts import Part as Part
from .parts import ValueResidual as ValueResidual
from .prepacked import prepack as prepack
from .prepacked import unprepack as unprepack
from .stack_cache import StackCache as StackCache

__all__ = [
    "MultiHeadAttention",
    "LatentAttention",
    "CrossLayerAttention",
    "KeyValueCache",
    "StackCache",
    "SegmentMemory",
    "FeedForward",
    "Block",
    "ParallelBlock",
    "Embedding",
    "Head",
    "PARTS",
    "Part",
    "LayerSizes",
    "FirstValues",
    "HeadGate",
    "ElementGate",
    "ExclusiveSelfAttention",
    "ValueResidual",
    "DifferentialAttention",
    "linear_kernel",
    "prepack",
    "unprepack",
]


def __dir__() -> list[str]:
    return __all__
