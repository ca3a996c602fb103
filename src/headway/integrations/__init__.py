"""headway's attention inside the models of other libraries; each module is named after its library."""

from . import torch as torch
from . import transformers as transformers

__all__ = ["torch", "transformers"]


def __dir__() -> list[str]:
    return __all__
