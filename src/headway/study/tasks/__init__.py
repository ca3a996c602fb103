"""What the models are asked to do."""

from ._base import Task as Task
from .language_model import LanguageModel as LanguageModel
from .recall import Recall as Recall

TASKS: dict[str, type[Task]] = {
    "language_model": LanguageModel,
    "recall": Recall,
}

__all__ = ["TASKS", "LanguageModel", "Recall", "Task"]
