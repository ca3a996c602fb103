"""Which masks a model of transformers takes, and the refusal of models that do not use the attention interface."""

from __future__ import annotations

import re
import sys
from functools import wraps
from types import ModuleType
from typing import Any

from torch import nn

from ..._torch import constant_in_graphs
from ...errors import HeadwayError
from ._library import ITS_OWN, NAME

NOTHING, NUMBERS, BOOLEANS = "nothing", "numbers", "booleans"
"""The masks that a model takes: none from the interface, floats that eager adds to scores, or booleans."""

_TAKEN: dict[type, str] = {}


@constant_in_graphs
def masks_taken(config: type) -> str:
    """The kind of mask that models with this config take, as far as transformers declares it.

    NOTHING: their attention does not call the interface; some, such as Longformer, interpret a mask in their own way
    and never add it to scores. NUMBERS: they support only eager attention; they may compute with the floats that eager
    adds to scores, as DeepSeek-V4 does, or mask some of the scores themselves, as BigBird-Pegasus does.
    """
    if config not in _TAKEN:
        module = sys.modules.get(config.__module__.replace(".configuration_", ".modeling_"))
        models: list[Any] = [one for one in vars(module).values() if _is_model_of(one, module)] if module else []
        models = [one for one in models if one.config_class is config] or models
        if not models:
            _TAKEN[config] = BOOLEANS
        elif not models[0]._can_set_attn_implementation():
            _TAKEN[config] = NOTHING
        else:
            others = any(one._supports_sdpa or one._supports_flash_attn for one in models)
            _TAKEN[config] = BOOLEANS if others else NUMBERS
    return _TAKEN[config]


def _is_model_of(one: object, module: ModuleType) -> bool:
    return hasattr(one, "_can_set_attn_implementation") and getattr(one, "__module__", None) == module.__name__


def refuse_early(base: Any) -> None:
    """Makes models that do not use the interface raise HeadwayError when they are made, if headway is asked for.

    A model asks ``base`` for its implementation then. Models that ask for masks, such as BLOOM, would otherwise raise
    at the first mask. Parts of a model that never ask, such as vision towers, may run as they are. A model that looks
    up the class of its attention by name, such as GPT-J, finds an entry that raises.
    """
    inner = base.get_correct_attn_implementation
    if hasattr(inner, NAME):  # register() was called before
        return

    @wraps(inner)
    def get_correct_attn_implementation(model: Any, requested_attention: str | None, *args: Any, **kwargs: Any) -> str:
        if requested_attention == NAME:
            if _masks_scores_itself(type(model)):
                raise HeadwayError(ITS_OWN)
            for module in {kind.__module__ for kind in type(model).__mro__}:
                for name, held in vars(sys.modules[module]).items():
                    if name.endswith("ATTENTION_CLASSES") and isinstance(held, dict):
                        held.setdefault(NAME, _refuse_class)
        implementation: str = inner(model, requested_attention, *args, **kwargs)
        return implementation

    vars(get_correct_attn_implementation)[NAME] = True
    base.get_correct_attn_implementation = get_correct_attn_implementation


def _masks_scores_itself(kind: Any) -> bool:
    """Whether a model asks transformers for masks, and its attention does not call the interface."""
    asks = any(re.fullmatch("create_.*mask", name) for name in vars(sys.modules[kind.__module__]))
    return asks and not kind._can_set_attn_implementation()


def _refuse_class(*args: Any, **kwargs: Any) -> nn.Module:
    raise HeadwayError(ITS_OWN)
