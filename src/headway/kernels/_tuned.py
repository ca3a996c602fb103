"""Chooses kernels by the checks and measurements of this machine.

``headway tune`` writes a table; some tables come with headway (tuning/shipped). A call is described by properties and
sizes, and the rows that apply to it say which kernel is faster. This module measures nothing.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from functools import cache, lru_cache
from typing import Any, NamedTuple

import torch

from .._common import processor, tuned
from .._common.tuned import Case, Row, Table
from .._common.version import __version__, code_hash
from .._torch import constant_in_graphs, functorch_active, has_amx
from ..errors import HeadwayError
from ..masks import Boolean, Causal, Mask, parts_of
from ..terms import DistanceBias, QueryScale, TokenBias
from ._base import Deferral
from ._problem import Problem

CHEAP_TERMS = (DistanceBias, TokenBias, QueryScale)
"""Terms whose dense bias, which SDPA needs, is cheap to compute."""
NEED_VERIFICATION = ("triton", "flex")
"""The kernels that "auto" chooses only on machines where they were verified."""
MACHINES = ("cuda",)
"""The types of devices that these kernels run on."""
EVALUATED = frozenset({"Function", "BlockFunction", "Interval", "Bits", "Boolean"})
MASKS = frozenset(kind.__name__ for kind in Mask.__subclasses__()) - EVALUATED
"""The masks that are verified one by one. All others, such as a user's, are evaluated and count as Boolean."""
SPOKEN = {"sdpa": "torch's SDPA", "flex": "FlexAttention"}
RUN = "run `headway tune`"
TIE = 0.97
"""Another way counts as faster if it takes less than this fraction of the time."""


class Known(NamedTuple):
    """The tables that hold on a device.

    Attributes:
        own: the table that was measured here, or None.
        shipped: the tables that come with headway.
        dropped: why a table of this device is not used; empty if all are.
    """

    own: Table | None
    shipped: tuple[Table, ...]
    dropped: str

    @property
    def all(self) -> tuple[Table, ...]:
        """All tables, the own one first."""
        return self.shipped if self.own is None else (self.own, *self.shipped)


@cache
def known(device: str) -> Known:
    """Returns the tables for a device; they are read once.

    Args:
        device: such as "cpu" or "cuda:0".
    """
    try:
        machine = machine_of(device)
    except (AssertionError, RuntimeError):  # a fake tensor on a device that this machine lacks
        return Known(None, (), "")
    shipped = tuple(table for table in tuned.shipped() if not table.misfit(machine))
    files = tuned.places()
    if not files:  # on most machines: no need to hash the code
        return Known(None, shipped, "")
    facts, own, dropped = facts_of(device), None, ""
    for file in files:
        try:
            table = tuned.read(file)
        except HeadwayError as error:
            dropped = str(error)
            continue
        if not all(table.fits.get(name) == facts[name] for name in ("device", "name")):
            continue  # of another device
        misfit = misfit_of(table, facts)
        if misfit:
            dropped = f"the table of {table.date} is not used, since {misfit}: {RUN} again"
        elif own is None or table.date > own.date:
            own = table
    return Known(own, shipped, "" if own else dropped)


def misfit_of(table: Table, facts: Mapping[str, Any]) -> str:
    """Returns why a table of one machine does not apply to another one; empty if it does.

    Facts that the table does not name may differ.

    Args:
        table: the table.
        facts: those of the machine, as ``facts_of`` returns them.
    """
    missing = [name for name in fits_of(facts) if name not in table.fits]
    return f"it does not say its {missing[0]}" if missing else table.misfit(facts)


