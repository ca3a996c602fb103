"""Finds the layers of a model whose attention a context can share."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from types import CodeType, ModuleType

from torch import nn

from ..attention import attention, attention_steps, attention_weights, attention_with_lse, varlen_attention
from ..sharing import libraries

FUNCTIONS = (attention, attention_with_lse, attention_weights, attention_steps, varlen_attention)
"""The attention functions of headway."""
FOREIGN = (
    *("scaled_dot_product_attention", "multi_head_attention_forward", "flex_attention"),
    *("flash_attn_func", "flash_attn_varlen_func", "memory_efficient_attention", "ALL_ATTENTION_FUNCTIONS"),
)
"""Those of others, by the names under which they are called."""


def unreached(model: nn.Module, without: Collection[int] = ()) -> tuple[int, list[str]]:
    """Returns how many attention layers a context reaches, and the name of each other one with the reason.

    A class may have a method ``why_not_shared``, which returns the reason why a context does not reach it, or None.

    Args:
        model: the model.
        without: the ids of modules that need not be reached.
    """
    reached, left = 0, []
    for name, module in model.named_modules():
        if id(module) in without:
            continue
        asked = getattr(module, "why_not_shared", None)
        called = _called_by(module)
        why = None if asked is None else asked()
        if why is None and called in libraries:
            asked, why = libraries[called].why_not, libraries[called].why_not(module)
        elif why is None:
            why = _mixing(module) if called is None else called
        reached += asked is not None and why is None
        if why is not None:
            left.append(f"{name or 'the model'} ({type(module).__name__}) {why}")
    return reached, left


def _mixing(module: nn.Module) -> str | None:
    """Returns how a layer mixes tokens other than by attention; None if it does not."""
    if isinstance(module, nn.RNNBase):
        return "carries a state from token to token: leave it out of the context"
    if isinstance(module, nn.Conv1d) and module.kernel_size != (1,):
        return "mixes neighbouring tokens: leave it out of the context"
    return None


def _called_by(module: nn.Module) -> str | None:
    """Returns which call of a layer a context does not share, or the name of a library; None if there is none."""
    for kind in type(module).__mro__:
        if kind is nn.Module or "why_not_shared" in vars(kind):
            return None
        if kind is nn.MultiheadAttention:
            return "is torch's own attention: call headway.integrations.torch.swap_attention(model) first"
        if kind.__module__.startswith("torch.nn.modules."):
            continue
        for member in vars(kind).values():
            function = getattr(member, "__wrapped__", member)
            code = getattr(function, "__code__", None)
            if code is not None and (called := _called(code, function.__globals__)) is not None:
                if called in libraries:
                    return called
                return f"calls {called} by itself: build it of headway.nn.MultiHeadAttention"
    return None


def _called(code: CodeType, known: dict[str, object]) -> str | None:
    """The name of an attention function that code calls, judged by the names in the code."""
    for one in _codes(code):
        names = set(one.co_names)
        for name in FOREIGN:
            if name in names:
                return name
        for name in names:
            value = known.get(name)
            if any(value is own for own in FUNCTIONS):
                return f"headway's {name}"
            if isinstance(value, ModuleType) and value.__name__ in ("headway", "headway.attention"):
                for own in FUNCTIONS:
                    if own.__name__ in names and "parallel" not in names:
                        return f"headway's {own.__name__}"
    return None


def _codes(code: CodeType) -> Iterator[CodeType]:
    """Code and that of the functions inside it."""
    yield code
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _codes(inner)
