"""Checks once that each Python function in terms is pure: the backward pass runs it again."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from .._torch import dispatch_modes, is_mapped
from ..errors import HeadwayError
from ..terms import DenseBias, Normalizer, Product, ScoreMap, Term
from . import _ops
from ._problem import Call

FUNCTIONS = frozenset({DenseBias, Product, ScoreMap, Normalizer})
"""The terms that may hold a function."""

_pure: dict[int, weakref.ref[Any]] = {}
"""Weak references to the functions that have been found pure, by id."""


def _function_of(term: Term) -> Callable[..., Tensor] | None:
    held = getattr(term, "function", getattr(term, "values", None)) if type(term) in FUNCTIONS else None
    return held if callable(held) else None


def try_functions(call: Call, run_last_row: Callable[[Call], Tensor]) -> None:
    """Runs the functions of the terms for one row, on detached tensors, and raises HeadwayError if they are not pure.

    A captured tensor that requires a gradient would not get one. A function that draws random numbers, keeps state or
    writes into its arguments would return another result when the backward pass runs it again.

    run_last_row: returns the output of the last query of a call.
    """
    tensors: list[Tensor] = []
    call = _ops.unflatten(_ops.flatten(call, tensors), [x.detach() for x in tensors])
    python = [term for term in call.terms if not _ops.is_plain(_ops.flatten(term, []))]
    n, real = call.q.shape[2], _is_real(call.q) and not any(map(is_mapped, tensors))
    if not python or not n or not call.k.shape[2]:
        return
    names = ", ".join(type(term).__name__ for term in python)
    drawn = _random_state(call) if real else []
    with torch.enable_grad():
        tried = call._with(terms=tuple(map(_tried, call.terms))) if real else call
        out = run_last_row(tried)
    if out.requires_grad:
        raise HeadwayError(
            f"a function of {names} captures a tensor that requires a gradient: pass the tensor in the term's "
            "tensors=(…) and take it as an argument; a class of your own holds it as an attribute"
        )
    if not real:
        return
    if not all(map(torch.equal, drawn, _random_state(call))):
        raise HeadwayError(
            f"a function of {names} draws random numbers, but the backward pass runs it again: draw outside and "
            "pass the numbers in the term's tensors=(…)"
        )
    for term in call.terms:
        _note_pure(_function_of(term))


def _is_real(x: Tensor) -> bool:
    """Returns whether values can be read, which meta tensors, fake tensors and modes prevent."""
    return type(x) is Tensor and x.device.type != "meta" and not dispatch_modes()


def _random_state(call: Call) -> list[Tensor]:
    states = [torch.get_rng_state()]
    return [*states, torch.cuda.get_rng_state(call.q.device)] if call.q.is_cuda else states


def _note_pure(function: Callable[..., Tensor] | None) -> None:
    key = id(function)
    if function is not None and key not in _pure:
        with suppress(TypeError):  # a function that cannot be weakly referenced is checked in every call
            _pure[key] = weakref.ref(function, lambda _: _pure.pop(key, None))


def _tried(term: Term) -> Term:
    """Returns the term with a function that runs twice and compares; unchanged if it was checked before."""
    function = _function_of(term)
    known = _pure.get(id(function))
    if function is None or (known is not None and known() is function):
        return term
    name = type(term).__name__

    def twice(*arguments: Tensor) -> Tensor:
        first, second = ([x.clone() for x in arguments] for _ in range(2))
        returned, again = function(*first), function(*second)
        if not _alike(returned, again):
            raise HeadwayError(
                f"the function of {name} returns another result when it runs again, as in the backward pass: draw "
                "and count outside, and pass the numbers in the term's tensors=(…)"
            )
        kept = 1 if isinstance(term, (ScoreMap, Normalizer)) else 0  # the function may write into its scores
        if not all(map(_alike, first[kept:], arguments[kept:])):
            raise HeadwayError(f"the function of {name} writes into its arguments: write into a clone")
        return returned

    return term._with(**{"values" if isinstance(term, DenseBias) else "function": twice})


def _alike(a: Tensor, b: Tensor) -> bool:
    """Returns whether two results are equal up to the rounding of another memory layout or of atomic sums."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    return torch.equal(a, b) or (a.is_floating_point() and torch.allclose(a, b, rtol=1e-4, atol=1e-5, equal_nan=True))
