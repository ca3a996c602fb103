"""Position encodings: ways for attention to know where a token stands, one file for each."""

from ._base import EVIDENCE as EVIDENCE
from ._base import KINDS as KINDS
from ._base import Pair as Pair
from ._base import PositionEncoding as PositionEncoding
from ._compose import Compose as Compose
from ._naming import citation as citation
from ._naming import encoding as encoding
from ._naming import encoding_name as encoding_name
from ._properties import Properties as Properties
from ._properties import Property as Property
from .alibi import ALiBi as ALiBi
from .gopher import Gopher as Gopher
from .index import IntegerIndex as IntegerIndex
from .learned import Learned as Learned
from .nope import NoPE as NoPE
from .rope import RoPE as RoPE
from .shaw import Shaw as Shaw
from .sinusoidal import Sinusoidal as Sinusoidal
from .t5 import T5 as T5
from .transformer_xl import TransformerXL as TransformerXL
from .unit_index import UnitIndex as UnitIndex

ENCODINGS: dict[str, type[PositionEncoding]] = {
    "none": NoPE,
    "index": IntegerIndex,
    "unit-index": UnitIndex,
    "sinusoidal": Sinusoidal,
    "learned": Learned,
    "shaw": Shaw,
    "transformer-xl": TransformerXL,
    "gopher": Gopher,
    "t5": T5,
    "alibi": ALiBi,
    "rope": RoPE,
}

__all__ = [
    "ENCODINGS",
    "KINDS",
    "EVIDENCE",
    "PositionEncoding",
    "Pair",
    "encoding",
    "encoding_name",
    "citation",
    "Compose",
    "Properties",
    "Property",
    "NoPE",
    "IntegerIndex",
    "UnitIndex",
    "Sinusoidal",
    "Learned",
    "Shaw",
    "TransformerXL",
    "Gopher",
    "T5",
    "ALiBi",
    "RoPE",
]
