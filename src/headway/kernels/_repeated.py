"""Finds the tensors in the terms of calls that native kernels prepare for repetition."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor

from ..records import attributes
from ..terms import Part
from ._problem import Call, tensors_in

Path = tuple[str | int, ...]
"""The place of a tensor in the terms: names of fields and indices of tuples."""


def why_not(call: Call) -> str | None:
    """Returns why a call needs more than the kernel's own computation; None if it does not."""
    if not call.q.dtype == call.k.dtype == call.v.dtype:
        return "q, k and v differ in dtype"
    if call.wants_lse or call.dropout:
        return "the log-sum-exp is wanted" if call.wants_lse else "dropout draws a seed for each call"
    if call.v_rotation is not None or call.out_rotation is not None or call.restore is not None:
        return "values are transformed and the output is restored"
    return None


def tensors_anew(call: Call, terms_vary: bool) -> set[int]:
    """Returns the ids of the terms' tensors that later calls replace, without those of the coordinates."""
    if not terms_vary:
        return set()
    kept = {id(x) for side in (call.q_coordinates, call.k_coordinates) for x in tensors_in(side)}
    return {id(x) for x in tensors_in(call.terms)} - kept


def paths_of(part: Any, path: Path = ()) -> Iterator[tuple[Tensor, Path]]:
    """Yields the tensors of terms with their paths."""
    if isinstance(part, Tensor):
        yield part, path
    elif isinstance(part, tuple):
        for number, item in enumerate(part):
            yield from paths_of(item, (*path, number))
    elif isinstance(part, Part):
        for name, value in attributes(part).items():
            yield from paths_of(value, (*path, name))


def tensor_at(terms: Any, path: Path) -> Tensor:
    """Returns the tensor at a path of the terms."""
    for step in path:
        terms = terms[step] if isinstance(step, int) else getattr(terms, step)
    return terms
