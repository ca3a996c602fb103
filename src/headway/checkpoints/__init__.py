"""Published models as headway's own: one file for each family, with its config and the names of its tensors."""

from ._base import Config as Config
from ._base import Family as Family
from ._files import unpickle as unpickle
from ._load import Checkpoint as Checkpoint
from ._load import load as load
from ._load import save as save
from .bert import BERT as BERT
from .gpt2 import GPT2 as GPT2
from .llama import LLaMA as LLaMA

FAMILIES: dict[str, type[Family]] = {
    "bert": BERT,
    "gpt2": GPT2,
    "llama": LLaMA,
}
"""By name; each file of this folder is one."""

ARCHITECTURES: dict[str, type[Family]] = {
    architecture: family for family in FAMILIES.values() for architecture in family.architectures
}
"""What a config.json has under "architectures", and the family that reads it."""

__all__ = [
    "load",
    "save",
    "unpickle",
    "FAMILIES",
    "ARCHITECTURES",
    "Family",
    "Config",
    "Checkpoint",
]
