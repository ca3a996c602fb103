"""Compares position encodings on a text: small Transformers trained alike, and measured beyond the trained length.

The modules, in the order in which to read them: ``protocol`` fixes the settings before any result is seen;
``comparison`` runs all encodings and seeds by ``trainings``, on this machine or others (``engines``); ``run`` is one
training: ``models`` builds a model, ``train`` trains it, and ``tasks`` measure it; ``store`` keeps everything on disk;
``results`` draws the conclusions, with ``intervals`` of differences; ``charts``, ``tables`` and ``report`` show them.
"""

from .._common.progress import ProgressListener as ProgressListener
from . import engines as engines
from .comparison import DEFAULT_ENCODINGS as DEFAULT_ENCODINGS
from .comparison import compare as compare
from .protocol import FixedProtocol as FixedProtocol
from .protocol import Protocol as Protocol
from .results import ComparisonResults as ComparisonResults

__all__ = [
    "DEFAULT_ENCODINGS",
    "ComparisonResults",
    "FixedProtocol",
    "ProgressListener",
    "Protocol",
    "compare",
    "engines",
]


def __dir__() -> list[str]:
    return __all__
