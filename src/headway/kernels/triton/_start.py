"""Starts programs. Importing this module imports triton."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor
from triton.compiler import CompiledKernel

from ...terms import Rotation
from . import programs
from ._arguments import Plane
from ._choices import Blocks

TOKENS = 32
"""The number of tokens that one program rotates."""
MOST_KINDS = 16
"""The most kinds of passes whose programs are kept."""


def start(program: Any, near: Tensor, grid: int, blocks: Blocks, *arguments: Any, **constants: Any) -> Any:
    """Starts ``grid`` instances of a program on the device of ``near``; returns the compiled one if there is one.

    Triton inspects each argument to find the compiled program, or to compile it.
    """
    if not grid:
        return None
    with on_device_of(near):
        return program[(grid,)](*arguments, **constants, num_warps=blocks.num_warps, num_stages=blocks.num_stages)


def on_device_of(x: Tensor) -> AbstractContextManager[object]:
    """Returns a context in which the current device is that of x."""
    if not x.is_cuda or torch.cuda.current_device() == x.get_device():
        return nullcontext()
    return torch.cuda.device(x.device)


def alignment(*tensors: Tensor) -> tuple[bool, ...]:
    """Returns which tensors begin at a multiple of 16 bytes. Programs are compiled for each alignment."""
    return tuple([not x.data_ptr() % 16 for x in tensors])


class Kept(NamedTuple):
    """A compiled program with its grid, and the constants that follow its arguments."""

    run: Callable[..., Any]
    constants: tuple[Any, ...]

    @staticmethod
    def of(compiled: Any, program: Any, grid: int, blocks: Blocks, count: int, constants: dict[str, Any]) -> Kept:
        """Returns a started program, to be started again.

        Args:
            compiled: the result of ``start``; without a compiled program, triton looks it up each time.
            program: the program.
            grid: its instances.
            blocks: its blocks.
            count: the number of its arguments.
            constants: the constants that follow the arguments, by name.
        """
        if isinstance(compiled, CompiledKernel):
            run = compiled[(grid, 1, 1)]
        else:
            run = partial(program[(grid,)], num_warps=blocks.num_warps, num_stages=blocks.num_stages)
        names = list(inspect.signature(program.fn).parameters)
        return Kept(run, tuple(constants[name] for name in names[count:]))


class Programs:
    """The compiled programs of repeated passes, by kind.

    Passes of one kind start the same programs in the same order, with arguments of the same dtypes, sizes, strides and
    alignment, so triton need not inspect them again. The caller that names the kind ensures this.
    """

    def __init__(self) -> None:
        self._kept: dict[Hashable, tuple[Kept, ...]] = {}

    def starts(self, kind: Hashable) -> Starts:
        """Returns the starter of a pass's programs.

        Args:
            kind: the kind of the pass.
        """
        return Starts(self._kept, kind)


class Starts:
    """Starts the programs of one pass on the current device, reusing those of an earlier pass of its kind.

    Args:
        kept: the programs by kind.
        kind: the kind of the pass.
    """

    def __init__(self, kept: dict[Hashable, tuple[Kept, ...]], kind: Hashable) -> None:
        self._kept, self._kind = kept, kind
        known = kept.get(kind)
        self._known = None if known is None else iter(known)
        self._started: list[Kept] = []

    def __call__(
        self, program: Any, near: Tensor, grid: int, blocks: Blocks, *arguments: Any, **constants: Any
    ) -> None:
        """Starts the next program of the pass; see ``start``."""
        if not grid:
            return
        if self._known is not None:
            kept = next(self._known)
            kept.run(*arguments, *kept.constants)
        else:
            compiled = start(program, near, grid, blocks, *arguments, **constants)
            self._started.append(Kept.of(compiled, program, grid, blocks, len(arguments), constants))

    def end(self) -> None:
        """Keeps the programs after the pass has started all of them."""
        if self._known is None:
            if len(self._kept) >= MOST_KINDS:
                self._kept.clear()
            self._kept[self._kind] = tuple(self._started)


def rotations(x: Tensor, rotation: Rotation, starts: Starts | None = None) -> Tensor:
    """Returns x [batch, heads, n, head_dim] rotated, in the layout of x if its tokens are dense.

    Args:
        x: queries, keys, values or an output.
        rotation: the rotation.
        starts: starts the program; by default triton looks it up.
    """
    x = x.resolve_neg()
    x = x if x.stride(-1) == 1 else x.contiguous()
    y = new_rotated(x)
    (batch, heads, n, width), pairs = x.shape, rotation.cos.shape[3]
    cos, sin = (side.detach().expand(batch, heads, n, -1) for side in (rotation.cos, rotation.sin))
    whole = width == 2 * pairs
    (start if starts is None else starts)(
        programs.rotations, x, batch * heads * -(-n // TOKENS), Blocks(TOKENS, 1, 4, 1),
        *(Plane.of(one, one.stride()[:3], programs.ANY) for one in (x, y, cos, sin)), n, heads, rotation.start,
        width=width, pairs=pairs, padded=triton.next_power_of_2(pairs),
        wide=0 if whole else triton.next_power_of_2(width), interleaved=rotation.layout == "interleaved", rows=TOKENS,
    )  # fmt: skip
    return y


def new_rotated(x: Tensor) -> Tensor:
    """Allocates the result of rotating x, in the layout of x if tokens are contiguous and x is dense."""
    y = torch.empty_like(x) if x.stride(-1) == 1 else x
    return y if y.stride(-1) == 1 else torch.empty_like(x, memory_format=torch.contiguous_format)


def run_sums(x: Tensor, begins: Tensor, starts: Starts | None = None) -> Tensor:
    """Returns Σ x[h, begins[r] … begins[r + 1] − 1] for each row r, in float32.

    Args:
        x: the numbers, [heads, length], or vectors, [heads, length, width].
        begins: the first place of each row, followed by the number of places.
        starts: starts the program; by default triton looks it up.
    """
    count, width = begins.shape[0] - 1, x.shape[2] if x.ndim == 3 else 1
    out = torch.empty(x.shape[0], count, *x.shape[2:], dtype=torch.float32, device=x.device)
    padded = triton.next_power_of_2(width)
    (start if starts is None else starts)(
        programs.run_sums, x, x.shape[0] * count, Blocks(1, 1, 4, 1), x, begins, out, x.shape[1], count,
        width=width, padded=padded, block=max(1, 1024 // padded),
    )  # fmt: skip
    return out
