"""One run of ``headway tune``: verify, measure, write the table."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import torch

from .._common import tuned
from .._common.devices import device_named
from .._common.files import need_file_place, need_folder_place
from .._common.language import said
from .._common.progress import Share, Tell, nobody
from .._torch import ONEDNN_LINEAR
from ..bench import linear as products
from ..bench.machine import processor as processor_named
from ..errors import HeadwayError
from ..kernels import _tuned
from ..kernels._products import least_of, onednn_isa
from . import _fast, _right

__all__ = ["Tuned", "export_table", "import_table", "tune"]

TUNED = {"cpu": {"cpu": 0.5}, "cuda": {"triton": 0.35, "flex": 0.5}}
"""The kernels that are verified and measured on each type of device, and the part of the time when each is verified."""
MINUTES = {"cpu": 3.0, "cuda": 5.0}
COMPILED = 0.8
"""On a GPU, the part of the time that is for compiling the programs of the measurements."""
LINEAR = 0.15
"""The most of the time that linear maps may take. Attention is measured in the rest."""
LEAST_FOR_LINEAR = 5.0
"""Seconds. In less time, measurements of linear maps cannot be distinguished."""
WORK = tuple(1 << bits for bits in (18, 20, 22, 24, 25, 26, 28))
"""Multiply-adds of each thread, of the linear maps that are measured."""
ROWS, WIDTH = 128, 64
"""The fewest tokens and features of a linear map for which its table holds."""


@dataclass(frozen=True)
class Tuned:
    """What ``tune`` found.

    Attributes:
        file: the table that was written.
        content: its content.
        refused: how many checks each kernel refused.
        left: how many checks and measurements there was no time for.
    """

    file: Path
    content: Mapping[str, Any]
    refused: Mapping[str, int] = field(default_factory=dict)
    left: int = 0

    def __str__(self) -> str:
        lines = [f"{self.content['fits']['name']}: {self.file}"]
        for kernel, parts in self.content["verified"].items():
            wrong = self.content["failed"].get(kernel, {})
            right = "{kernel}: right in {count} of {parts} checked parts"
            lines.append(f"  {said(right, kernel=kernel, count=len(parts), parts=len(parts) + len(wrong))}")
            lines += [f"    {said('wrong: {why}', why=f'{part}: {why}')}" for part, why in wrong.items()]
        lines += [f"  {line}" for line in _compared(self.content["rows"])]
        if self.left:
            left = said("{count} checks or measurements were left out for time: --minutes takes more", count=self.left)
            lines.append(f"  {left}")
        return "\n".join(lines)


def tune(device: str = "auto", *, minutes: float | None = None, watch: Tell = nobody) -> Tuned:
    """Verifies and measures the kernels of a device, and writes the table that ``kernel="auto"`` reads.

    First each kernel is compared with float64, forward and backward, for each kind of term and mask in each dtype;
    three runs must give equal bits. Then kernels that compute the same are timed in turn. An interrupted run leaves the
    table of an earlier one unchanged.

    Args:
        device: "cpu", a GPU such as "cuda:0", or "auto" for a GPU if there is one, else the CPU.
        minutes: the maximum time for the whole run. Default: 3 on a CPU, 5 on a GPU.
        watch: is told the current step and the share of all work that is done, 0 … 1.

    Returns:
        What was found. It prints as a summary.

    Raises:
        HeadwayError: if there is no such device, nothing can be tuned for it, or the table cannot be written.
    """
    device = device_named(device)
    kind = torch.device(device).type
    if kind not in TUNED:
        raise HeadwayError(f"device is {device!r}, and headway has kernels for cpu and cuda: give one of these")
    if minutes is not None and not minutes > 0:
        raise HeadwayError(f"minutes is {minutes}: give a number above 0")
    device = f"cuda:{torch.cuda.current_device()}" if device == "cuda" else device
    facts = _tuned.facts_of(device)
    file = tuned.file_of(_tuned.name_of(facts))
    _need_tables()
    need_folder_place(file.parent)
    if file.parent.is_dir():
        need_file_place(file)
    seconds = 60 * (MINUTES[kind] if minutes is None else minutes)
    began, start = datetime.now(), time.monotonic()
    content: dict[str, Any] = {
        "fits": _tuned.fits_of(facts),
        "date": began.isoformat(" ", "minutes"),
        "about": _about(device),
    }
    content |= {"verified": {}, "failed": {}, "rows": []}

    def told(doing: str) -> Share:
        return lambda done: watch(doing, min(1.0, (time.monotonic() - start) / seconds) if done < 1 else 0.999)

    refused, left = {}, 0
    for kernel, until in TUNED[kind].items():
        checks, rest = list(_right.checks(kernel, device)), start + until * seconds - time.monotonic()
        found = _right.verify(checks, seconds=rest, watch=told(said("verifying {kernel}", kernel=kernel)))
        content["verified"][kernel], content["failed"][kernel] = sorted(found.right), found.wrong
        refused[kernel], left = found.refused, left + found.left
    for_linear = LINEAR * seconds if kind == "cpu" and ONEDNN_LINEAR and onednn_isa() else 0.0
    for_linear = for_linear if for_linear >= LEAST_FOR_LINEAR else 0.0
    kernels = tuple(name for name in TUNED[kind] if content["verified"][name])
    cells = list(_fast.cells(device))
    if kind != "cpu":
        rest = start + COMPILED * seconds - time.monotonic()
        cells, uncompiled = _fast.compile_all(cells, device, kernels, rest, told(said("compiling")))
        left += uncompiled
    until = start + seconds - for_linear
    rows, unmeasured = _fast.measure_all(
        cells, device, kernels, until - time.monotonic(), told(said("measuring attention"))
    )
    content["rows"] += rows
    if for_linear:
        content["rows"] += _linear_rows(for_linear, told(said("measuring linear maps")))
    content["about"]["seconds"] = round(time.monotonic() - start)
    tuned.write(file, content)
    forget()
    return Tuned(file, content, refused, left + unmeasured)


def _need_tables() -> None:
    """Checks that tables are read."""
    if os.environ.get(tuned.VARIABLE) == tuned.OFF:
        raise HeadwayError(f"{tuned.VARIABLE} is {tuned.OFF}, so tables are not read: unset it, or name a folder")


def forget() -> None:
    """Reads the tables again when they are needed next."""
    _tuned.forget()
    least_of.cache_clear()


def export_table(file: Path, device: str = "auto") -> Path:
    """Writes the table of a device to a file, for other machines of the same kind.

    Args:
        file: the file; one that exists is replaced.
        device: as for ``tune``.

    Returns:
        The table that was copied.

    Raises:
        HeadwayError: if there is no table, tables are not read, or the file cannot be written.
    """
    need_file_place(file)
    _need_tables()
    facts = _tuned.facts_of(device_named(device))
    own = tuned.file_of(_tuned.name_of(facts))
    if not own.is_file():
        raise HeadwayError(f"there is no table for {facts['name']}: run `headway tune` first")
    table = tuned.read(own)
    if misfit := _tuned.misfit_of(table, facts):
        raise HeadwayError(f"{own} no longer holds here, since {misfit}: run `headway tune` again")
    tuned.copy(own, file)
    return own


def import_table(file: Path, device: str = "auto") -> Path:
    """Installs a table that ``export_table`` wrote on another machine of the same kind.

    Args:
        file: the table.
        device: as for ``tune``.

    Returns:
        Where it was written.

    Raises:
        HeadwayError: if the file is not a table, was made on another kind of machine or for other versions, or if the
            table cannot be written.
    """
    facts = _tuned.facts_of(device_named(device))
    _need_tables()
    exported = "give one that `headway tune --export` wrote"
    table = tuned.read(file, exported)
    if "name" not in table.fits:
        raise HeadwayError(f"{file} is not a table of one machine: {exported}")
    if misfit := _tuned.misfit_of(table, facts):
        raise HeadwayError(f"{file} does not hold here, since {misfit}: run `headway tune` on this machine")
    own = tuned.file_of(_tuned.name_of(facts))
    tuned.copy(file, own)
    forget()
    return own


def _about(device: str) -> dict[str, Any]:
    if device != "cpu":
        return {"cuda": torch.version.cuda, "driver": _driver(), "gpu": torch.cuda.get_device_name(device)}
    return {"threads": torch.get_num_threads(), "processor": processor_named()}


def _driver() -> str:
    """Returns the version of NVIDIA's driver; "unknown" if its library does not tell.

    A table names it but also holds for other drivers, since programs are compiled by triton and torch.
    """
    try:
        library = ctypes.CDLL("nvml.dll" if os.name == "nt" else "libnvidia-ml.so.1")
        version = ctypes.create_string_buffer(80)
        failed = library.nvmlInit_v2() or library.nvmlSystemGetDriverVersion(version, len(version))
    except (OSError, AttributeError):  # no library, or one without these functions
        return "unknown"
    return "unknown" if failed else version.value.decode()


def _linear_rows(seconds: float, watch: Share) -> list[dict[str, Any]]:
    """Rows of the three products of a linear map, from small ones to large ones."""
    threads, rows = torch.get_num_threads(), []
    for number, work in enumerate(WORK):
        sizes = {"work": work, "rows": ROWS, "width": WIDTH}
        for product, ratio in _linear_ratios(work * threads, seconds / len(WORK)).items():
            case = {"product": product, "isa": onednn_isa(), "dtype": "float32"}
            rows.append({"case": case, "from": sizes, "times": {"onednn": 1.0, "torch": float(f"{ratio:.3g}")}})
        watch((number + 1) / len(WORK))
    return rows


def _linear_ratios(work: int, seconds: float) -> dict[str, float]:
    """How many times as fast as torch oneDNN is, for each product of a linear map with so many multiply-adds."""
    width = max(WIDTH, round((work / (2 * ROWS)) ** 0.5))
    return products.measure((2 * ROWS, width, width), seconds / 8, 3)


def _compared(rows: list[dict[str, Any]]) -> list[str]:
    """A line for each kind of call: in how many calls each kernel is the fastest."""
    groups: dict[tuple[str, str, str], list[dict[str, float]]] = {}
    for row in rows:
        case, times = row["case"], {name: one for name, one in row["times"].items() if one is not None}
        if len(times) > 1:
            first = said(case["direction"]) if "direction" in case else ""
            if "product" in case:
                first = said("linear maps, {product}", product=case["product"])
            terms = "" if "product" in case else said("terms: {terms}", terms=case["terms"])
            groups.setdefault((first, terms, case["dtype"]), []).append(times)
    lines = []
    for names, measured in groups.items():
        wins: dict[str, list[float]] = {}
        for times in measured:
            (shortest, best), (second, _) = sorted((ms, name) for name, ms in times.items())[:2]
            wins.setdefault(best, []).append(second / shortest)
        fastest = said("; ").join(
            said(
                "{kernel} {count} of {calls}, {low:.2f} to {high:.2f} times as fast",
                kernel=kernel,
                count=len(ratios),
                calls=len(measured),
                low=min(ratios),
                high=max(ratios),
            )
            for kernel, ratios in sorted(wins.items())
        )
        calls = said(", ").join(filter(None, names))
        lines.append(said("{calls}: fastest is {fastest}", calls=calls, fastest=fastest))
    return lines
