"""Matrix products of float32 on a CPU, by oneDNN or by torch.

torch multiplies float32 matrices by MKL, which does not use AVX-512 on AMD processors. oneDNN does, and it reads
weights in place, without a lasting copy. The table of ``headway tune``, or one that comes with headway
(``tuning/shipped``), says where oneDNN was faster. torch computes everything else.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from .._common import processor
from .._torch import ONEDNN_LINEAR, any_autocast, onednn_in_float32, onednn_linear
from ..errors import HeadwayError
from ..tracing import forward_mode, watched
from . import _tuned
from ._autograd import ORDINARY

KERNELS = ("auto", "onednn", "torch")


class Least(NamedTuple):
    """The fewest multiply-adds for each thread from which oneDNN computes a product.

    Attributes:
        forward: of y = x·Wᵀ.
        d_input: of dx = dy·W.
        d_weight: of dW = dyᵀ·x.
        rows: the fewest tokens for any of them.
        width: the fewest features, in and out.
    """

    forward: float
    d_input: float
    d_weight: float
    rows: int = 128
    width: int = 64


NEVER = math.inf
NONE, ALL = Least(NEVER, NEVER, NEVER), Least(1, 1, 1, rows=1, width=1)


class Products(NamedTuple):
    """Which of the three products of a linear map oneDNN computes."""

    forward: bool
    d_input: bool
    d_weight: bool


NO_PRODUCT = Products(False, False, False)
_chosen: ContextVar[str | None] = ContextVar("headway_linear_kernel", default=None)


@contextmanager
def linear_kernel(name: str) -> Iterator[None]:
    """A context in which this thread computes linear maps by the matrix products of this name.

        with headway.nn.linear_kernel("torch"):
            model(ids).mean().backward()

    The environment variable HEADWAY_LINEAR_KERNEL chooses for a process. With ``torch.backends.mkldnn.enabled`` off,
    torch computes all products.

    Args:
        name: "torch" for ``F.linear``; "onednn" for oneDNN wherever it computes the same, which is plain float32 on a
            CPU; "auto", the default, for whichever was measured to be faster on this processor.

    Raises:
        HeadwayError: if the name is unknown.
    """
    token = _chosen.set(_known(name, "name"))
    try:
        yield
    finally:
        _chosen.reset(token)


def product(a: Tensor, b: Tensor) -> Tensor:
    """Returns a·bᵀ, without a gradient, by the faster library. The choice does not depend on the number of threads.

    Args:
        a: [rows, in_features], which may be a transposed matrix.
        b: [out_features, in_features], likewise.
    """
    takes = not compiled() and products_for(a.numel(), b.shape[0], b.shape[1], threads=1).forward
    # oneDNN is a thousand times slower if rows have gaps between them
    dense = all(x.is_contiguous() or x.t().is_contiguous() for x in (a, b))
    return times(a, b, takes and dense and ordinary(a, b) and not followed())


def times(a: Tensor, b: Tensor, by_onednn: bool) -> Tensor:
    """Returns a·bᵀ for two matrices."""
    return onednn_linear(a, b, None) if by_onednn else a @ b.t()


def products_for(numbers: int, out_features: int, in_features: int, threads: int | None = None) -> Products:
    """Returns which products oneDNN computes for an input of so many numbers. Default of threads: torch's."""
    least, work = least_of(_chosen.get()), numbers * out_features
    if work < least.forward and work < least.d_input:
        return NO_PRODUCT
    if work < least.rows * in_features * out_features or min(in_features, out_features) < least.width:
        return NO_PRODUCT
    work //= threads or torch.get_num_threads()
    return Products(work >= least.forward, work >= least.d_input, work >= least.d_weight)


@cache
def least_of(chosen: str | None) -> Least:
    name = chosen or _known(os.environ.get("HEADWAY_LINEAR_KERNEL") or "auto", "HEADWAY_LINEAR_KERNEL")
    if name == "torch" or not ONEDNN_LINEAR:
        return NONE
    if name == "onednn":
        return ALL
    isa = onednn_isa()
    return measured(isa) if isa else NONE


def onednn_isa() -> str:
    """Returns oneDNN's instruction set as tables name it; empty if the user restricted it: there is no table for that.

    It is that of the processor, since HEADWAY_ISA changes only headway's own kernel.
    """
    if "ONEDNN_MAX_CPU_ISA" in os.environ:
        return ""
    return "avx512" if processor.has("avx512f") else "others"


def measured(isa: str) -> Least:
    """Returns from which sizes oneDNN is faster, according to the tables for this processor.

    isa: the instruction set, as tables name it.
    """
    rows, width, work = 0.0, 0.0, []
    for product in Products._fields:
        sizes = _tuned.from_which("onednn", (("product", product), ("isa", isa), ("dtype", "float32")), "work")
        work.append(NEVER if sizes is None else sizes.get("work", 0))
        rows, width = max(rows, (sizes or {}).get("rows", 0)), max(width, (sizes or {}).get("width", 0))
    forward, d_input, d_weight = work
    return Least(forward, d_input, d_weight, int(rows), int(width)) if min(work) < NEVER else NONE


def compiled() -> bool:
    """Returns whether a compiler or tracer reads the code: compilers choose products themselves."""
    return torch.compiler.is_dynamo_compiling() or torch.jit.is_tracing()


def _known(name: str, argument: str) -> str:
    if name not in KERNELS:
        raise HeadwayError(f"{argument}={name!r} is not a kernel of linear maps: choose from {', '.join(KERNELS)}")
    return name


def ordinary(*tensors: Tensor | None) -> bool:
    """Returns whether all are plain dense tensors of float32 on a CPU."""
    return all(
        type(one) in ORDINARY
        and one.dtype == torch.float32
        and one.device.type == "cpu"
        and one.layout == torch.strided
        for one in tensors
        if one is not None
    )


def followed() -> bool:
    """Returns whether something observes torch's own operations, or requests another precision of them."""
    return watched() or forward_mode() or any_autocast() or not onednn_in_float32()
