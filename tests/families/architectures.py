"""The architectures of transformers whose attention goes through its interface."""

from __future__ import annotations

import importlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import transformers
from transformers import GenerationMixin, PreTrainedModel


@dataclass(frozen=True)
class Part:
    """A model of an architecture: the whole, or a part that has a config of its own, as a vision tower.

    Args:
        architecture: the name of its module.
        model: the name of its class.
    """

    architecture: str
    model: str
    module: str

    def load(self) -> Any:
        return getattr(importlib.import_module(self.module), self.model)


def architectures() -> dict[str, list[Part]]:
    """The models that are run of each architecture: of each config one, which generates if any does."""
    transformers.logging.set_verbosity_error()
    found: dict[str, list[Part]] = {}
    for file in sorted((Path(transformers.__file__).parent / "models").glob("*/modeling_*.py")):
        if "ALL_ATTENTION_FUNCTIONS" in file.read_text(encoding="utf-8"):
            name, module = file.stem.removeprefix("modeling_"), f"transformers.models.{file.parent.name}.{file.stem}"
            found[name] = [Part(name, chosen(models).__name__, module) for models in by_config(module).values()]
    return found


def by_config(module: str) -> dict[type, list[Any]]:
    models: dict[type, list[Any]] = {}
    for kind in vars(importlib.import_module(module)).values():
        is_model = isinstance(kind, type) and issubclass(kind, PreTrainedModel) and kind.__module__ == module
        if is_model and kind.config_class and not re.search("Pre[Tt]rainedModel$|^Pretrained", kind.__name__):
            models.setdefault(kind.config_class, []).append(kind)
    return models


def chosen(models: list[Any]) -> Any:
    generating = [kind for kind in models if issubclass(kind, GenerationMixin)]
    whole = [kind for kind in models if kind.__name__.endswith("Model")]
    return (generating or whole or models)[0]
