"""Attention masks: which keys each query may attend to.

``&`` and ``|`` join masks. A mask is defined by ``allowed``, which returns a boolean tensor for some queries and keys.
Most masks also have an ``interval`` of key slots for each query, which lets kernels skip keys that no query attends to.
The masks here read the ``index`` of the tokens, which is their order in the stream, never their positions.

Every ``mask`` argument also takes a boolean tensor, a name ("causal", "documents", "padding"), a function of
FlexAttention, (b, h, q_idx, kv_idx), or a BlockMask.
"""

from ._base import Bound as Bound
from ._base import Bounds as Bounds
from ._base import Mask as Mask
from ._base import Slot as Slot
from ._by_index import Causal as Causal
from ._by_index import Chunked as Chunked
from ._by_index import Dilated as Dilated
from ._by_index import KeepFirst as KeepFirst
from ._by_index import Prefix as Prefix
from ._by_index import Window as Window
from ._by_index import sliding_window as sliding_window
from ._documents import Documents as Documents
from ._facts import is_python as is_python
from ._facts import looks_ahead as looks_ahead
from ._functions import BlockFunction as BlockFunction
from ._functions import Function as Function
from ._functions import MaskMod as MaskMod
from ._functions import from_flex as from_flex
from ._joined import And as And
from ._joined import Or as Or
from ._joined import conjuncts as conjuncts
from ._joined import parts_of as parts_of
from ._named import NAMES as NAMES
from ._named import AnyMask as AnyMask
from ._named import as_mask as as_mask
from ._named import mask_or_tensor as mask_or_tensor
from ._padding import Padding as Padding
from ._padding import hiding_padding as hiding_padding
from ._padding import real_stop as real_stop
from ._tensors import Bits as Bits
from ._tensors import Boolean as Boolean
from ._tensors import Interval as Interval

__all__ = [
    "Mask",
    "Causal",
    "Window",
    "sliding_window",
    "Chunked",
    "Prefix",
    "KeepFirst",
    "Dilated",
    "Documents",
    "Padding",
    "Boolean",
    "Function",
    "BlockFunction",
    "Interval",
    "Bits",
    "And",
    "Or",
    "Slot",
    "Bound",
    "Bounds",
    "AnyMask",
    "as_mask",
    "conjuncts",
    "from_flex",
    "hiding_padding",
    "is_python",
    "looks_ahead",
    "parts_of",
    "real_stop",
]


def __dir__() -> list[str]:
    return __all__
