"""Position encodings, one file for each, and functions that build them by name."""

from types import ModuleType as _ModuleType

from ._base import EVIDENCE as EVIDENCE
from ._base import KINDS as KINDS
from ._base import Pair as Pair
from ._base import PositionEncoding as PositionEncoding
from ._compose import Compose as Compose
from ._graph import graph_positions as graph_positions
from ._huggingface import from_rope_parameters as from_rope_parameters
from ._huggingface import to_rope_parameters as to_rope_parameters
from ._multimodal import multimodal_positions as multimodal_positions
from ._naming import citation as citation
from ._naming import encoding as encoding
from ._naming import encoding_name as encoding_name
from ._properties import Properties as Properties
from ._properties import Property as Property
from ._recipes import RECIPES as RECIPES
from ._recipes import Recipe as Recipe
from ._recipes import drop_positions as drop_positions
from ._table import *  # noqa: F403 (the class of each encoding)
from ._table import ENCODINGS as ENCODINGS

# for `from headway.positions import *`; not assigned to plainly, since type checkers would take it for the whole list
globals()["__all__"] = [
    name for name, thing in globals().items() if not (name.startswith("_") or isinstance(thing, _ModuleType))
]


def __dir__() -> list[str]:
    return globals()["__all__"]
