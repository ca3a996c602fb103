"""Chooses a kernel, for running a call or explaining it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from ..errors import HeadwayError
from ._base import Kernel
from ._problem import Call, Problem


class Choice(NamedTuple):
    """The kernel that a call takes, and the reasons against each kernel that was considered.

    Attributes:
        kernel: the kernel's name; None if no kernel can run the call.
        reasons: why each kernel cannot run the call; empty for those that can.
        deferred: kernels that can run the call but leave it to another one, with the reason.
    """

    kernel: str | None
    reasons: dict[str, list[str]]
    deferred: dict[str, str]


def choose(kernels: Mapping[str, Kernel], problem: Problem, name: str = "auto", *, ask_all: bool = False) -> Choice:
    """Chooses the kernel ``name``, or for "auto" the first that can run the problem and does not defer.

    A kernel defers only to a later kernel of the table that can run the problem.

    Args:
        kernels: the table, in order of preference.
        problem: the facts of the call.
        name: "auto", or a name of the table.
        ask_all: whether to collect the reasons of all kernels, not only of those up to the chosen one.
    """
    chosen, reasons, deferred = None, {}, {}
    asked: dict[str, list[str]] = {}
    for known, kernel in kernels.items():
        eligible = chosen is None and (name == "auto" or name == known)
        if not eligible and not ask_all:
            continue
        against = reasons[known] = asked[known] if known in asked else kernel.why_not(problem)
        if against or not eligible:
            continue
        deferral = kernel.defers(problem) if name == "auto" else None
        if deferral is not None and deferral.to in kernels:
            asked[deferral.to] = kernels[deferral.to].why_not(problem)
            if not asked[deferral.to]:
                deferred[known] = deferral.why
                continue
        chosen = known
        if not ask_all:
            break
    return Choice(chosen, reasons, deferred)


def kernel_for(kernels: Mapping[str, Kernel], call: Call, name: str) -> Kernel:
    """Returns the kernel that runs a call.

    Args:
        kernels: the table, in order of preference.
        call: the call.
        name: "auto", or a name of the table.

    Raises:
        HeadwayError: if the requested kernel cannot run the call, or no kernel can.
    """
    choice = choose(kernels, Problem.of(call), name)
    if choice.kernel is not None:
        return kernels[choice.kernel]
    if name == "auto":
        raise HeadwayError("no kernel can run this call; headway.explain(…) gives each one's reasons")
    raise HeadwayError(
        f"kernel {name!r} cannot run q {tuple(call.q.shape)}, k {tuple(call.k.shape)} in {call.q.dtype}: "
        f"{'; '.join(choice.reasons[name])}: leave kernel='auto'"
    )
