"""The tasks that models are trained for and measured by.

``TASKS`` is the table. A ``SequenceTask`` draws examples of symbols at any length; a language model and the recall of
cards belong to the comparison on a text.
"""

from ._base import Task as Task
from ._sequences import Examples as Examples
from ._sequences import SequenceTask as SequenceTask
from ._sequences import continued as continued
from ._table import SEQUENCE_TASKS as SEQUENCE_TASKS
from ._table import TASKS as TASKS
from ._table import sequence_task as sequence_task
from .language_model import LanguageModel as LanguageModel
from .recall import Recall as Recall

__all__ = [
    "SEQUENCE_TASKS",
    "TASKS",
    "Examples",
    "LanguageModel",
    "Recall",
    "SequenceTask",
    "Task",
    "continued",
    "sequence_task",
]
