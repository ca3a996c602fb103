"""What headway passes to the hooks of an encoding and expects from them, and the errors for hooks that differ."""

from __future__ import annotations

import inspect
from typing import Any

from torch import Tensor

from ..coordinates import Coordinates
from ..errors import HeadwayError
from ..terms import BIASES, TERMS

CALLED = (
    *("locate", "relocate", "tables", "learned_tables", "embed", "prepare", "prepare_query", "prepare_key", "terms"),
    *("prepare_value", "restore_output", "rotation", "oracle", "oracle_weights", "oracle_value", "oracle_locate"),
    "oracle_embed",
)
"""The methods of an encoding that headway calls with all of their arguments."""


def need_arguments(kind: type, base: type) -> None:
    """Checks that each method of ``CALLED`` that a class defines takes the arguments of its base class.

    Args:
        kind: the class.
        base: the class with the arguments that headway passes.

    Raises:
        HeadwayError: if one does not.
    """
    for name in CALLED:
        method = vars(kind).get(name)
        if not inspect.isfunction(method):
            continue
        passed, taken = inspect.signature(getattr(base, name)), inspect.signature(method)
        try:
            taken.bind(*passed.parameters)
        except TypeError:
            arguments = ", ".join(
                one if parameter.default is parameter.empty else f"{one}=None"
                for one, parameter in passed.parameters.items()
            )
            raise HeadwayError(
                f"{kind.__name__}.{name} takes ({', '.join(taken.parameters)}): write def {name}({arguments})"
            ) from None


def need_terms(encoding: object, found: Any) -> None:
    """Checks that ``terms`` returned a tuple.

    Args:
        encoding: the encoding.
        found: what it returned.

    Raises:
        HeadwayError: if it did not.
    """
    if isinstance(found, (tuple, list)):
        return
    name = type(found).__name__
    example = "DistanceBias(…)"
    if isinstance(found, Tensor):
        example = "DenseBias(tensor)"
    elif isinstance(found, BIASES):
        example = f"DistanceBias({name}(…))"
    elif isinstance(found, TERMS):
        example = f"{name}(…)"
    raise HeadwayError(
        f"{type(encoding).__name__}.terms returns {_shown(found)}: return a tuple of terms, such as ({example},)"
    )


def need_prepared(encoding: object, side: str, x: Tensor, found: Any) -> None:
    """Checks that what prepares queries, keys or values returned a tensor for the same tokens.

    Args:
        encoding: the encoding.
        side: "query", "key" or "value".
        x: what it was given.
        found: what it returned.

    Raises:
        HeadwayError: if it did not.
    """
    if isinstance(found, Tensor) and found.shape[:-1] == x.shape[:-1]:
        return
    shown = f"shape {tuple(found.shape)}" if isinstance(found, Tensor) else _shown(found)
    method = "prepare_value" if side == "value" else "prepare"
    raise HeadwayError(
        f"{type(encoding).__name__}.{method} returns {shown} for the {side} of shape {tuple(x.shape)}: return a tensor "
        "of that shape, [batch, heads, tokens, head_dim]"
    )


def need_located(encoding: object, found: Any) -> None:
    """Checks that ``locate`` returned coordinates.

    Args:
        encoding: the encoding.
        found: what it returned.

    Raises:
        HeadwayError: if it did not.
    """
    if not isinstance(found, Coordinates):
        raise HeadwayError(
            f"{type(encoding).__name__}.locate returns {_shown(found)}: return dataclasses.replace(coordinates, "
            "position=…)"
        )


def _shown(found: Any) -> str:
    return "None" if found is None else f"a {type(found).__name__}"
