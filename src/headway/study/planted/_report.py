"""The measured rows as tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..._common.table import Table, signed

MARGIN = 0.1
"""What a relation has to lose for it to be said to need a head, and the others may lose at most."""

Row = dict[str, Any]


def summary(rows: Sequence[Row], split: str, replacement: str = "zero") -> list[Row]:
    """Returns a row for each model and relation: its head, what the head finds, and what is lost without it.

    A relation needs only its head if the accuracy falls by more than 10 points without it (the whole interval) while
    that of every relation with another head falls by less (the whole interval). If two relations have the same head,
    neither relation has it to itself.

    ``rows`` are those of ``measure``, with ``language`` and ``seed``; ``split`` is "words" or "templates", and
    ``replacement`` is "zero" or "mean".
    """
    here = [row for row in rows if row["split"] == split]
    lost = [row for row in here if row["kind"] == "ablation" and row["replacement"] == replacement]
    known = {_key(row): row for row in here if row["kind"] == "accuracy"}
    summaries = []
    for row in here:
        if row["kind"] != "attention" or not row["chosen"]:
            continue
        same_model = [one for one in lost if _model(one) == _model(row)]
        without = [one for one in same_model if (one["layer"], one["head"]) == (row["layer"], row["head"])]
        own = next(one for one in without if one["relation"] == row["relation"])
        others = [one for one in without if one is not own]
        shared = [one["relation"] for one in others if one["chosen"]]
        worst = min(others, key=lambda one: one["change"])
        alone = own["high"] < -MARGIN and not shared and all(one["low"] > -MARGIN for one in others)
        accuracy = known[_key(row)]
        summaries.append(
            {name: row[name] for name in ("language", "seed", "relation", "n", "found", "low", "high", "baseline")}
            | {"head": f"{row['layer']}.{row['head']}", "as_written": row["as_written"]}
            | {name: accuracy[name] for name in ("accuracy", "chance", "by_offset", "by_bag")}
            | {"without": own["after"], "change": own["change"], "shared": shared, "alone": alone}
            | {"change_low": own["low"], "change_high": own["high"]}
            | {"worst": worst["relation"], "worst_change": worst["change"]}
        )
    return summaries


def markdown(rows: Sequence[Row], split: str) -> str:
    """Returns the summary of the ``split`` "words" or "templates" as a Markdown table."""
    titles = ["model", "relation", "head", "finds its noun", "best offset", "accuracy", "head zeroed", "head's mean"]
    lines = []
    for zero, mean in zip(summary(rows, split), summary(rows, split, "mean"), strict=True):
        worst = f"{zero['worst']} {_points(zero['worst_change'])}"
        lines.append(
            [
                *(f"{zero['language']}, seed {zero['seed']}", zero["relation"], zero["head"]),
                f"{_percent(zero['found'])} ({100 * zero['low']:.0f}–{100 * zero['high']:.0f})",
                *(_percent(zero[name]) for name in ("baseline", "accuracy", "without")),
                *(_percent(mean["without"]), worst, _verdict(zero)),
            ]
        )
    return Table([*titles, "lost most beside", "needed by this relation alone"], lines).markdown()


def together(rows: Sequence[Row], split: str) -> str:
    """Returns what is lost in a split without all heads that find a relation, as a Markdown table."""
    here = [row for row in rows if row["split"] == split]
    lines = []
    for known in (row for row in here if row["kind"] == "accuracy"):
        same = [row for row in here if row["kind"] == "together" and _model(row) == _model(known)]
        without = [row for row in same if row["of"] == known["relation"]]
        line = [f"{known['language']}, seed {known['seed']}", known["relation"]]
        if without:
            own = next(row for row in without if row["relation"] == row["of"])
            worst = min((row for row in without if row is not own), key=lambda row: row["change"])
            line += [", ".join(own["heads"]), _percent(own["before"]), _percent(own["after"])]
            line.append(f"{worst['relation']} {_points(worst['change'])}")
        else:
            line += ["none", _percent(known["accuracy"]), "", ""]
        lines.append(line)
    return Table(
        ["model", "relation", "heads that find it", "accuracy", "without them", "lost most beside"], lines
    ).markdown()


def _points(change: float) -> str:
    return signed(round(100 * change) + 0.0, "+.0f" if round(100 * change) else ".0f")


def _verdict(row: Row) -> str:
    if row["alone"]:
        return "yes"
    return f"no: head of {' and '.join(row['shared'])} too" if row["shared"] else "no"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _model(row: Row) -> tuple[str, int]:
    return row["language"], row["seed"]


def _key(row: Row) -> tuple[str, int, str]:
    return *_model(row), row["relation"]
