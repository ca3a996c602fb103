"""Which position encoding serves a text: small Transformers trained alike, measured beyond their length.

The way of a comparison, which is also the order in which to read: ``protocol`` fixes what is done before any
result is seen; ``comparison`` goes through encodings and seeds; ``models`` builds, ``train`` trains, ``tasks``
measure; ``store`` keeps everything on disk; ``results`` says what may be concluded; ``charts`` and ``report``
show it.
"""

from .comparison import DEFAULT_ENCODINGS as DEFAULT_ENCODINGS
from .comparison import compare as compare
from .protocol import Protocol as Protocol
from .results import Results as Results
from .watch import Watch as Watch

__all__ = ["DEFAULT_ENCODINGS", "Protocol", "Results", "Watch", "compare"]
