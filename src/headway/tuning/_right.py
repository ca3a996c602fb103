"""Checks which kernels compute correctly on a device: each term, mask and option, in each dtype and direction.

A check is a case of ``headway.testing.fuzz``: three runs with the same bits, within the bounds of the naive
computation's error against float64, with lengths that no block divides, and with NaN where a mask hides keys. Checks
run in separate processes, so that a program that crashes is a result like any other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cache
from time import monotonic

import torch

from .._common.progress import Share
from ..errors import HeadwayError
from ..kernels import _tuned
from ..testing.fuzz import Case
from ..testing.fuzz.masks import MASKS, Draw, build
from ..testing.fuzz.search import Outcome, outcome_of
from ..testing.inputs import term_examples
from ..testing.kernels import SHAPES, Draws
from ._fast import DTYPES
from ._processes import outcomes, processes

PLAIN = Case(batch=2, kv_heads=2, group=2, n=67, m=131, head_dim=64, v_dim=64)
"""More queries and keys than a block has, and no multiple of one."""


@dataclass
class Verified:
    """What the checks of one kernel found.

    Attributes:
        right: the names of parts that are right, as ``kernels._tuned.part`` writes them.
        wrong: the wrong parts, each with its error and the call that shows it.
        refused: how many checks the kernel refuses.
        left: how many checks there was no time for.
    """

    right: set[str] = field(default_factory=set)
    wrong: dict[str, str] = field(default_factory=dict)
    refused: int = 0
    left: int = 0


@cache
def kinds() -> dict[str, list[Case]]:
    """Returns the cases of each part: "plain", classes of terms and of masks, "dropout" and "log-sum-exp"."""
    plain = PLAIN
    found = {
        "plain": [
            replace(plain, mask="causal"),
            replace(plain, head_dim=128, v_dim=128, m=67),
            replace(plain, head_dim=40, v_dim=24, layout="tokens first", mask="causal"),
            replace(plain, n=1, m=300, head_dim=128, v_dim=128),
            replace(plain, n=300, m=300, mask="causal", batch=1),
            replace(plain, sink="heads", soft_cap=30.0),
        ],
        "Sink": [replace(plain, sink="heads", mask="causal")],
        "SoftCap": [replace(plain, soft_cap=30.0, mask="causal")],
        "dropout": [replace(plain, dropout=0.1)],
        "log-sum-exp": [replace(plain, lse="with the sink", mask="causal"), replace(plain, lse="without the sink")],
    }
    for name, terms in term_examples(Draws(0, torch.float32), **SHAPES).items():
        for kind in dict.fromkeys(type(term).__name__ for term in terms):
            found.setdefault(kind, []).append(replace(plain, term=name, mask="causal"))
    draw = Draw(torch.Generator().manual_seed(0), 2, 4, 67, 131)
    for name in MASKS:
        for kind in _tuned.masks_in(build(name, draw)):
            found.setdefault(kind, []).append(replace(plain, mask=name, poisoned=True))
    return found


@dataclass(frozen=True)
class Check:
    """A case of a part, in a dtype and a direction."""

    part: str
    case: Case


def checks(kernel: str, device: str) -> Iterator[Check]:
    """Yields all checks of a kernel, beginning with the parts that most calls have.

    Args:
        kernel: its name.
        device: "cpu", or such as "cuda:0".
    """
    for dtype in DTYPES[torch.device(device).type]:
        for direction, gradients in (("forward", "none"), ("backward", "all")):
            for kind, cases in kinds().items():
                for case in cases:
                    given = replace(case, dtype=dtype, gradients=gradients, kernel=kernel, device=device)
                    yield Check(_tuned.part(kind, dtype, direction), given)


def verify(
    chosen: Sequence[Check],
    *,
    seconds: float,
    watch: Share,
    compute: Callable[[Case], Outcome] | None = None,
) -> Verified:
    """Runs checks.

    Args:
        chosen: the checks of one kernel.
        seconds: the time for all of them; checks that are left then count as not verified.
        watch: is told of progress.
        compute: checks a case; by default separate processes do.
    """
    end, found = monotonic() + seconds, Verified()
    cases = [check.case for check in chosen]
    if compute is not None:
        came = outcomes([compute], cases, seconds, watch)
    else:
        with processes(outcome_of, len(cases)) as workers:
            _need_ready(workers, cases[0].device)
            came = outcomes(workers, cases, end - monotonic(), watch)
    by_part: dict[str, list[tuple[Case, Outcome | None]]] = {}
    for check, one in zip(chosen, came, strict=True):
        by_part.setdefault(check.part, []).append((check.case, one))
    for part, its in by_part.items():
        _add(found, part, its)
    return found


def _need_ready(workers: Sequence[Callable[[Case], Outcome]], device: str) -> None:
    """Checks that each process computes at all, before a failure counts against a kernel.

    Args:
        workers: the processes.
        device: where they are to compute.

    Raises:
        HeadwayError: if a process does not.
    """
    case = Case(kernel="reference", device=device)
    with ThreadPoolExecutor(len(workers)) as pool:  # a GPU takes seconds for the first call of a process
        answers = list(pool.map(lambda worker: worker(case), workers))
    for came in answers:
        if came.kind != "taken":
            raise HeadwayError(
                f"a process that is to check kernels does not run ({came.kind}: {came.said}): in a script, call tune() "
                "below `if __name__ == '__main__':`, or run `headway tune`; on a GPU, see that it has room for "
                f"{len(workers)} processes"
            )


def _add(found: Verified, part: str, its: list[tuple[Case, Outcome | None]]) -> None:
    found.left += sum(came is None for _, came in its)
    found.refused += sum(came is not None and came.kind == "refused" for _, came in its)
    failed = [(case, came) for case, came in its if came is not None and came.failed]
    if failed:
        case, came = failed[0]
        said = "".join(letter if letter.isprintable() else " " for letter in came.said)
        found.wrong[part] = f"{came.kind}: {' '.join(said.split())[:300]}: {case}"
    elif all(came is not None for _, came in its) and any(came.kind == "taken" for _, came in its if came):
        found.right.add(part)
