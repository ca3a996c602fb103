"""The contract of an encoding's hooks: what headway passes to them and expects from them, and the errors otherwise.

Calls never ask whether to check a hook. They go through the steps of ``PositionEncoding``; a class that is not
headway's own has the steps of ``CHECKED`` in their place.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from ..constants import writes
from ..coordinates import Coordinates
from ..errors import HeadwayError
from ..records import attributes
from ..terms import BIASES, TERMS, Part, Rotation, Term

Terms = tuple[Term, ...]
Input = Tensor | None
Restore = Callable[[Tensor], Tensor]

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


# ---------------------------------------------------------------- the steps, with checks


def _located(self: Any, at: Coordinates) -> Coordinates:
    before = writes((at.position, at.index))
    located = self.locate(at)
    if not isinstance(located, Coordinates):
        raise HeadwayError(
            f"{type(self).__name__}.locate returns {_shown(located)}: return "
            "dataclasses.replace(coordinates, position=…)"
        )
    _need_unwritten(self, at, before)
    if located is not at and not torch.compiler.is_compiling() and _beside(located) != _beside(at):
        raise HeadwayError(
            f"{self.known_as} changes more than positions in locate, or rebuilds the coordinates: return "
            "dataclasses.replace(coordinates, position=…)"
        )
    return located


def tables_of(self: Any, located: Coordinates) -> Any:
    before = writes((located.position, located.index))
    tables = self.tables(located)
    _need_unwritten(self, located, before)
    if tables is None or not torch.is_grad_enabled():
        return tables
    wants = any(x.requires_grad for x in _tensors(tables))
    if wants and not any(x.requires_grad for x in _tensors((located.position, located.length))):
        raise HeadwayError(
            f"a table of {self.known_as} requires a gradient, and tables outlive an update: compute with parameters in "
            "learned_tables, prepare or terms"
        )
    return tables


def _relocated(
    self: Any, q_at: Coordinates, k_at: Coordinates, q_input: Input, k_input: Input
) -> tuple[Coordinates, Coordinates]:
    given = _given(q_at, k_at, q_input, k_input)
    before = writes(given)
    sides = self.relocate(q_at, k_at, q_input, k_input)
    _need_unwritten_in_a_call(self, given, before)
    return sides


def _terms_of(self: Any, q_at: Coordinates, k_at: Coordinates, q_input: Input, k_input: Input) -> Terms:
    given = _given(q_at, k_at, q_input, k_input)
    before = writes(given)
    terms: Any = self.terms(q_at, k_at, q_input, k_input)
    if not isinstance(terms, (tuple, list)):
        name = type(terms).__name__
        example = "DistanceBias(…)"
        if isinstance(terms, Tensor):
            example = "DenseBias(tensor)"
        elif isinstance(terms, BIASES):
            example = f"DistanceBias({name}(…))"
        elif isinstance(terms, TERMS):
            example = f"{name}(…)"
        raise HeadwayError(
            f"{type(self).__name__}.terms returns {_shown(terms)}: return a tuple of terms, such as ({example},)"
        )
    _need_unwritten_in_a_call(self, given, before)
    return tuple(terms)


def _split_of(self: Any, side: str, x: Tensor, at: Coordinates) -> tuple[Tensor, Rotation | None]:
    given = [x, *_read(at)]
    before = writes(given)
    transformed, rotation = self.split(side, x, at)
    if not (isinstance(transformed, Tensor) and transformed.shape[:-1] == x.shape[:-1]):
        shown = f"shape {tuple(transformed.shape)}" if isinstance(transformed, Tensor) else _shown(transformed)
        method = "prepare_value" if side == "value" else "prepare"
        raise HeadwayError(
            f"{type(self).__name__}.{method} returns {shown} for the {side} of shape {tuple(x.shape)}: return a tensor "
            "of that shape, [batch, heads, tokens, head_dim]"
        )
    if rotation is not None:
        rotation.check(transformed)
    if side == "value":
        _need_transformed(self, "prepare_value", x, transformed, at, before)
    else:
        _need_unwritten_in_a_call(self, given, before)
    return transformed, rotation


def _split_output_of(self: Any, out: Tensor, at: Coordinates) -> tuple[Rotation | None, Restore | None]:
    before = writes([out, *_read(at)])
    rotation, rest = self.split_output(out, at)
    if rotation is not None:
        rotation.check(out)
    _need_transformed(self, "rotation", out, out, at, before)
    if rest is None:
        return rotation, None

    def restore(out: Tensor) -> Tensor:
        before = writes([out, *_read(at)])
        transformed = rest(out)
        _need_transformed(self, "restore_output", out, transformed, at, before)
        return transformed

    return rotation, restore


CHECKED: dict[str, Callable[..., Any]] = {
    one.__name__: one for one in (_located, tables_of, _relocated, _terms_of, _split_of, _split_output_of)
}
"""The steps of ``PositionEncoding`` with checks of the hooks' results and of writes into their arguments."""


def _need_unwritten(encoding: Any, at: Coordinates, before: int) -> None:
    if writes((at.position, at.index)) != before:
        raise HeadwayError(
            f"{encoding.known_as} writes into the coordinates in locate or tables: write into a clone there"
        )


def _need_unwritten_in_a_call(encoding: Any, given: list[Tensor], before: int) -> None:
    if writes(given) != before:
        raise HeadwayError(
            f"relocate, terms or prepare of {encoding.known_as} writes into its arguments (q, k, the layer's input, "
            "coordinates, tables), which now hold other numbers: write into a clone there"
        )


def _need_transformed(encoding: Any, hook: str, x: Tensor, made: Tensor, at: Coordinates, before: int) -> None:
    """Checks that a hook of values has kept shape and dtype, and has not written into its arguments."""
    if made.shape != x.shape or made.dtype != x.dtype:
        raise HeadwayError(
            f"{encoding.known_as} makes {made.dtype} of shape {tuple(made.shape)} in {hook} of {x.dtype} of shape "
            f"{tuple(x.shape)}: return the given shape and dtype"
        )
    if writes([x, *_read(at)]) != before:
        raise HeadwayError(
            f"{hook} of {encoding.known_as} writes into its arguments (values or output, coordinates, tables), "
            "which now hold other numbers: write into a clone there"
        )


def _given(q_at: Coordinates, k_at: Coordinates, q_input: Input, k_input: Input) -> list[Tensor]:
    """Returns the tensors that hooks with both sides receive and must not write into."""
    return [*_read(q_at), *_read(k_at), *(x for x in (q_input, k_input) if x is not None)]


def _read(at: Coordinates) -> list[Tensor]:
    return [at.position, at.index, *_tensors(at.tables)]


def _tensors(part: Any) -> Iterator[Tensor]:
    """Yields the tensors of tables."""
    if isinstance(part, Tensor):
        yield part
        return
    if isinstance(part, (Part, Coordinates)):
        part = attributes(part)
    for item in part.values() if isinstance(part, dict) else part if isinstance(part, (tuple, list)) else ():
        yield from _tensors(item)


def _beside(at: Coordinates) -> tuple[int, ...]:
    """Returns the identities of the fields other than the positions."""
    return id(at.index), id(at.document), id(at.length)


def _shown(value: Any) -> str:
    return "None" if value is None else f"a {type(value).__name__}"
