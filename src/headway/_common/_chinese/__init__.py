"""The Chinese texts that commands print and draw, keyed by the English template in the code."""

from __future__ import annotations

from .bench import BENCH
from .commands import COMMANDS
from .doctor import DOCTOR
from .inspect import INSPECT
from .reasons import REASONS
from .study import STUDY
from .vectors import VECTORS
from .words import WORDS

__all__ = ["CHINESE", "REASONS"]

CHINESE = WORDS | BENCH | COMMANDS | DOCTOR | INSPECT | STUDY | VECTORS
