"""The page that shows what came out on a GPU."""

from __future__ import annotations

import datetime
import platform
import subprocess
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from importlib import metadata
from typing import Any

import headway

from .speed import COPY, DENSE, FLEX, OURS, OURS_PLAIN, REDUCED, SDPA, Case

FIELDS = tuple(Case.__dataclass_fields__)
DECODING = "forward of one query, in a captured graph"
TABLES = [
    ("forward", "forward", [OURS, OURS_PLAIN, REDUCED, SDPA, DENSE, FLEX]),
    ("backward", "backward", [OURS, OURS_PLAIN, SDPA, DENSE, FLEX]),
    (DECODING, "forward", [OURS, OURS_PLAIN, COPY, SDPA, DENSE, FLEX]),
]
"""For each table its title, the direction, and the sides."""
HOSTS = [OURS, SDPA, DENSE, FLEX]
SHOWN = 20
"""Failures and reasons of skipped tests that are written out."""


def facts() -> dict[str, str]:
    """Returns the machine and the versions."""
    import torch

    found = {"date": datetime.date.today().isoformat(), "Python": platform.python_version(), "torch": torch.__version__}
    with suppress(metadata.PackageNotFoundError):
        found["triton"] = metadata.version("triton")
    found["headway"] = headway.__version__
    if torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(0)
        found["GPU"] = (
            f"{properties.name}, {properties.total_memory / 2**30:.0f} GiB, {properties.multi_processor_count} SMs"
        )
        found["CUDA"], found["cuDNN"] = str(torch.version.cuda), str(torch.backends.cudnn.version())
    try:
        asked = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
        found["commit"] = asked.stdout.strip() or "unknown"
    except OSError:
        found["commit"] = "unknown"
    return found


def text(
    machine: dict[str, str], tests: Sequence[dict[str, Any]], speed: Sequence[dict[str, Any]], seconds: float
) -> str:
    """Returns the page as Markdown."""
    parts = ["# What came out on a GPU", "", *(f"- {name}: {value}" for name, value in machine.items())]
    parts += [f"- after {seconds:.0f} s", "", "## Tests", "", *_tests(tests), "", "## Speed", "", *_speed(speed)]
    return "\n".join(parts) + "\n"


def _tests(lines: Sequence[dict[str, Any]]) -> Iterable[str]:
    counts = Counter(line["outcome"] for line in lines)
    yield ", ".join(f"{count:,} {outcome}" for outcome, count in sorted(counts.items())) or "None has run."
    failed = [line for line in lines if line["outcome"] == "failed"]
    files = Counter(line["test"].partition("::")[0] for line in failed)
    yield from (f"- {count} failed in {file}" for file, count in files.most_common())
    reasons = Counter(str(line.get("why", ""))[:160] for line in lines if line["outcome"] == "skipped")
    yield from (f"- {count} skipped: {reason}" for reason, count in reasons.most_common(SHOWN))
    for line in failed[:SHOWN]:
        yield from ("", f"`{line['test']}`", "", "```", str(line.get("why", ""))[-1500:].replace("```", "'''"), "```")


def _speed(rows: Sequence[dict[str, Any]]) -> Iterable[str]:
    if not rows:
        yield "Nothing was measured."
        return
    yield "Milliseconds of the device, medians; × is the other side's time over headway's: above 1 headway is faster."
    known = [(Case(**{name: row[name] for name in FIELDS}), row["ms"]) for row in rows]
    for title, direction, sides in TABLES:
        yield from ("", f"### {title}", "", f"| case | {' | '.join(sides)} |", "|---" * (len(sides) + 1) + "|")
        for case, ms in known:
            if bool(case.queries) == (title == DECODING):
                times = _best(ms.get(direction, {}))
                cells = [_cell(side, times) for side in sides]
                speed = f", {case.cache_bytes / times[OURS] / 1e6:.0f} GB/s" if case.queries and OURS in times else ""
                yield f"| {case}{speed} | {' | '.join(cells)} |"
    yield from _host(rows)
    said = {(side, why) for row in rows for side, why in row["says"].items()}
    yield from ("", *(f"- {side}: {why}" for side, why in sorted(said)))
    apart = [(side, value, row) for row in rows for side, value in row.get("apart", {}).items() if not value < 0.02]
    yield from (
        f"- **computes other numbers**: {side}, {value:.3g}, {row['encoding']} {row['n']}" for side, value, row in apart
    )


def _host(rows: Sequence[dict[str, Any]]) -> Iterable[str]:
    """What the host needs, of the cases with the fewest tokens; that of decoding in a graph is a replay's."""
    found = [row for row in rows if not row["queries"] and row.get("host")]
    if not found:
        return
    fewest = min(row["n"] for row in found)
    yield from ("", "### milliseconds of the host for a call, forward and backward", "")
    yield from (f"| case | {' | '.join(HOSTS)} |", "|---" * (len(HOSTS) + 1) + "|")
    for row in found:
        if row["n"] == fewest:
            case = Case(**{name: row[name] for name in FIELDS})
            times = [_best(row["host"].get(direction, {})) for direction in ("forward", "backward")]
            cells = [" + ".join(f"{each[side]:.2f}" for each in times if side in each) for side in HOSTS]
            yield f"| {case} | {' | '.join(cells)} |"


def _best(times: dict[str, float]) -> dict[str, float]:
    """Of torch's back ends the fastest."""
    found = {side: value for side, value in times.items() if not side.startswith(SDPA) or side == DENSE}
    others = {side: value for side, value in times.items() if side not in found}
    return found | ({SDPA: min(others.values())} if others else {})


def _cell(side: str, times: dict[str, float]) -> str:
    if side not in times:
        return ""
    ratio = "" if side == OURS or OURS not in times else f" ({times[side] / times[OURS]:.2f}×)"
    return f"{times[side]:.3f}{ratio}"
