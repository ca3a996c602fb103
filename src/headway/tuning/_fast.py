"""Measures how long each kernel takes on a device, with a few calls by which larger ones can be judged."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch

from .._common.progress import Share
from ..attention import attention
from ..bench.measure import in_turn as measure_in_turn
from ..call import make_call
from ..errors import HeadwayError
from ..kernels import KERNELS, Problem, _tuned, choose
from ..kernels.cpu import _library
from ..masks import Causal, Window
from ..positions import encoding
from ..terms import DenseBias
from ..testing.fuzz.search import Outcome
from . import _timing
from ._processes import outcomes, processes

HEADS = {"cpu": (1, 4), "cuda": (1, 8)}
"""The batch and the heads of a call."""
DTYPES = {"cpu": ("float32", "bfloat16", "float16"), "cuda": ("bfloat16", "float16", "float32")}
"""What is verified and measured, that of most calls first, since time may end."""
WIDTHS = (64, 128, 32)
LENGTHS = {
    "cpu": ((512, 512), (2048, 2048), (1, 512), (1, 4096), (64, 64)),
    "cuda": ((4096, 4096), (1024, 1024), (1, 4096), (128, 128)),
}
"""Queries and keys."""
ROUNDS, SECONDS = 3, 0.08
"""The fewest turns, and the time that each side has on a CPU."""


@dataclass(frozen=True)
class Cell:
    """One call that is measured.

    Attributes:
        terms: as tables name them: "none", "distances" or "others".
        mask: "none", "causal" or "others".
        dtype: the name of q's dtype.
        direction: "inference", or "training" with the backward pass.
        n: queries.
        m: keys.
        head_dim: of queries and values.
    """

    terms: str
    mask: str
    dtype: str
    direction: str
    n: int
    m: int
    head_dim: int

    def __str__(self) -> str:
        kind = f"terms: {self.terms}, mask: {self.mask}"
        return f"{self.direction}, {kind}, {self.dtype}, {self.n} × {self.m}, head_dim {self.head_dim}"


def cells(device: str) -> Iterator[Cell]:
    """Yields all cells for a device, those of most calls first."""
    kind = torch.device(device).type
    for width in WIDTHS:
        for n, m in LENGTHS[kind]:
            for dtype in DTYPES[kind]:
                for direction in ("inference", "training"):
                    for terms in ("none", "distances", "others"):
                        for mask in ("causal", "others", "none") if terms == "none" else ("causal", "others"):
                            if n == m or (direction == "inference" and mask == "causal"):
                                yield Cell(terms, mask, dtype, direction, n, m, width)


class Sides:
    """The kernels of a cell as functions of nothing.

    They are called like calls of a model: short calls, and calls on a GPU, reuse the preparation of the first one.

    Attributes:
        runs: the functions, by the names of kernels.
        case: the properties of the call, as tables name them.
        sizes: its sizes.
    """

    def __init__(self, cell: Cell, device: str, kernels: tuple[str, ...]) -> None:
        self.cell, self.device = cell, device
        batch, heads = HEADS[torch.device(device).type]
        dtype = getattr(torch, cell.dtype)
        draw = torch.Generator().manual_seed(0)
        shapes = [(batch, heads, tokens, cell.head_dim) for tokens in (cell.n, cell.m, cell.m, cell.n)]
        q, k, v, self.upstream = (torch.randn(shape, generator=draw).to(device, dtype) for shape in shapes)
        training = cell.direction == "training"
        self.leaves = [x.requires_grad_(training) for x in (q, k, v)]
        self.given: dict[str, Any] = {"mask": self._mask(), **self._bias(heads)}
        problem = Problem.of(make_call(*self.leaves, **self.given))
        self.sizes = {name: size for name, size in _tuned.sizes_of(problem).items() if name != "work"}
        self.case: dict[str, str | list[str]] = {name: getattr(cell, name) for name in ("terms", "dtype", "direction")}
        self.case["mask"] = ["none", "causal"] if cell.terms != "none" and cell.mask == "causal" else cell.mask
        self.case["queries"] = "many"
        if cell.n == 1:  # one query sees all keys, whatever the mask is called
            self.case |= {"mask": ["none", "causal", "others"], "queries": "one"}
        if "cpu" in kernels:
            self.case["isa"] = _library.isa()
        self.runs = {name: self._run(name) for name in self._able(problem, kernels)}

    def _bias(self, heads: int) -> dict[str, Any]:
        if self.cell.terms == "distances":
            return {"encoding": encoding("alibi", num_heads=heads).to(self.device)}
        if self.cell.terms == "others":
            return {"terms": (DenseBias(torch.zeros(1, heads, self.cell.n, self.cell.m, device=self.device)),)}
        return {}

    def _mask(self) -> Any:
        if self.cell.mask == "others":
            return Causal() & Window(left=max(1, self.cell.m // 8))
        return Causal() if self.cell.mask == "causal" and self.cell.n > 1 else None

    def _able(self, problem: Problem, kernels: tuple[str, ...]) -> list[str]:
        able = [name for name in kernels if not KERNELS[name].why_not(problem)]
        others = {name: kernel for name, kernel in KERNELS.items() if name not in kernels}
        instead = choose(others, problem).kernel  # the choice of "auto" without these kernels
        return able if instead is None or not able else [*able, instead]

    def _run(self, kernel: str) -> Callable[[], object]:
        def run() -> object:
            with torch.enable_grad() if self.cell.direction == "training" else torch.no_grad():
                out = attention(*self.leaves, kernel=kernel, **self.given)
            if self.cell.direction == "inference":
                return out
            return torch.autograd.grad(out, self.leaves, self.upstream)

        return run


def measure(cell: Cell, device: str, kernels: tuple[str, ...]) -> dict[str, Any] | None:
    """Measures a cell, and returns its row; None if no kernel takes it.

    Args:
        cell: the call.
        device: where.
        kernels: the kernels to measure. The kernel that "auto" would otherwise take is measured as well.
    """
    sides = Sides(cell, device, kernels)
    if not sides.runs:
        return None
    said = {}
    for name in list(sides.runs):
        try:
            sides.runs[name]()  # also the compilation
        except Exception as error:  # any failure of a side is its result
            if "CUDA error" in str(error):  # after which nothing runs in this process
                raise
            said[name] = f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"
            del sides.runs[name]
    measured = in_turn(sides.runs, device) if sides.runs else {}
    times = dict.fromkeys(said) | {name: float(f"{ms:.4g}") for name, ms in measured.items()}
    return {"case": sides.case, "from": sides.sizes, "times": times} | ({"errors": said} if said else {})


def compile_all(
    chosen: list[Cell], device: str, kernels: tuple[str, ...], seconds: float, watch: Share
) -> tuple[list[Cell], int]:
    """Runs each cell once, in separate processes; returns the cells that can be measured, and how many were left out.

    The compilers of the kernels keep their programs in folders, so measuring finds them there. A cell that crashes or
    hangs is not measured.

    Args:
        chosen: the cells, in the order in which they are compiled.
        device: where.
        kernels: those whose programs are compiled.
        seconds: the time for all of them.
        watch: is told of progress.
    """
    if seconds <= 0:  # starting processes takes time
        return [], len(chosen)
    jobs = [(cell, device, kernels) for cell in chosen]
    with processes(_run_once, len(jobs)) as workers:
        came = outcomes(workers, jobs, seconds, watch)
    runs = [cell for cell, one in zip(chosen, came, strict=True) if one and one.kind not in ("crash", "timeout")]
    return runs, came.count(None)


def _run_once(job: tuple[Cell, str, tuple[str, ...]]) -> Outcome:
    cell, device, kernels = job
    try:
        runs = Sides(cell, device, kernels).runs
        for name in kernels:
            if name in runs:
                runs[name]()
        if device != "cpu":
            torch.cuda.synchronize(device)
    except Exception as error:  # measuring reports it
        if "CUDA error" in str(error):  # after which nothing runs in this process
            os._exit(1)
        return Outcome(type(error).__name__, str(error))
    return Outcome("taken")


def in_turn(runs: Mapping[str, Callable[[], object]], device: str) -> dict[str, float]:
    """Returns the median milliseconds of each side, all measured in turn.

    On a GPU, calls that follow one another take the longer of two times: the time between events of the device, to
    which the host gives calls ahead, and the time that the host needs for a call.

    Args:
        runs: the sides by name.
        device: where.
    """
    if device == "cpu":
        return measure_in_turn(runs, SECONDS, ROUNDS)[0]
    with torch.cuda.device(device):
        hosts = {name: _timing.host_milliseconds(run, "cuda") for name, run in runs.items()}
        times = _timing.in_turn(runs, hosts, "cuda", ROUNDS)
    return {name: max(median(each), hosts[name]) for name, each in times.items()}


def measure_all(
    chosen: list[Cell], device: str, kernels: tuple[str, ...], seconds: float, watch: Share
) -> tuple[list[dict[str, Any]], int]:
    """Measures cells until time is up, and returns their rows and how many cells were left.

    Args:
        chosen: the cells, in the order in which they are measured.
        device: where.
        kernels: the kernels that are measured.
        seconds: the time for all of them.
        watch: is told of progress.
    """
    rows: list[dict[str, Any]] = []
    end = time.monotonic() + seconds
    for number, cell in enumerate(chosen):
        if time.monotonic() > end:
            return rows, len(chosen) - number
        try:
            row = measure(cell, device, kernels)
        except (HeadwayError, RuntimeError) as error:  # such as too little memory: the cell has no row
            if "CUDA error" in str(error):
                return rows, len(chosen) - number
            row = None
        rows += [] if row is None else [row]
        watch((number + 1) / len(chosen))
    return rows, 0
