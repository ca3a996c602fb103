"""What has not run on a GPU yet, in the order of its worth, in 12 minutes at most.

    PYTHONPATH=src:tests python -m gpu.rest --out gpu-out --minutes 12

Each step has a share of the time and a file of its own, which is written as it runs: the host's time with plans and
without; kept calls beside fresh ones; the tests of ``flex``; the checks of ``headway tune`` in float32, then float16.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PYTEST = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "filterwarnings=default", "--tb=short", "-n", "4")


class Step(NamedTuple):
    """A command of the interpreter.

    Attributes:
        name: that of its file.
        words: the command.
        until: the share of the time at whose end it is stopped.
    """

    name: str
    words: tuple[str, ...]
    until: float


def steps(device: str) -> list[Step]:
    """Returns the steps in their order."""
    host = ("--pretend",) if device == "cpu" else ()
    pytest = *PYTEST, "--triton-on", device
    return [
        Step("host-1024", ("-m", "gpu.host", *host), 0.12),
        Step("host-128", ("-m", "gpu.host", *host, "--tokens", "128", "none", "alibi", "t5"), 0.17),
        Step("kept", (*pytest, "tests/kernels/test_triton_gpu.py", "-k", "kept or graph"), 0.30),
        Step("flex", (*pytest, "tests/kernels/test_flex.py"), 0.45),
        Step("flex-checks", ("-m", "gpu.rest", "--check", "flex", "bfloat16", "--device", device), 0.55),
        Step("float32", ("-m", "gpu.rest", "--check", "triton", "float32", "--device", device), 0.80),
        Step("float16", ("-m", "gpu.rest", "--check", "triton", "float16", "--device", device), 1.0),
    ]


def check(kernel: str, dtype: str, device: str, seconds: float) -> int:
    """Runs the checks of ``headway tune`` of a kernel in a dtype, backward ones first, and prints what they found."""
    from headway._common.progress import nobody
    from headway.tuning import _right

    place = f"{device}:0" if device == "cuda" else device
    chosen = [one for one in _right.checks(kernel, place) if one.case.dtype == dtype]
    chosen.sort(key=lambda one: one.case.gradients == "none")
    found = _right.verify(chosen, seconds=seconds, watch=nobody)
    print(
        json.dumps({"right": sorted(found.right), "wrong": found.wrong, "refused": found.refused, "left": found.left})
    )
    return 1 if found.wrong else 0


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("gpu-out"))
    parser.add_argument("--minutes", type=float, default=12.0, help="the time for all of it; default: 12")
    parser.add_argument("--device", default="cuda", help=argparse.SUPPRESS)
    parser.add_argument("--check", nargs=2, metavar=("KERNEL", "DTYPE"), help="run the checks of one kernel alone")
    parser.add_argument("--list", action="store_true", help="print the steps")
    chosen = parser.parse_args(words)
    if chosen.check is not None:
        left = float(os.environ.get("HEADWAY_GPU_DEADLINE", time.time() + 60 * chosen.minutes)) - time.time()
        return check(*chosen.check, chosen.device, max(1.0, left - 5))
    began, failed = time.time(), []
    chosen.out.mkdir(parents=True, exist_ok=True)
    for step in steps(chosen.device):
        deadline = began + 60 * chosen.minutes * step.until
        if chosen.list:
            print(f"until {60 * chosen.minutes * step.until:4.0f} s  {step.name}: python {' '.join(step.words)}")
            continue
        file, left = chosen.out / f"{step.name}.txt", deadline - time.time()
        keeps = os.environ | {
            "PYTHONPATH": os.pathsep.join(map(str, (ROOT / "src", ROOT / "tests"))),
            "HEADWAY_GPU_DEADLINE": str(deadline),
            "OMP_NUM_THREADS": "1",
        }
        command = ["timeout", str(max(10, int(left + 5))), sys.executable, *step.words]
        with file.open("wb") as written:
            code = subprocess.run(command, cwd=ROOT, env=keeps, stdout=written, stderr=written).returncode
        failed += [step.name] if code else []
        print(f"{step.name}: {'ended' if code == 0 else f'code {code}'} after {time.time() - began:.0f} s", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
