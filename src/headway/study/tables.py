"""The tables of a comparison."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Sequence
from itertools import product
from statistics import mean
from typing import Any

from .._common.language import said
from .._common.table import Cell, Column, Table
from . import charts
from .intervals import LEVEL, Difference, mean_and_half
from .results import ComparisonResults

HEADS = {
    "normalized_entropy": "entropy",
    "first": "first {}",
    "previous_token": "{} before",
    "induction": "induction",
}
"""The titles of the roles of heads. A byte or a token takes the place of the braces."""


def losses(results: ComparisonResults, field: str = "bits_per_byte", *, spread: bool = True) -> Table:
    """Returns the table of losses by length: encodings, below a line baselines, and below another n-gram models.

    The best encoding of each column is marked, of those that have learned. ``field`` is "bits_per_byte" or
    "sliding_bits_per_byte"; ``spread`` adds the intervals of means over seeds.
    """
    best, learned = {}, [name for name in results.encodings if name in results.learned]
    for length in results.lengths:
        values = [results.mean(name, length, field) for name in learned]
        best[length] = min((value for value in values if value is not None), default=None)
    rows: dict[str, list[Cell]] = {}
    for name in results.names:
        rows[name] = []
        for length in results.lengths:
            value, half = _over_seeds(results, name, length, field)
            mark = value is not None and value == best[length] and name in learned
            rows[name].append(Cell.of(value, ".3f", half if spread else None, best=mark))
    rows |= {model: [Cell.of(bits, ".3f") for _ in results.lengths] for model, bits in results.counted.items()}
    return _by_name(results, _lengths(results), rows)


def sliding(results: ComparisonResults) -> Table:
    """Returns the table of losses in sliding windows."""
    return losses(results, "sliding_bits_per_byte")


def differences(results: ComparisonResults) -> Table:
    """Returns the differences of all pairs of encodings, and of baselines and encodings; separated ones are marked.

    They are in bits per byte, at the trained length and the far one.
    """
    differences: dict[tuple[str, str], dict[int, Difference]] = {}
    for length in results.compared_lengths:
        for pair in results.pairs(length):
            key, sign = ((pair.a, pair.b), 1) if (pair.b, pair.a) not in differences else ((pair.b, pair.a), -1)
            differences.setdefault(key, {})[length] = Difference(*key, sign * pair.mean, pair.half, pair.seeds, pair.p)
    encodings = len(differences)
    for baseline, other in product(results.baselines, results.encodings):
        pairs = {length: results.difference(baseline, other, length) for length in results.compared_lengths}
        differences[baseline, other] = {length: pair for length, pair in pairs.items() if pair is not None}
    rows = []
    for (a, b), at in differences.items():
        both = [at.get(length) for length in results.compared_lengths]
        cells = [
            Cell.of(None, "") if one is None else Cell.of(one.mean, "+.3f", one.half, best=one.separated)
            for one in both
        ]
        rows.append([Cell(f"{a} − {b}"), *cells])
    return Table(["pair", *_lengths(results, results.compared_lengths)], rows, rules=[encodings])


def tests(results: ComparisonResults) -> Table:
    """Returns the t tests of all pairs of encodings, a row for each pair and length; it has no rows with one seed.

    The corrected p holds for all pairs of its length jointly; those below 0.05 are marked.
    """
    rows = [
        [
            Cell(f"{pair.a} − {pair.b}"),
            Cell(f"{length:,}", length),
            Cell.of(pair.seeds, ".0f"),
            Cell.of(pair.mean, "+.3f", pair.half),
            Cell.of(pair.p, ".4f"),
            Cell.of(corrected, ".4f", best=corrected < 1 - LEVEL),
        ]
        for length in results.compared_lengths
        for pair, corrected in results.tested(length)
    ]
    return Table(["pair", results.unit, "n", "difference", "p", "p (Holm)"], rows)


RUN = (
    "encoding",
    "seed",
    "length",
    "bits_per_byte",
    "sliding_bits_per_byte",
    "recall",
    "steps",
    "learning_rate",
    "train_seconds",
    "processor_seconds",
    "tokens_per_second",
    "parameters",
    "encoding_parameters",
    "peak_memory_bytes",
    "kernel",
    "trained_dtype",
    "device",
    "threads",
    "processor",
)
"""The columns of the table of runs."""


def runs(results: ComparisonResults) -> str:
    """Returns a CSV with a row for each encoding, seed and length, unrounded, for other programs.

    A number that a row does not have is empty.
    """
    written = io.StringIO()
    out = csv.writer(written, lineterminator="\n")
    out.writerow(["encoding", "kind", *RUN[1:], *(f"version_{what}" for what in VERSIONS)])
    for row in results.rows:
        name, *others = (row.get(column) for column in RUN)
        kind = "baseline" if row["baseline"] else "encoding"
        out.writerow([name, kind, *others, *(row["versions"].get(what) for what in VERSIONS)])
    return written.getvalue()


VERSIONS = ("headway", "commit", "torch", "python")
"""The versions in the table of runs."""


def recall(results: ComparisonResults, *, spread: bool = True) -> Table:
    """Returns the table of right answers in per cent, by length; it has no rows if there was no recall task.

    ``spread`` adds the intervals of means over seeds.
    """
    rows = {}
    for name in results.names:
        shares = [_over_seeds(results, name, length, "recall", 100) for length in results.lengths]
        if any(value is not None for value, _ in shares):
            rows[name] = [Cell.of(value, ".1f", half if spread else None) for value, half in shares]
    return _by_name(results, _lengths(results), rows)


def heads(results: ComparisonResults) -> Table:
    """Returns the table of the heads' roles, without rows if they are not known."""
    rows = {}
    for name in results.encodings:
        facts = [row["heads"] for row in results.rows if row["encoding"] == name and row["heads"]]
        if facts and results.any_row(name)["view_of"] is None:
            columns = [[one[column] for one in facts] for column in HEADS]
            rows[name] = [Cell.of(None if None in values else mean(values), ".3f") for values in columns]
    symbol = results.unit.removesuffix("s")
    return _by_name(results, [title.format(symbol) for title in HEADS.values()], rows)


