"""The report of a comparison: pictures, tables, and a page of HTML that loads nothing else."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from .._common.files import make_folder, write_text
from .._common.pictures import save
from .._common.table import Table
from .._common.templates import render
from . import charts
from .results import Results
from .tables import tables_of

if TYPE_CHECKING:
    from markupsafe import Markup
    from matplotlib.figure import Figure

PICTURES: dict[str, Callable[[Results, charts.FigureLayout], Figure]] = {
    "loss-by-position": charts.draw_by_position,
    "loss-by-length": charts.draw_by_length,
    "recall-by-distance": charts.draw_recall,
}
"""The pictures by the names of their files."""
KINDS: dict[str, Callable[[Table], str]] = {"csv": Table.csv, "md": Table.markdown, "tex": Table.latex}
"""The files of a table by their endings."""
PAGE = "report.html"


def write(results: Results, out: Path) -> list[Path]:
    """Writes the pictures, the tables and the page.

    Returns:
        The files written; none if there are no results.
    """
    made = _files(results)
    for name, write_to in made.items():
        make_folder((out / name).parent)
        write_to(out / name)
    return [out / name for name in made]


def files(results: Results) -> list[str]:
    """Returns the names of the files that ``write`` writes into the folder of a comparison."""
    return list(_files(results))


def _files(results: Results) -> dict[str, Callable[[Path], None]]:
    """The files of a report, the page first, with what writes each."""
    if not results.rows:
        return {}
    found: dict[str, Callable[[Path], None]] = {PAGE: lambda path: write_text(path, page(results))}
    for name, draw in _pictures(results).items():
        for kind in ("png", "svg"):
            found[f"{name}.{kind}"] = partial(_save, draw, results)
    for name, table in tables_of(results).items():
        for kind, text in KINDS.items():
            found[f"tables/{name}.{kind}"] = partial(_write_table, text, table)
    return found


def _pictures(results: Results) -> dict[str, Callable[[Results, charts.FigureLayout], Figure]]:
    """The pictures that have lines."""
    has_recall = bool(charts.recall_by_distance(results))
    return {name: draw for name, draw in PICTURES.items() if has_recall or draw is not charts.draw_recall}


def _save(draw: Callable[[Results, charts.FigureLayout], Figure], results: Results, path: Path) -> None:
    save(draw(results, charts.WIDE), path)


def _write_table(form: Callable[[Table], str], table: Table, path: Path) -> None:
    write_text(path, form(table).rstrip("\n") + "\n")


def page(results: Results) -> str:
    """Returns the report as a page of HTML that loads nothing else."""
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
"""The layouts of a picture, of which the page shows the one that fits the screen."""


def _svg(figure: Figure, name: str) -> Markup:
    """A picture as SVG with unique ids, since a page has several pictures."""
    from markupsafe import Markup

    svg = re.sub(r'id="([^"]+)"', rf'id="{name}-\1"', charts.svg(figure))
    svg = re.sub(r"url\(#([^)]+)\)", rf"url(#{name}-\1)", svg)
    svg = re.sub(r'href="#([^"]+)"', rf'href="#{name}-\1"', svg)
    return Markup(svg.replace("<svg", '<svg role="img"', 1))


def _made_with(results: Results) -> list[str]:
    made = {
        ", ".join(f"{what} {version}" for what, version in row["versions"].items())
        + f"; {row['device']}, {row['threads']} thread{'s' * (row['threads'] != 1)}"
        for row in results.rows
    }
    return sorted(made)
