"""How long the host needs for calls of the Triton kernel, with plans and without, in one process.

    PYTHONPATH=src:tests python -m gpu.host                     on a GPU
    PYTHONPATH=src:tests python -m gpu.host --pretend           without one: programs are compiled, and not started

Both sides take turns, and their medians are printed in µs: what a call takes in all, in ``triton[…]``, which finds a
program by its arguments and starts it, and in the start of programs that were kept. Without a GPU it is the processor's
time, and what torch computes of tables counts too, which a GPU would compute beside.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from statistics import median
from typing import Any
from unittest import mock

import torch
from torch import Tensor

import headway as hw
from headway import masks, plans

from . import pretended

NAMES = ("none", "alibi", "rope", "t5", "kerple-log")
ROUNDS = 60


class Clock:
    """Adds up the time in some functions.

    Args:
        now: reads the clock, in seconds.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self.now, self.spent, self.count = now, 0.0, 0

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Returns the function, whose time is added."""

        def timed(*arguments: Any, **named: Any) -> Any:
            began = self.now()
            found = function(*arguments, **named)
            self.spent += self.now() - began
            self.count += 1
            return found

        return timed

    def read(self) -> float:
        """Returns the time since the last reading, in µs."""
        spent, self.spent = self.spent, 0.0
        return 1e6 * spent


@contextmanager
def clocks(now: Callable[[], float]) -> Iterator[tuple[Clock, Clock]]:
    """Clocks of the starts that triton finds, and of those that were kept."""
    from headway.kernels.triton import _launch, _start

    found, kept = Clock(now), Clock(now)
    of = _start.Kept.of

    def clocked(*arguments: Any) -> Any:
        one = of(*arguments)
        return one._replace(run=kept.around(one.run))

    with ExitStack() as patches:
        timed = found.around(_start.start)
        for module in (_launch, _start):
            patches.enter_context(mock.patch.object(module, "start", timed))
        patches.enter_context(mock.patch.object(_start.Kept, "of", clocked))
        yield found, kept


@contextmanager
def without_plans() -> Iterator[None]:
    with mock.patch.object(plans, "key_of", return_value=None):
        yield


class Case:
    """Causal calls of an encoding, forward, and forward and backward.

    Args:
        name: the name of the encoding, or "none".
        n: the tokens.
        device: where they are.
    """

    def __init__(self, name: str, n: int, device: str) -> None:
        self.encoding = None if name == "none" else hw.encoding(name, num_heads=8, head_dim=64).to(device)
        self.leaves = [
            torch.zeros(1, 8, n, 64, dtype=torch.bfloat16, device=device, requires_grad=True) for _ in range(3)
        ]
        self.upstream = torch.zeros(1, 8, n, 64, dtype=torch.bfloat16, device=device)
        self.wanted = [*self.leaves, *(() if self.encoding is None else self.encoding.parameters())]

    def forward(self) -> Tensor:
        return hw.attention(*self.leaves, encoding=self.encoding, mask=masks.Causal(), kernel="triton")

    def without_gradient(self) -> None:
        with torch.no_grad():
            self.forward()

    def with_gradient(self) -> None:
        torch.autograd.grad(self.forward(), self.wanted, self.upstream)


def measured(run: Callable[[], None], rounds: int, found: Clock, kept: Clock) -> dict[str, dict[str, float]]:
    """Returns the medians of a call without plans and with them, which take turns."""
    rows: dict[str, list[tuple[float, float, float]]] = {"without": [], "with": []}
    starts: dict[str, int] = {}
    for number in range(rounds + 2):
        for side, times in rows.items():
            with ExitStack() as patches:
                if side == "without":
                    patches.enter_context(without_plans())
                if torch.cuda.is_available():
                    torch.cuda.synchronize()
                found.count = kept.count = 0
                began = found.now()
                run()
                spent = 1e6 * (found.now() - began)
            starts[side] = found.count + kept.count
            row = spent, found.read(), kept.read()
            if number >= 2:  # the first ones compile
                times.append(row)
    names = "all", "found by triton", "kept"
    return {
        side: {name: round(median(row[i] for row in times), 1) for i, name in enumerate(names)}
        | {"starts": starts[side]}
        for side, times in rows.items()
    }


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pretend", action="store_true", help="without a GPU")
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--json", action="store_true", help="a line of JSON for each row")
    parser.add_argument("names", nargs="*", default=NAMES)
    chosen = parser.parse_args(words)
    if not chosen.pretend and not torch.cuda.is_available():
        print("no NVIDIA GPU: give --pretend", file=sys.stderr)
        return 2
    if not chosen.json:
        print("encoding, pass           without plans   of it triton   with plans   of it starts   programs")
    with ExitStack() as context:
        if chosen.pretend:
            torch.set_num_threads(1)
            context.enter_context(pretended.gpu())
        # other work on the machine does not count where nothing is waited for
        found, kept = context.enter_context(clocks(time.process_time if chosen.pretend else time.perf_counter))
        for name in chosen.names:
            case = Case(name, chosen.tokens, "cpu" if chosen.pretend else "cuda")
            for title, run in (("forward", case.without_gradient), ("and backward", case.with_gradient)):
                rows = measured(run, chosen.rounds, found, kept)
                without, planned = rows["without"], rows["with"]
                if chosen.json:
                    print(json.dumps({"encoding": name, "pass": title, "tokens": chosen.tokens} | rows), flush=True)
                else:
                    print(
                        f"{name + ', ' + title:24} {without['all']:13.0f} {without['found by triton']:14.0f}"
                        f" {planned['all']:12.0f} {planned['kept']:14.0f} {planned['starts']:10}",
                        flush=True,
                    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
