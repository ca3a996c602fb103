"""Runs the tests and a short measurement on an NVIDIA GPU, and writes what came out.

    PYTHONPATH=src:tests python -m gpu --out gpu-out --minutes 9

First a cross-section of the tests, while programs are compiled for the measurement; then the measurement; then as many
of the other tests as time allows. What comes out is written as it comes: to gpu.md, tests.jsonl and speed.jsonl.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from . import page

ROOT = Path(__file__).parents[2]
TESTS = [
    "tests/kernels/test_triton_gpu.py",
    "tests/kernels/test_triton_programs.py",
    "tests/kernels/test_flex.py",
    "tests/inspection/test_reductions_of_kernels.py",
    "tests/kernels/test_sdpa_backends.py",
    "tests/conformance/test_kernels.py",
    "tests/test_torch_sdpa.py",
    "tests/test_attention.py",
    "tests/test_masks.py",
    "tests/test_call.py",
    "tests/kernels/test_sdpa.py",
]
"""Where the tests are that a GPU can run: those of the marker gpu, and those of every kernel."""
SHARE = {"cross-section": 0.42, "measurement": 0.42}
"""Of the time, at most; the rest is for the other tests."""
WORKERS = 8


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("gpu-out"))
    parser.add_argument("--minutes", type=float, default=9.0, help="the time for all of it; default: 9")
    parser.add_argument("--device", default="cuda", help=argparse.SUPPRESS)  # "cpu": a trial with triton's interpreter
    parser.add_argument("--tune", action="store_true", help="first tune, in 5 more minutes, and write the table")
    parser.add_argument("--only", choices=["tests", "speed"])
    chosen = parser.parse_args(words)
    import torch

    if chosen.device == "cuda" and not torch.cuda.is_available():
        print("no NVIDIA GPU: torch.cuda.is_available() is False", file=sys.stderr)
        return 2
    chosen.out.mkdir(parents=True, exist_ok=True)
    if chosen.tune:
        tune(chosen.out.resolve(), chosen.device)
    return Run(chosen.out.resolve(), chosen.minutes * 60, chosen.device).all(chosen.only)


def tune(out: Path, device: str) -> None:
    """Runs `headway tune`, whose table and summary are written beside the page."""
    from headway import tuning

    os.environ["HEADWAY_TUNED"] = str(out / "tuned.json")
    try:
        said = str(tuning.tune(device))
    except Exception as error:  # the tests and the measurement go on
        said = f"{type(error).__name__}: {error}"
    (out / "tuned.txt").write_text(f"{said}\n", encoding="utf-8")
    print(said)


class Run:
    """One run, with its folder and its time."""

    def __init__(self, out: Path, seconds: float, device: str) -> None:
        self.out, self.device, self.began, self.seconds = out, device, time.time(), seconds
        self.tests, self.speed = out / "tests.jsonl", out / "speed.jsonl"
        for file in (self.tests, self.speed):
            file.unlink(missing_ok=True)
        self.facts = page.facts()
        self.write()

    def all(self, only: str | None) -> int:
        if only != "speed":
            compiling = None if only else self._started(["gpu.speed", "compile"], self.speed, SHARE["cross-section"])
            self._pytest(SHARE["cross-section"], "--cross-section")
            if compiling is not None:
                compiling.wait()
        if only != "tests":
            self._started(["gpu.speed", "measure"], self.speed, sum(SHARE.values())).wait()
            self.write()
        if only != "speed":
            self._pytest(1.0)
        failed = [line for line in read(self.tests) if line["outcome"] == "failed"]
        print(f"{self.out / 'gpu.md'}: {len(failed)} tests failed")
        return 1 if failed else 0

    def _pytest(self, until: float, *options: str) -> None:
        command = ["pytest", "-q", "-p", "gpu.deadline", "-p", "no:cacheprovider", "--triton-on", self.device]
        # what another version of torch warns of is no failure here
        command += ["-o", "filterwarnings=default", "--tb=short"]
        command += ["-n", str(min(WORKERS, os.cpu_count() or 1)), "--dist", "worksteal"]
        self._started([*command, *options, *TESTS], self.tests, until).wait()
        self.write()

    def _started(self, command: list[str], log: Path, until: float) -> subprocess.Popen[bytes]:
        """Starts a module, which is to stop at a share of the time, and is stopped 20 seconds later."""
        deadline = self.began + until * self.seconds
        keeps = os.environ | {
            "PYTHONPATH": os.pathsep.join(map(str, (ROOT / "src", ROOT / "tests"))),
            "HEADWAY_GPU_DEADLINE": str(deadline),
            "HEADWAY_GPU_LOG": str(log),
            "OMP_NUM_THREADS": "1",
        }
        left = max(10, int(deadline + 20 - time.time()))
        with (self.out / f"{log.stem}.log").open("ab") as file:
            return subprocess.Popen(
                ["timeout", str(left), sys.executable, "-m", *command], cwd=ROOT, env=keeps, stdout=file, stderr=file
            )

    def write(self) -> None:
        """Writes the page of what is known by now."""
        text = page.text(self.facts, read(self.tests), read(self.speed), time.time() - self.began)
        (self.out / "gpu.md").write_text(text, encoding="utf-8")


def read(file: Path) -> list[dict[str, Any]]:
    """Returns the lines of a file; a last one that was cut off is left out."""
    found: list[dict[str, Any]] = []
    for line in file.read_text(encoding="utf-8").splitlines() if file.exists() else ():
        try:
            found.append(json.loads(line))
        except ValueError:
            break
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
