"""The table of tasks, and how one is found by its name."""

from __future__ import annotations

import re
from pathlib import Path

from ..._common.own_files import module_of_file
from ...errors import HeadwayError, unknown
from ._base import Task
from ._sequences import SequenceTask
from .addition import Addition
from .associative_recall import AssociativeRecall
from .copy import Copy
from .dyck_depth import DyckDepth
from .indirect_indexing import IndirectIndexing
from .induction import Induction
from .language_model import LanguageModel
from .majority import Majority
from .marked_addition import MarkedAddition
from .modular_counting import ModularCounting
from .parity import Parity
from .recall import Recall
from .repeat_copy import RepeatCopy
from .retrieval import Retrieval
from .reverse import Reverse
from .sort import Sort
from .token_count import TokenCount

TASKS: dict[str, type[Task]] = {
    "copy": Copy,
    "reverse": Reverse,
    "repeat-copy": RepeatCopy,
    "sort": Sort,
    "addition": Addition,
    "marked-addition": MarkedAddition,
    "parity": Parity,
    "majority": Majority,
    "modular-counting": ModularCounting,
    "token-count": TokenCount,
    "associative-recall": AssociativeRecall,
    "retrieval": Retrieval,
    "induction": Induction,
    "indirect-indexing": IndirectIndexing,
    "dyck-depth": DyckDepth,
    "language_model": LanguageModel,
    "recall": Recall,
}
"""All tasks by name. Those that are no ``SequenceTask`` belong to the comparison on a text."""
SEQUENCE_TASKS: dict[str, type[SequenceTask]] = {
    name: task for name, task in TASKS.items() if issubclass(task, SequenceTask)
}
"""The tasks of symbols by name."""


def sequence_task(spec: str) -> SequenceTask:
    """Returns a task of symbols by its name, or one of a file's own, as path.py:Class.

    Args:
        spec: the name, or the path of a file with the name of a class in it that is derived from ``SequenceTask``.

    Raises:
        HeadwayError: if there is no task of that name.
    """
    own = re.fullmatch(r"(.+\.py):(\w+)", spec)
    if own is None:
        if spec not in SEQUENCE_TASKS:
            raise unknown("task", spec, SEQUENCE_TASKS)
        return SEQUENCE_TASKS[spec]()
    found = getattr(module_of_file(Path(own[1])), own[2], None)
    if not (isinstance(found, type) and issubclass(found, SequenceTask)):
        raise HeadwayError(
            f"{own[1]} has no class {own[2]} derived from headway.study.tasks.SequenceTask: give the name of one"
        )
    return found()
