"""Finds the processor, the versions, and the processor's limit (the roofline)."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from .._common.processor import cpuinfo
from .._common.processor import name as processor_name
from .._common.version import __version__, code_hash
from ..errors import HeadwayError
from ..kernels.cpu import _library

BURST = 5e7, 1e9
"""The least and the most floating-point operations of one run of the register-only loop."""

KINDS = {"float32": _library.FLOAT32, "bfloat16": _library.BFLOAT16}
"""The loop of each dtype: float32, or pairs of bfloat16."""


def where(*parts: str) -> dict[str, Any]:
    """Returns what two rows must share to be comparable: processor, threads, versions, and the measured code.

    ``parts`` are folders of headway that are measured in addition to the kernels.
    """
    library = _library.load()
    return {
        "processor": processor(),
        "isa": "none" if library.c is None else _library.isa(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "headway": f"{__version__}+{fingerprint(*parts)}",
    }


def processor() -> str:
    """Returns the processor's name and, on Linux, its family, model and instruction sets."""
    facts, name = cpuinfo(), processor_name() or platform.machine()
    flags = facts.get("flags", "").split()
    units = {"avx2": "AVX2", "avx512f": "AVX-512", "avx512_bf16": "BF16", "amx_tile": "AMX"}
    has = "/".join(unit for flag, unit in units.items() if flag in flags)
    model = f"family {facts['cpu family']} model {facts['model']}" if "cpu family" in facts else ""
    details = ", ".join(filter(None, (model, has)))
    return f"{name} ({details})" if details else name


def cores() -> int:
    """Returns the number of processor cores that this process may use; two hardware threads of one core count once."""
    if not hasattr(os, "sched_getaffinity"):
        return os.cpu_count() or 1
    cores = set()
    for number in os.sched_getaffinity(0):
        folder = Path(f"/sys/devices/system/cpu/cpu{number}/topology")
        try:
            cores.add(tuple((folder / name).read_text().strip() for name in ("physical_package_id", "core_id")))
        except OSError:
            cores.add((str(number),))
    return len(cores)


def busy() -> str:
    """Returns a note if other processes have kept the processor busy for the last minute, and "" otherwise."""
    if not hasattr(os, "getloadavg"):
        return ""
    load, count = os.getloadavg()[0], cores()
    if load <= count / 2:
        return ""
    return (
        f"This machine is busy, with a load average of {load:.1f} on {count} cores before anything is measured: end "
        "other processes, or times will be too long."
    )


def fingerprint(*parts: str) -> str:
    """Returns a hash of eight digits of the measured code, compiled libraries included; ``parts`` as for ``where``."""
    return code_hash("attention", "coordinates", "masks", "terms", "kernels", *parts)


class Roof:
    """The processor's limit: a loop of the compiled kernel with multiply-adds only in registers.

    ``why_not`` says what is missing if the loop cannot run, and is empty otherwise.
    """

    def __init__(self) -> None:
        missing = _library.why_not()
        self.why_not = f"No share of the roof, which the cpu kernel measures: {missing}" if missing else ""
        self._flop_of_round: dict[str, float] = {}

    def burst(self, dtype: str, flop: float) -> tuple[Callable[[], float], float] | None:
        """Returns one run of the loop on all of torch's threads and its operations; None if the loop cannot run.

        The loop has the ``dtype`` given, and about ``flop`` operations within BURST: after a long run, the caches would
        be cold for the next side.
        """
        if self.why_not or dtype not in KINDS:
            return None

        def run(rounds: int) -> float:
            return _library.roof(KINDS[dtype], torch.get_num_threads(), rounds)

        try:
            if dtype not in self._flop_of_round:
                self._flop_of_round[dtype] = run(1024) / 1024
            least, most = BURST
            rounds = max(1, round(min(max(flop, least), most) / self._flop_of_round[dtype]))
            return lambda: run(rounds), run(rounds)
        except HeadwayError:  # an instruction set without this dtype
            return None
