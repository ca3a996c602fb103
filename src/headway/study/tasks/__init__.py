"""The tasks that models are trained for and measured by."""

from ._base import Task as Task
from .language_model import LanguageModel as LanguageModel
from .recall import Recall as Recall

__all__ = ["LanguageModel", "Recall", "Task"]
