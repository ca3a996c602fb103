"""Published models as models of headway. Each family has one file, which reads its config and names its tensors."""

from ._base import Config as Config
from ._base import Family as Family
from ._conversation import conversation as conversation
from ._conversation import stop_ids as stop_ids
from ._files import unpickle as unpickle
from ._load import Checkpoint as Checkpoint
from ._load import load as load
from ._load import save as save
from ._table import *  # noqa: F403 (the class of each family)
from ._table import ARCHITECTURES as ARCHITECTURES
from ._table import FAMILIES as FAMILIES
from ._tokenizer import tokenizer as tokenizer
from .whisper import log_mel as log_mel

__all__ = [
    "load",
    "save",
    "unpickle",
    "tokenizer",
    "conversation",
    "stop_ids",
    "log_mel",
    "FAMILIES",
    "ARCHITECTURES",
    "Family",
    "Config",
    "Checkpoint",
]


def __dir__() -> list[str]:
    return __all__
