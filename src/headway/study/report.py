"""The report of a comparison: pictures, tables, and a page of HTML that loads nothing else."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from .._common.experiment import Files, write_report
from .._common.language import speaking
from .._common.table import Table
from .._common.templates import render
from . import charts
from .results import ComparisonResults
from .tables import runs, tables_of

if TYPE_CHECKING:
    from markupsafe import Markup
    from matplotlib.figure import Figure

PICTURES: dict[str, Callable[[ComparisonResults, charts.FigureLayout], Figure]] = {
    "loss-by-position": charts.draw_by_position,
    "loss-by-length": charts.draw_by_length,
    "recall-by-distance": charts.draw_recall,
}
"""The pictures by the names of their files."""
KINDS: dict[str, Callable[[Table], str]] = {"csv": Table.csv, "md": Table.markdown, "tex": Table.latex}
"""The files of a table by their endings."""
PAGE = "report.html"


def write(results: ComparisonResults, out: Path) -> None:
    """Writes the pictures, the tables and the page, in English; nothing if there are no results."""
    with speaking("en"):
        write_report(files(results), out)


def files(results: ComparisonResults) -> Files:
    """Returns the files of the report of a comparison, the page first, each with the function that makes it."""
    if not results.rows:
        return {}
    results = results.labelled()
    made: dict[str, Callable[[], str | Figure]] = {PAGE: lambda: page(results)}
    for name, draw in _pictures(results).items():
        made |= {f"{name}.{kind}": partial(draw, results, charts.WIDE) for kind in ("png", "svg")}
    for name, table in tables_of(results).items():
        made |= {f"tables/{name}.{kind}": partial(_as_text, write, table) for kind, write in KINDS.items()}
    made["runs.csv"] = lambda: runs(results)
    return made


def _as_text(written: Callable[[Table], str], table: Table) -> str:
    return written(table).rstrip("\n") + "\n"


def _pictures(results: ComparisonResults) -> dict[str, Callable[[ComparisonResults, charts.FigureLayout], Figure]]:
    """The pictures that have lines."""
    has_recall = bool(charts.recall_by_distance(results))
    return {name: draw for name, draw in PICTURES.items() if has_recall or draw is not charts.draw_recall}


def page(results: ComparisonResults) -> str:
    """Returns the report as a page of HTML that loads nothing else."""
    results = results.labelled()
    return render(
        "comparison.html",
        results=results,
        corpus=Path(results.protocol.corpus).name,
        tokenizer=Path(results.protocol.tokenizer).name,
        tables=tables_of(results),
        pictures={
            name: {kind: _svg(draw(results, layout), f"{name}-{kind}") for kind, layout in LAYOUTS.items()}
            for name, draw in _pictures(results).items()
        },
        light=charts.css_colours(dark=False),
        dark=charts.css_colours(dark=True),
        made_with=_made_with(results),
    )


LAYOUTS = {"wide": charts.WIDE, "narrow": charts.NARROW}
"""The layouts of a picture. The page shows the one that fits the screen."""


def _svg(figure: Figure, name: str) -> Markup:
    """A picture as SVG with unique ids, since a page has several pictures."""
    from markupsafe import Markup

    svg = re.sub(r'id="([^"]+)"', rf'id="{name}-\1"', charts.svg(figure))
    svg = re.sub(r"url\(#([^)]+)\)", rf"url(#{name}-\1)", svg)
    svg = re.sub(r'href="#([^"]+)"', rf'href="#{name}-\1"', svg)
    return Markup(svg.replace("<svg", '<svg role="img"', 1))


def _made_with(results: ComparisonResults) -> list[str]:
    made = {
        ", ".join(f"{what} {version}" for what, version in row["versions"].items())
        + f"; {row['device']}, {row['threads']} thread{'s' * (row['threads'] != 1)}"
        + (f"; {row['processor']}" if row.get("processor") else "")
        for row in results.rows
    }
    return sorted(made)
