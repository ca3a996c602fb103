"""Draws random calls of attention for some minutes, and says which of them give wrong results.

python -m headway.testing.fuzz --minutes 5 --seed 1
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence

from .search import Summary, fuzz
from .worker import Worker

SHOWN = 12
"""The most reasons of refusals that are printed."""


def main(words: Sequence[str] | None = None) -> int:
    """Runs the fuzzer, and returns 1 if a call failed, else 0."""
    parser = argparse.ArgumentParser(prog="python -m headway.testing.fuzz", description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=5.0, help="how long (default: 5)")
    parser.add_argument("--seed", type=int, help="from which the calls are drawn (default: the date, as 20261231)")
    parser.add_argument("--cases", type=int, help="how many, at most (default: as many as there is time for)")
    parser.add_argument("--threads", type=int, default=2, help="of torch (default: 2)")
    chosen = parser.parse_args(words)
    if not chosen.minutes > 0 or (chosen.cases is not None and chosen.cases < 1) or chosen.threads < 1:
        parser.error("--minutes, --cases and --threads: give numbers above 0")
    seed = int(time.strftime("%Y%m%d")) if chosen.seed is None else chosen.seed
    begun, summary = time.monotonic(), Summary()
    with Worker(chosen.threads) as worker:
        for summary in fuzz(seed, 60 * chosen.minutes, cases=chosen.cases, compute=worker):
            _show(summary, (time.monotonic() - begun) / 60, chosen.minutes)
    if sys.stderr.isatty():
        print(file=sys.stderr)
    print(report(summary, seed))
    return 1 if summary.findings else 0


def _show(summary: Summary, minutes: float, whole: float) -> None:
    if sys.stderr.isatty():
        line = (
            f"{minutes:.1f} of {whole:g} minutes · {summary.kinds.total():,} calls · {len(summary.findings)} findings"
        )
        print(f"\r{line}", end="", file=sys.stderr, flush=True)


def report(summary: Summary, seed: int) -> str:
    """Returns the findings, in words."""
    kinds = summary.kinds
    lines = [f"seed {seed}: {kinds.total():,} calls, {kinds['taken']:,} taken, {kinds['refused']:,} refused"]
    lines += [f"  {count:>5,} × {reason.splitlines()[0]}" for reason, count in summary.reasons.most_common(SHOWN)]
    if len(summary.reasons) > SHOWN:
        lines.append(f"  and {len(summary.reasons) - SHOWN} other reasons")
    lines += [str(finding) for finding in summary.findings] or ["nothing wrong was found"]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