def learning_rates(results: ComparisonResults) -> Table:
    """Returns the table of the validation losses of all learning rates that were tried; the chosen ones are marked.

    It has no rows if one learning rate was given.
    """
    tried = {name: results.learning_rates(name) for name in results.names}
    rates = sorted({rate for its in tried.values() for rate in its})
    rows = {}
    for name, its in tried.items():
        row = results.any_row(name)
        if its and row["view_of"] is None:
            chosen = row["learning_rate"]
            rows[name] = [Cell.of(its.get(rate), ".3f", best=rate == chosen) for rate in rates]
    return _by_name(results, [Cell(f"{rate:g}", rate) for rate in rates], rows)


def costs(results: ComparisonResults, *, brief: bool = False) -> Table:
    """Returns the table of parameters, steps, time, kernels and memory.

    It says if a model was not trained in float32, or was compiled. ``brief`` leaves out columns, for a narrow terminal.
    """
    columns = [
        Column(said("parameters"), lambda row: Cell.of(row["parameters"], ",.0f")),
        Column(said("of the encoding"), lambda row: Cell.of(row["encoding_parameters"], ",.0f")),
        Column(said("steps"), lambda row: Cell.of(_mean(results, row, "steps"), ",.0f")),
        Column(said("seconds"), lambda row: Cell.of(_mean(results, row, "train_seconds"), ",.1f")),
        Column(
            said("bytes/s" if results.unit == "bytes" else "tokens/s"),
            lambda row: Cell.of(_mean(results, row, "tokens_per_second"), ",.0f"),
        ),
        Column(said("kernel"), lambda row: row["kernel"]),
        Column(said("peak MiB"), lambda row: Cell.of(_mean(results, row, "peak_memory_bytes", 2**-20), ",.0f")),
    ]
    if any(row["trained_dtype"] != "float32" for row in results.rows):
        columns.append(Column("dtype", lambda row: row["trained_dtype"]))
    if any(row["compiled"] for row in results.rows):
        columns.append(Column(said("compiled"), lambda row: said("yes" if row["compiled"] else "no")))
    if brief:
        columns = [column for place, column in enumerate(columns) if place not in (1, 3)]
    table = Table.of(map(results.any_row, results.names), columns)
    return _by_name(results, table.titles, dict(zip(results.names, table.rows, strict=True)))


TABLES: dict[str, Callable[[ComparisonResults], Table]] = {
    "losses": losses,
    "sliding": sliding,
    "differences": differences,
    "tests": tests,
    "recall": recall,
    "heads": heads,
    "learning-rates": learning_rates,
    "costs": costs,
}
"""The tables by the names of their files."""


def tables_of(results: ComparisonResults) -> dict[str, Table]:
    """Returns the tables that have rows, by name."""
    made = {name: table(results) for name, table in TABLES.items()}
    return {name: table for name, table in made.items() if table.rows}


def _lengths(results: ComparisonResults, lengths: Sequence[int] | None = None) -> Iterable[Cell]:
    return (Cell(f"{length:,}", length) for length in (results.lengths if lengths is None else lengths))


def _over_seeds(
    results: ComparisonResults, name: str, length: int, field: str, factor: float = 1.0
) -> tuple[float | None, float | None]:
    """The mean over seeds, and half the width of its interval."""
    values = [factor * value for value in results.by_seed(name, length, field).values()]
    return mean_and_half(values) if values else (None, None)


def _mean(results: ComparisonResults, row: dict[str, Any], field: str, factor: float = 1.0) -> float | None:
    value = results.mean(row["encoding"], row["length"], field)
    return None if value is None else factor * value


def _by_name(results: ComparisonResults, titles: Iterable[str | Cell], rows: dict[str, list[Cell]]) -> Table:
    """A table with a row for each name, and lines between encodings, baselines and n-gram models."""
    variables = {colour: variable for variable, colour in charts.names_of_colours().items()}
    look = charts.styles(results)
    kinds = ["encoding" if name in results.encodings else name in results.counted for name in rows]
    rules = [place for place in range(1, len(kinds)) if kinds[place] != kinds[place - 1]]
    shown = {name: said("{name}, counted", name=name) if name in results.counted else name for name in rows}
    cells = [[Cell(shown[name], dot=variables[look[name].colour]), *its] for name, its in rows.items()]
    return Table([said("encoding"), *titles], cells, rules=rules)
