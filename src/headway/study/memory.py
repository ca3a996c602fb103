"""The peak memory of a piece of work."""

from __future__ import annotations

import ctypes
import gc
import sys
from pathlib import Path

import torch

CLEAR = Path("/proc/self/clear_refs")
STATUS = Path("/proc/self/status")


class Peak:
    """Measures the largest amount of memory in use since it was created.

    On a GPU, the memory that torch has allocated there. On Linux, the resident memory of this process, Python and torch
    included. On other systems, the same since the process began.
    """

    def __init__(self, device: str) -> None:
        self._device = torch.device(device)
        gc.collect()
        _give_back()
        self._reset = False
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)
        else:
            try:
                CLEAR.write_text("5")
                self._reset = True
            except OSError:
                pass

    def bytes(self) -> int:
        """Returns the peak so far, in bytes."""
        if self._device.type == "cuda":
            return torch.cuda.max_memory_allocated(self._device)
        if self._reset:
            for line in STATUS.read_text().splitlines():
                if line.startswith("VmHWM:"):
                    return int(line.split()[1]) * 1024
        try:
            import resource
        except ImportError:
            return 0
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else most * 1024


def _give_back() -> None:
    """Returns freed memory to the system; otherwise its reuse would not count."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (OSError, AttributeError, TypeError):  # not the GNU C library
        return
