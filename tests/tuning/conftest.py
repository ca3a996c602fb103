"""A machine without tables of its own, and a kernel that has to be verified."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from headway.kernels import KERNELS, Call, Problem, _tuned
from headway.kernels._base import Deferral
from headway.kernels.reference import ReferenceKernel
from headway.testing.fuzz import Case
from headway.tuning import _run


def short(case: Case) -> Case:
    """The same call with a few tokens, for what does not depend on their number."""
    return replace(case, n=min(case.n, 5), m=min(case.m, 9), head_dim=8, v_dim=8)


def read_only(monkeypatch: pytest.MonkeyPatch, *, known: bool = True) -> None:
    """Makes every disk one that takes nothing, root's files neither; ``known`` says whether it can be asked before."""

    def refused(path: Any, *_: Any, **__: Any) -> Any:
        raise OSError(errno.EROFS, "Read-only file system", str(path))

    access = os.access
    if known:
        monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK and access(path, mode))
    for name in ("mkdir", "replace", "rename", "unlink"):
        monkeypatch.setattr(os, name, refused)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of tables, which is empty."""
    monkeypatch.setenv("HEADWAY_TUNED", str(tmp_path / "tuned"))
    _run.forget()
    yield tmp_path / "tuned"
    monkeypatch.undo()
    _run.forget()


class Mocked(ReferenceKernel):
    """Stands in the table for a kernel of a GPU, and computes on the CPU; ``spoil`` changes its output."""

    name = "mocked"

    def __init__(self, stands_for: str) -> None:
        super().__init__()
        self.stands_for = stands_for

    def defers(self, problem: Problem) -> Deferral | None:
        return _tuned.deferral_if_verified(self.stands_for, problem)

    def note(self, problem: Problem) -> str:
        return _tuned.note(self.stands_for, problem)

    def spoil(self, call: Call, out: Tensor) -> Tensor:
        return out

    def run(self, call: Call) -> tuple[Tensor, Tensor | None]:
        out, lse = super().run(call)
        return self.spoil(call, out), lse


@pytest.fixture
def mocked(monkeypatch: pytest.MonkeyPatch) -> Iterator[Mocked]:
    """The kernel triton, first in the table, on a CPU whose own kernel is away."""
    kernel, every = Mocked("triton"), dict(KERNELS)
    KERNELS.clear()
    KERNELS.update({"triton": kernel} | {name: one for name, one in every.items() if name not in ("triton", "cpu")})
    monkeypatch.setattr(_tuned, "MACHINES", ("cpu",))
    monkeypatch.setitem(_run.TUNED, "cpu", {"triton": 0.5})
    yield kernel
    KERNELS.clear()
    KERNELS.update(every)


@pytest.fixture
def x() -> Tensor:
    return torch.randn(1, 4, 512, 64, generator=torch.Generator().manual_seed(0))
