"""The memory that attention or its statistics take beyond inputs and outputs, in a new process."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import torch

from .cases import STATISTICS_MEMORY, Case

WARM_UP = 64
"""Tokens of a first call, which loads what is loaded once."""


def measure(case: Case) -> dict[str, Any]:
    """Measures the kernel and the bytes of a case in a new process.

    Raises:
        RuntimeError: if the process fails, with its last line.
    """
    code = "import sys; from headway.bench.memory import main; main(sys.argv[1])"
    task = json.dumps({"case": case.fields(), "threads": torch.get_num_threads()})
    done = subprocess.run([sys.executable, "-c", code, task], capture_output=True, text=True, check=False)
    if done.returncode:
        said = done.stderr.strip().split("\n")[-1] or f"the process ended with {done.returncode}"
        raise RuntimeError(f"{case}: {said}")
    row: dict[str, Any] = json.loads(done.stdout)
    return row


def main(task: str) -> None:
    """Measures a case in this process, and prints the row; ``task`` has the case and the number of threads, as JSON."""
    from dataclasses import replace

    from ..study.memory import Peak
    from . import statistics
    from .sides import Inputs, kernel_of

    given = json.loads(task)
    case = Case(**given["case"])
    torch.set_num_threads(given["threads"])
    for n in (min(WARM_UP, case.n), case.n):
        now = replace(case, n=n)
        inputs = Inputs(now)
        run, held = inputs.ours(), [inputs.upstream]  # the output is of upstream's size
        if case.kind == STATISTICS_MEMORY:
            run, held = statistics.headway_sides(inputs.call, kernel_of(now))[statistics.ALONE], []
        peak = Peak("cpu")
        before = peak.bytes()
        results = run()
        most = peak.bytes()
    outputs = sum(x.numel() * x.element_size() for x in (*results, *held))
    print(json.dumps({"kernel": kernel_of(case), "extra_bytes": max(0, most - before - outputs)}))