def fits_of(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the facts that the table of a machine names. A processor is named by its vendor and family."""
    return {name: value for name, value in facts.items() if name not in ("vendor", "family")}


generation = 0
"""How often the tables were read again. Plans depend on it."""


def forget() -> None:
    """Drops the tables, so that their next use reads them again."""
    global generation
    known.cache_clear()
    _by_direction.cache_clear()
    generation += 1


# ---------------------------------------------------------------- the machine


def machine_of(device: str) -> dict[str, Any]:
    """Returns the facts of a machine that a table which comes with headway must match.

    Args:
        device: such as "cpu" or "cuda:0".
    """
    kind = device.partition(":")[0]
    if kind == "cuda":
        major, minor = torch.cuda.get_device_capability(device)
        return {"device": kind, "capability": f"{major}.{minor}"}
    vendor, family = processor.vendor_and_family()
    return {"device": kind, "machine": platform.machine().lower(), "vendor": vendor, "family": family}


def facts_of(device: str) -> dict[str, Any]:
    """Returns the facts of a machine that its own table must match.

    They are the device, versions and headway's code; on a CPU also the instruction set of the process.

    Args:
        device: as for ``machine_of``.
    """
    facts = machine_of(device) | {"torch": torch.__version__, "headway": code()}
    if facts["device"] == "cuda":
        return facts | {"name": torch.cuda.get_device_name(device), "triton": _triton()}
    name = " ".join(filter(None, (processor.name(), processor.cpuinfo().get("model"))))
    return facts | {"name": name, "isa": _isa()}


def _isa() -> str:
    from .cpu import _library  # whose package reads tables

    try:
        return _library.isa_of_process() or "none"
    except HeadwayError:  # HEADWAY_ISA is not an instruction set: the kernel raises when it is requested
        return "none"


def name_of(facts: Mapping[str, Any]) -> str:
    """Returns the name of a machine's table. Each instruction set has a table of its own."""
    return " ".join(str(facts[name]) for name in ("device", "name", "isa") if name in facts)


def _triton() -> str:
    try:
        from triton import __version__ as version
    except ImportError:
        return "none"
    return str(version)


@cache
def code() -> str:
    """Returns headway's version and a hash of its kernels, including compiled libraries."""
    files = ("attention", "call", "coordinates", "masks", "terms", "nn/linear", "kernels")
    return f"{__version__}+{code_hash(*files)}"


# ---------------------------------------------------------------- a call


def case_of(problem: Problem, isa: str = "") -> Case:
    """Returns the properties by which a table distinguishes calls, except "direction" (inference or training).

    Args:
        problem: the facts of the call.
        isa: the instruction set, on a CPU.
    """
    p = problem
    return (
        ("isa", isa),
        ("dtype", str(p.dtype).removeprefix("torch.")),
        ("terms", _terms(p)),
        ("mask", _mask(p)),
        ("queries", "one" if p.n == 1 else "many"),
        ("shared_keys", "no" if p.heads == p.kv_heads else "yes"),
        ("compiled", "yes" if torch.compiler.is_compiling() else "no"),
        ("amx", "yes" if p.device == "cpu" and has_amx() else "no"),
    )


def _terms(problem: Problem) -> str:
    if not problem.terms:
        return "none"
    return "distances" if all(isinstance(term, CHEAP_TERMS) for term in problem.terms) else "others"


def _mask(problem: Problem) -> str:
    p = problem
    if p.mask is None:
        return "none"
    return "causal" if type(p.mask) is Causal and p.aligned and p.n == p.m else "others"


def place_of(problem: Problem) -> str:
    """Returns the name of the device of a call, such as "cpu" or "cuda:0"."""
    device = problem.where
    return device.type if device.index is None else f"{device.type}:{device.index}"


def sizes_of(problem: Problem) -> dict[str, float]:
    """Returns the sizes by which a table distinguishes calls.

    "heads" is the number of heads in all sequences, "work" the number of multiply-adds of q·kᵀ.
    """
    p = problem
    heads = p.batch * p.heads
    return {"n": p.n, "m": p.m, "head_dim": p.head_dim, "heads": heads, "work": heads * p.n * p.m * p.head_dim}


def needed_by(problem: Problem) -> list[str]:
    """Returns the names of the parts that must be verified before a kernel is chosen for a call."""
    kinds = ["plain", *[type(term).__name__ for term in problem.terms], *masks_in(problem.mask)]
    kinds += ["dropout"] if problem.dropout else []
    kinds += ["log-sum-exp"] if problem.wants_lse else []
    direction = "backward" if problem.wanted else "forward"
    dtype = str(problem.dtype).removeprefix("torch.")
    return [part(kind, dtype, direction) for kind in dict.fromkeys(kinds)]


def part(kind: str, dtype: str, direction: str) -> str:
    """Returns the name of a part to be verified.

    Args:
        kind: "plain", the name of a class of a term or a mask, "dropout" or "log-sum-exp".
        dtype: the name of q's dtype.
        direction: "forward" or "backward".
    """
    return f"{kind}, {dtype}, {direction}"


def masks_in(mask: Mask | None) -> list[str]:
    """Returns the names of headway's mask classes in a mask."""
    if mask is None:
        return []
    if joined := parts_of(mask):
        return [name for inner in joined for name in masks_in(inner)]
    name = type(mask).__name__
    return [name if name in MASKS else Boolean.__name__]


# ---------------------------------------------------------------- the decision


def left_by(way: str, problem: Problem, isa: str = "") -> Deferral | None:
    """Returns the kernel that was measured to be faster for a call; None if there is no faster one.

    The first table with rows for the call decides. Without any such table, ``to`` is empty.

    Args:
        way: the name of the kernel that would run.
        problem: the facts of the call.
        isa: the instruction set, on a CPU.
    """
    place = place_of(problem)
    case = case_of(problem, isa)
    if torch.compiler.is_compiling() or _by_direction(way, place, case):  # finding the direction is slow
        case += (("direction", "training" if problem.recorded or functorch_active() else "inference"),)
    rivals = NEED_VERIFICATION if problem.device in MACHINES else ()
    unverified = tuple([name for name in rivals if name != way and why_unverified(name, problem)])
    if torch.compiler.is_compiling():  # with sizes a compiler would specialize on lengths
        to, _, why = _left_if_long(way, place, case, unverified).partition(": ")
        return Deferral(to, why) if why else None
    return decide(way, place, case, sizes_of(problem), unverified)


@lru_cache(maxsize=512)
def _by_direction(way: str, place: str, case: Case) -> bool:
    there = dict(case)
    rows = [row for table in known(place).all for row in table.rows if way in row.times and "direction" in row.case]
    return any(row.holds(there | {"direction": value}) for row in rows for value in row.case["direction"])


@constant_in_graphs
def _left_if_long(way: str, place: str, case: Case, unverified: tuple[str, ...]) -> str:
    deferral = decide(way, place, case, None, unverified)
    return "" if deferral is None else f"{deferral.to}: {deferral.why}"


def decide(
    way: str, place: str, case: Case, sizes: Mapping[str, float] | None, ignored: tuple[str, ...] = ()
) -> Deferral | None:
    """Returns the way that was measured to be the fastest; None if none is faster than ``way``.

    Args:
        way: the way that would be taken.
        place: the device.
        case: the properties of the computation.
        sizes: its sizes; None for sizes beyond all rows.
        ignored: ways that cannot be taken.
    """
    tables = known(place)
    for table in tables.all:
        if rows := table.applying(way, case, sizes):
            return _lost(way, rows, table.date if table is tables.own else "", ignored)
    return Deferral("", f"not measured on this machine: {RUN}")


def from_which(way: str, case: Case, size: str) -> Mapping[str, float] | None:
    """Returns the sizes of the first row from which no other way is faster on the CPU; None if there is none.

    Args:
        way: the way.
        case: the properties of the computation.
        size: the size by which the rows are ordered.
    """
    for table in known("cpu").all:
        rows = [row for row in table.rows if way in row.times and row.holds(dict(case))]
        if not rows:
            continue
        first = None
        for row in sorted(rows, key=lambda row: -row.sizes.get(size, 0)):
            if _lost(way, [row], "", ()) is not None:
                break
            first = row
        return None if first is None else first.sizes
    return None


def _lost(way: str, rows: list[Row], date: str, ignored: tuple[str, ...]) -> Deferral | None:
    """Returns the way to which this one loses by the largest factor in any row; None if it never loses.

    Args:
        way: the way.
        rows: the rows.
        date: the date of measurement here; empty for rows that come with headway.
        ignored: ways that cannot be taken.
    """
    losses: dict[float, Deferral] = {}
    for row in rows:
        mine = row.times[way]
        for other, its in row.times.items():
            if other == way or other in ignored or its is None or (mine is not None and its[1] >= TIE * mine[0]):
                continue
            low, high = (0.0, 0.0) if mine is None else (its[0] / mine[1], its[1] / mine[0])
            share = f"{high:.2g}" if date else f"{low:g} to {high:g}"
            took = f", which took {share} of its time"
            took += f" here on {date}" if date else "".join(f" with {isa}" for isa in row.case.get("isa", ()))
            losses[high] = Deferral(other, f"left to {SPOKEN.get(other, other)}{row.said or took}")
    if not losses and any(row.times[way] is None for row in rows):
        return Deferral("", "it failed when it was measured on this machine")
    return losses[min(losses)] if losses else None


def why_unverified(way: str, problem: Problem) -> str:
    """Returns why a kernel that needs verification on each machine is not chosen for a call; empty if it may be.

    Args:
        way: the name of the kernel.
        problem: the facts of the call.
    """
    place = place_of(problem)
    return _why_unverified(way, place, tuple(needed_by(problem)) if _has_own(place) else ())


@constant_in_graphs
def _has_own(place: str) -> bool:
    return known(place).own is not None


@constant_in_graphs
def _why_unverified(way: str, place: str, parts: tuple[str, ...]) -> str:
    own, _, dropped = known(place)
    if own is None:
        return f"not verified on this machine: {RUN}" if not dropped else f"not verified on this machine: {dropped}"
    missing = [one for one in parts if one not in own.verified.get(way, ())]
    return _failure(way, place, parts) or (
        f"`headway tune` of {own.date} has not verified it here for {'; '.join(missing)}" if missing else ""
    )


def why_wrong(way: str, problem: Problem) -> str:
    """Returns the error that ``headway tune`` found in a kernel for such a call; empty if there is none.

    Args:
        way: the name of the kernel.
        problem: the facts of the call.
    """
    place = place_of(problem)
    return _failure(way, place, tuple(needed_by(problem))) if _any_wrong(way, place) else ""


@constant_in_graphs
def _any_wrong(way: str, place: str) -> bool:
    own = known(place).own
    return own is not None and bool(own.failed.get(way))


@constant_in_graphs
def _failure(way: str, place: str, parts: tuple[str, ...]) -> str:
    own = known(place).own
    failed = {} if own is None else own.failed.get(way, {})
    for one in parts:
        if own is not None and one in failed:
            return f"`headway tune` found it wrong on this machine on {own.date} ({one}: {failed[one]})"
    return ""


def deferral_if_verified(way: str, problem: Problem) -> Deferral | None:
    """Returns why "auto" leaves a call to later kernels: this kernel is unverified or slower. None if neither.

    Args:
        way: the name of a kernel of NEED_VERIFICATION.
        problem: the facts of the call.
    """
    why = why_unverified(way, problem)
    if why:
        return Deferral("reference", why)
    left = left_by(way, problem)
    return left if left is None or left.to else Deferral("reference", left.why)


def note(way: str, problem: Problem) -> str:
    """Returns when a kernel was verified on the device of a call, for ``explain``; empty if it was not.

    Args:
        way: the name of the kernel.
        problem: the facts of the call.
    """
    own, _, dropped = known(place_of(problem))
    if own is None:
        return dropped
    return f"verified and measured here on {own.date}" if own.verified.get(way) else ""
