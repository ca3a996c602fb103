"""Repeats recorded calls of the CPU kernel's library outside Python, here or on an emulated Arm processor.

    python tests/kernels/replay.py [--arm]

``recorded_calls`` records the calls, and replay.cpp repeats them with every instruction set. For Arm the library is
compiled by CMake as for a wheel, with Debian's cross compiler, and runs under qemu's emulation of one process.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from recorded_calls import record

from headway.kernels.cpu import _library

ROOT = Path(__file__).parents[2]
COMPILER = os.environ.get("CXX") or next(filter(shutil.which, ("c++", "g++", "clang++")), "c++")
ARM = "aarch64-linux-gnu"
ARM_PROCESSORS = {"max": ("portable", "neonbf16"), "neoverse-n1": ("portable",)}
"""Processors that qemu emulates, with and without products of bf16, and the instruction sets that each has."""
ARM_TOOLS = {f"{ARM}-g++": f"g++-{ARM}", "qemu-aarch64": "qemu-user", "cmake": "cmake"}
"""The programs that compile for Arm and run what was compiled, and Debian's packages of them."""


def missing_for_arm() -> str:
    """Returns what to install for Arm; empty if everything is there."""
    absent = {tool: package for tool, package in ARM_TOOLS.items() if not shutil.which(tool)}
    if not absent:
        return ""
    return f"no {', '.join(absent)}: on Debian or Ubuntu, apt install {' '.join(absent.values())}"


def program(folder: Path, compiler: str = COMPILER) -> Path:
    """Compiles replay.cpp into a folder."""
    built = folder / "replay"
    source = Path(__file__).with_name("replay.cpp")
    subprocess.run([compiler, "-std=c++17", "-O1", "-g", "-Wall", source, "-o", built, "-ldl"], check=True)
    return built


def arm_library(folder: Path) -> Path:
    """Compiles the library for Arm into a folder; again only what has changed."""
    target = {
        "SYSTEM_NAME": "Linux",
        "SYSTEM_PROCESSOR": "aarch64",
        "C_COMPILER": f"{ARM}-gcc",
        "CXX_COMPILER": f"{ARM}-g++",
    }
    defined = [f"-DCMAKE_{name}={value}" for name, value in target.items()]
    subprocess.run(["cmake", "-S", ROOT, "-B", folder, *defined], check=True)
    subprocess.run(["cmake", "--build", folder, "--parallel"], check=True)
    return folder / "_attention.so"


def replay(built: Path, library: Path, calls: Path, *emulator: str) -> subprocess.CompletedProcess[str]:
    """Runs the compiled program; its exit status is 1 if a call is wrong."""
    return subprocess.run([*emulator, built, library, calls], capture_output=True, text=True, check=False)


def replay_on_arm(folder: Path, calls: Path, processor: str) -> subprocess.CompletedProcess[str]:
    """Compiles library and program for Arm into a folder, and runs them on an emulated processor."""
    library = arm_library(folder)
    emulator = ("qemu-aarch64", "-L", f"/usr/{ARM}", "-cpu", processor)
    return replay(program(folder, f"{ARM}-g++"), library, calls, *emulator)


def main(*arguments: str) -> int:
    arm = "--arm" in arguments
    if arm and (missing := missing_for_arm()):
        print(missing, file=sys.stderr)
        return 1
    folder = ROOT / "build" / ("native-arm" if arm else "replay")
    folder.mkdir(parents=True, exist_ok=True)
    calls = folder / "calls"
    record().write(calls)
    failed = 0
    for processor in ARM_PROCESSORS if arm else ("",):
        done = replay_on_arm(folder, calls, processor) if arm else replay(program(folder), _library.place(), calls)
        print(f"{processor}\n" if processor else "", done.stdout, done.stderr, sep="", end="", flush=True)
        failed |= done.returncode
    return failed


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
