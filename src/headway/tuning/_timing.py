"""Measures functions on a GPU in turn: the time between events of the device, and the time of the host."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from statistics import median

import torch

from .._torch import keep_gpu_busy

LEAST_SECONDS, CYCLES = 0.015, 2e9
"""The time that is measured at once, and the cycles of a GPU in a second, at most."""


def in_turn(
    runs: Mapping[str, Callable[[], object]], hosts: Mapping[str, float], device: str, rounds: int
) -> dict[str, list[float]]:
    """Returns the milliseconds of a call of each function, as many as there are rounds.

    Args:
        runs: the functions by name.
        hosts: the milliseconds that the host needs for a call of each.
        device: "cuda" for the current GPU; "cpu" takes the time of the host.
        rounds: the turns of all functions.
    """
    calls = {}
    for name, run in runs.items():
        once = _milliseconds(run, 1, hosts[name], device)
        calls[name] = max(1, min(50, int(LEAST_SECONDS * 1e3 / max(once, 1e-3))))
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            times[name].append(_milliseconds(run, calls[name], hosts[name], device))
    return times


def _milliseconds(run: Callable[[], object], calls: int, host: float, device: str) -> float:
    if device != "cuda":
        began = time.perf_counter()
        for _ in range(calls):
            run()
        return (time.perf_counter() - began) * 1e3 / calls
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    # the device waits until the host has given it all calls, so that it never waits for one of them
    keep_gpu_busy(int((1.5 * host * calls + 0.1) * 1e-3 * CYCLES))
    begin.record()
    for _ in range(calls):
        run()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / calls


def host_milliseconds(run: Callable[[], object], device: str, calls: int = 5) -> float:
    """Returns the median time that the host needs for a call.

    Args:
        run: the call.
        device: as for ``in_turn``.
        calls: how often it is measured.
    """
    times = []
    for _ in range(calls):
        if device == "cuda":
            torch.cuda.synchronize()
        began = time.perf_counter()
        run()
        times.append((time.perf_counter() - began) * 1e3)
    return median(times)
