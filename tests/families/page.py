"""What came out, as a section of docs/models.md."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from typing import Any

from .checks import SAME

BEGIN, END = "<!-- families -->", "<!-- end of families -->"
WORDS = {
    "forward": "forward pass, all hidden states",
    "left": "padding on the left",
    "right": "padding on the right",
    "training": "gradients of all parameters",
    "greedy": "greedy generation, dynamic and sliding caches",
    "static": "greedy generation, static cache",
    "beams": "beam search",
    "compiled": "`torch.compile`",
}


def written(text: str, rows: list[dict[str, Any]]) -> str:
    """Returns the page with the section of these rows."""
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}\n\n{section(rows)}\n{END}{after}"


def section(rows: list[dict[str, Any]]) -> str:
    by_way: dict[str, Counter[str]] = defaultdict(Counter)
    by_architecture: dict[str, list[tuple[str, str, str]]] = defaultdict(list)
    for row in rows:
        for way, outcome in row["outcomes"].items():
            by_way[way][kind(outcome)] += 1
            by_architecture[row["architecture"]].append((row["model"], way, outcome))
    lines = ["| | as eager | as SDPA | refused | differ |", "| --- | --- | --- | --- | --- |"]
    for way, words in WORDS.items():
        counts = by_way[way]
        cells = [counts[SAME], counts["as SDPA"], counts["refused"], counts["differs"]]
        lines.append(f"| {words} | {' | '.join(map(str, cells))} |")
    groups: dict[str, list[str]] = {"differ": [], "refused": [], "agree": [], "not tried": []}
    for name, found in by_architecture.items():
        groups[group({kind(outcome) for _, _, outcome in found})].append(name)
    lines += ["", f"**They agree** ({len(groups['agree'])}): {names(groups['agree'])}."]
    for title, label, which in (("Refused", "refused", "refused"), ("They differ", "differs", "differ")):
        if groups[which]:
            lines += ["", f"**{title}** ({len(groups[which])}):", ""]
            lines += [
                f"- {reason}: {names(sorted(of))}" for reason, of in reasons(by_architecture, groups[which], label)
            ]
    as_sdpa = {row["model"] for row in rows if "as SDPA" in row["outcomes"].values()}
    if as_sdpa:
        lines += ["", f"**As SDPA**, from which eager attention differs too: {names(sorted(as_sdpa))}."]
    why = "no small config or no inputs were found by name, or the interface is not called"
    lines += ["", f"**Not tried** ({len(groups['not tried'])}), since {why}: {names(groups['not tried'])}."]
    return "\n".join(lines) + "\n"


def kind(outcome: str) -> str:
    return outcome.partition(":")[0]


def group(kinds: set[str]) -> str:
    if "differs" in kinds:
        return "differ"
    if "refused" in kinds:
        return "refused"
    return "agree" if kinds & {SAME, "as SDPA"} else "not tried"


def reasons(
    by_architecture: dict[str, list[tuple[str, str, str]]], wanted: list[str], label: str
) -> list[tuple[str, set[str]]]:
    found: dict[str, set[str]] = defaultdict(set)
    for name in wanted:
        for _, _, outcome in by_architecture[name]:
            if kind(outcome) == label:
                found[re.sub(r"[<>|]", "", outcome.partition(": ")[2])].add(name)
    return list(found.items())


def names(architectures: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in architectures)
