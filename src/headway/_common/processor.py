"""Facts about the processor: its vendor, its family and its instruction sets."""

from __future__ import annotations

import platform
import subprocess
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")


@cache
def cpuinfo() -> dict[str, str]:
    """Returns the facts that Linux states about the first processor, such as "vendor_id" and "flags"; else nothing."""
    facts: dict[str, str] = {}
    if CPUINFO.exists():
        for line in CPUINFO.read_text(errors="replace").split("\n"):
            name, _, value = line.partition(":")
            facts.setdefault(name.strip(), value.strip())
    return facts


def vendor_and_family() -> tuple[str, int]:
    """Returns such as ("AuthenticAMD", 25), which is Zen 3 and Zen 4; ("", 0) if they are not known."""
    facts = cpuinfo()
    family = facts.get("cpu family", "")
    return facts.get("vendor_id", ""), int(family) if family.isdigit() else 0


@cache
def name() -> str:
    """Returns the name of the processor, or the numbers that identify one from Arm; empty if nothing is known."""
    facts = cpuinfo()
    if "model name" in facts:
        return facts["model name"]
    numbers = [facts[key] for key in ("CPU implementer", "CPU part", "CPU variant") if key in facts]
    if numbers:
        return f"Arm {' '.join(numbers)}"
    if sys.platform == "darwin":
        with suppress(OSError, subprocess.SubprocessError):
            asked = ["/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string"]
            return subprocess.run(asked, capture_output=True, text=True, timeout=5, check=True).stdout.strip()
    return platform.processor()


def has(flag: str) -> bool:
    """Returns whether the processor has the feature that Linux calls by this name, such as "avx512f"."""
    return flag in cpuinfo().get("flags", "").split()
