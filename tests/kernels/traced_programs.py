"""Traces every program of the Triton kernel by the compiler's front end, without a GPU, and prints what fails.

``make check-triton`` runs it for other versions of triton. The interpreter, which runs the tests of programs, takes
what a version's compiler may not; compiling all of them to the end would take an hour.
"""

from __future__ import annotations

import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from compiled_programs import start_by

from headway import masks as M
from headway import reductions as R
from headway.kernels.triton import _installed

REDUCTIONS = [R.Entropy(), R.ColumnSums(), R.PooledMap(3, 2), R.TopKeys(2)]


class TracedError(Exception):
    """Raised where the front end is done."""


def main() -> int:
    import triton
    from triton.backends.nvidia.compiler import CUDABackend

    def end(*arguments: Any, **others: Any) -> None:
        raise TracedError

    _installed.reason_against = lambda device: None
    CUDABackend.make_ttir = staticmethod(end)
    import test_triton_programs as programs

    traced, failed, name = 0, Counter[str](), ""

    def start(program: Any, near: Any, grid: int, blocks: Any, *arguments: Any, **constants: Any) -> None:
        nonlocal traced
        options = {"num_warps": blocks.num_warps, "num_stages": blocks.num_stages}
        try:
            program.warmup(*arguments, **constants, grid=(1,), **options)
        except Exception as error:
            cause: BaseException = error
            while (inner := cause.__cause__ or cause.__context__) is not None:
                cause = inner
            if not isinstance(cause, TracedError):
                failed[f"{name}: {program.fn.__name__}: {type(cause).__name__}: {cause}"] += 1
        traced += 1

    start_by(start, 90)
    for terms in programs.TERMS:
        for kind, mask, (programs.N, programs.M_), options in (
            ("", M.Causal(), (70, 100), {}),
            (", dropout", M.Window(None, 9), (70, 100), {"dropout": 0.3}),
            (", reductions", M.Window(None, 9), (70, 100), {"reductions": REDUCTIONS}),
            (", few queries", M.Window(None, 9), (3, 200), {"gradients": False}),
        ):
            name = f"{terms}{kind}"
            with suppress(AssertionError):  # nothing was computed
                programs.results("triton", torch.bfloat16, terms, mask, **options)
    print(f"triton {triton.__version__}: {traced} programs traced, {failed.total()} failed", *failed, sep="\n")
    return 1 if failed or not traced else 0


if __name__ == "__main__":
    sys.exit(main())
