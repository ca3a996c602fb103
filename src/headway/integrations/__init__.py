"""headway inside other people's models: each file is named after the library it serves."""

from . import torch as torch
from . import transformers as transformers

__all__ = ["torch", "transformers"]
