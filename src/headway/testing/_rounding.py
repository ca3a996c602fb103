"""Hints for messages of checks: an encoding's operation that rounds, or the line of a user's file with an error."""

from __future__ import annotations

import linecache
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .._torch import TorchDispatchMode

TESTING = str(Path(__file__).parent)
HEADWAY, TORCH = str(Path(__file__).parents[1]), str(Path(torch.__file__).parent)

Where = tuple[str, int]
"""A file and a line of it."""


def own_line(frames: Iterable[tuple[str, int]]) -> Where | None:
    """Returns the innermost of ``frames``, outermost first, that is neither in torch nor in headway."""
    return next((at for at in reversed(list(frames)) if not at[0].startswith((HEADWAY, TORCH, "<"))), None)


def in_words(where: Where) -> str:
    """Returns a line of a file for a message: ``mine.py:12: x = …``."""
    return f"{Path(where[0]).name}:{where[1]}: {linecache.getline(*where).strip()}"


def raised_at(error: BaseException) -> Where | None:
    """Returns the line of a user's file in which an error arose."""
    traced = getattr(error, "real_stack", None)  # frames of code that torch's compiler traces but does not run
    frames = traced or traceback.extract_tb(error.__traceback__)
    return own_line((frame.filename, frame.lineno or 0) for frame in frames)


Operation = tuple[Where, str, int]
"""A line, the name of an operation in it, and how many operations of that name came before it in the line."""
CASTS = ("_to_copy", "copy_", "clone", "detach", "empty", "zeros", "ones")


class _Operations(TorchDispatchMode):
    """Lists the operations whose results have ``dtype``, or rounds the results of one of them to it."""

    def __init__(self, dtype: torch.dtype, rounded: Operation | None = None) -> None:
        super().__init__()
        self.dtype, self.rounded = dtype, rounded
        self.found: list[Operation] = []
        self.count: Counter[tuple[Where, str]] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        where = own_line(stack := _stack()) or next((at for at in reversed(stack) if not at[0].startswith(TORCH)), None)
        if not isinstance(result, Tensor) or where is None or name.startswith(CASTS) or func.is_view:
            return result
        self.count[where, name] += 1
        operation = (where, name, self.count[where, name])
        if result.dtype == self.dtype:
            self.found.append(operation)
        return result.to(self.dtype).to(result.dtype) if operation == self.rounded else result


def _stack() -> list[Where]:
    """The lines that are running inside the hooks, outermost first."""
    lines: list[Where] = []
    frame = sys._getframe(2)
    while frame.f_back is not None and not frame.f_code.co_filename.startswith(TESTING):
        lines.append((frame.f_code.co_filename, frame.f_lineno))
        frame = frame.f_back
    return lines[::-1]


def narrow_operation(hooks: Callable[[], Any], dtype: torch.dtype) -> str:
    """Returns a hint that names the first operation of ``hooks`` whose result has ``dtype``; empty if there is none."""
    with _Operations(dtype) as operations:
        hooks()
    if not operations.found:
        return ""
    where, name, _ = operations.found[0]
    return f"{name} at {in_words(where)} computes in {dtype}"


def rounding_operation(hooks: Callable[[], Any], exact_hooks: Callable[[], Any], dtype: torch.dtype) -> str:
    """Returns a hint that names the operation whose rounding to ``dtype`` changes the results of hooks the most.

    Each operation that ``hooks`` computes in ``dtype`` is rounded by itself in ``exact_hooks``, which otherwise compute
    in float64. The hint is empty if no operation changes the results.
    """
    with _Operations(dtype) as operations:
        hooks()
    exact = _tensors(exact_hooks())
    worst, most = None, 0.0
    for operation in operations.found:
        with _Operations(dtype, operation):
            rounded = _tensors(exact_hooks())
        change = max((_change(a, b) for a, b in zip(rounded, exact, strict=True)), default=0.0)
        if change > most:
            worst, most = operation, change
    if worst is None:
        return ""
    where, name, _ = worst
    return (
        f"of the operations in its hooks, {name} at {in_words(where)} rounds the most: to {dtype}, which alone changes "
        f"results by {most:.2g} of the largest"
    )


def _change(rounded: Tensor, exact: Tensor) -> float:
    """The largest difference as a share of the largest value."""
    if not rounded.numel():
        return 0.0
    return ((rounded - exact).abs().max() / exact.abs().max().clamp(min=1e-30)).item()


def _tensors(part: Any) -> list[Tensor]:
    """The floating-point tensors in the results of hooks, including those of terms."""
    if isinstance(part, Tensor):
        return [part.detach().double()] if part.is_floating_point() else []
    if isinstance(part, (tuple, list)):
        return [tensor for item in part for tensor in _tensors(item)]
    return _tensors(list(vars(part).values())) if is_dataclass(part) else []
