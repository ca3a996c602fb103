"""Where the jobs of an experiment run: in this process, in several of this machine, in Slurm, or in Ray."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...errors import HeadwayError
from ..literals import arguments_in
from ._base import Engine, Report
from .here import Here
from .processes import Processes, processors
from .ray import Ray
from .slurm import Slurm

__all__ = ["ENGINES", "Engine", "Here", "Processes", "Ray", "Report", "Slurm", "engine_named", "processors"]

ENGINES = ("slurm", "ray")
"""The names that --on takes; those of Slurm and Ray may have parameters and an address."""


def engine_named(spec: str, jobs: int, out: Path, files: Sequence[str] = ()) -> Engine:
    """Returns the engine that a name describes.

    Args:
        spec: slurm, slurm(timeout_min=30, slurm_partition='cpu') with parameters of submitit, ray, or ray://address.
        jobs: the number of jobs at once.
        out: the folder of the experiment.
        files: files that the jobs read, by paths from this folder.

    Raises:
        HeadwayError: if there is no engine of that name, or a package that it needs is not installed.
    """
    if spec == "ray" or spec.startswith("ray://"):
        return Ray(jobs, None if spec == "ray" else spec, files)
    if named := re.fullmatch(r"slurm(?:\((.*)\))?", spec, re.DOTALL):
        parameters = _parameters(spec, named[1] or "")
        for name in ("jobs", "folder", "self"):
            if name in parameters:
                raise HeadwayError(f"--on {spec!r}: {name} is not a parameter of submitit: give --jobs and --out")
        return Slurm(jobs, out / "slurm", **parameters)
    raise HeadwayError(f"there is no engine {spec!r}: give slurm, slurm(timeout_min=30), ray or ray://address")


def _parameters(spec: str, text: str) -> dict[str, Any]:
    """The parameters in brackets by name: literals only, nothing is evaluated."""
    found = arguments_in(text)
    if found is not None and not found[0]:
        return found[1]
    raise HeadwayError(f"--on {spec!r}: give parameters as literals, such as slurm(timeout_min=30)")
