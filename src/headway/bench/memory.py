"""The memory that attention or its statistics take beyond inputs and outputs, in a new process."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import torch

from .cases import STATISTICS_MEMORY, Case

WARM_UP = 64
"""The tokens of a first call, which loads everything that is loaded only once."""
LINES = 20
"""The last lines of a process that fails, which an error has."""


def measure(case: Case) -> dict[str, Any]:
    """Measures the kernel and the bytes of a case in a new process.

    Raises:
        RuntimeError: if the process fails, with its last lines.
    """
    try:
        row: dict[str, Any] = in_new_process("memory", {"case": case.fields()})
    except RuntimeError as error:
        raise RuntimeError(f"{case}: {error}") from error
    return row


def in_new_process(module: str, task: dict[str, Any]) -> Any:
    """Calls ``main`` of a module of this room in a new process, and returns what it prints; both as JSON.

    Raises:
        RuntimeError: if the process fails, with its last lines.
    """
    code = f"import sys; from headway.bench.{module} import main; main(sys.argv[1])"
    words = [sys.executable, "-c", code, json.dumps({**task, "threads": torch.get_num_threads()})]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        said = done.stderr.strip().splitlines()[-LINES:]
        raise RuntimeError("\n".join([f"the process ended with {done.returncode}", *said]))
    return json.loads(done.stdout.strip().split("\n")[-1])


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
