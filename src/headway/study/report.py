"""The report of a comparison: two pictures as PNG, and a page of HTML that loads nothing else."""

from __future__ import annotations

import re
from collections.abc import Callable
from html import escape
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING

from ..pictures import save
from . import charts
from .results import Results

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PICTURES = {"loss-by-position.png": charts.draw_by_position, "loss-by-length.png": charts.draw_by_length}
PAGE = "report.html"

STYLE = """
:root { color-scheme: light dark; --panel: #f5f6f8; --best: #e3f1ea; %(light)s }
@media (prefers-color-scheme: dark) { :root { --panel: #1c2028; --best: #1d3a30; %(dark)s } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.5rem 1rem 4rem; max-width: 60rem; background: var(--paper); color: var(--ink);
  font: 1rem/1.55 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0.5rem 0 0.25rem; }
h2 { font-size: 1.15rem; margin: 2.4rem 0 0.6rem; }
p, li { max-width: 46rem; }
ul { padding-left: 1.2rem; }
li { margin: 0.35rem 0; overflow-wrap: anywhere; }
.quiet { opacity: 0.75; font-size: 0.9rem; }
.said { background: var(--panel); border-radius: 0.6rem; padding: 0.4rem 1rem; }
.said li { margin: 0.5rem 0; }
figure { margin: 1.2rem 0; }
figure svg { display: block; width: 100%%; max-width: 46rem; height: auto; }
.on-narrow { display: none; }
figure svg text { font-family: system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif !important; }
.wide { overflow-x: auto; -webkit-overflow-scrolling: touch; }
table { border-collapse: collapse; font-size: 0.9rem; font-variant-numeric: tabular-nums; white-space: nowrap; }
th, td { padding: 0.35rem 0.7rem; text-align: right; border-bottom: 1px solid var(--faint); }
th:first-child, td:first-child { text-align: left; position: sticky; left: 0; background: var(--paper); }
td:first-child { padding-left: 1.15rem; text-indent: -1.15rem; }
thead th { font-weight: 600; vertical-align: bottom; }
td.best { background: var(--best); font-weight: 600; }
.mark { display: inline-block; width: 0.7rem; height: 0.7rem; border-radius: 50%%; margin-right: 0.45rem; }
@media (max-width: 36rem) {
  body { padding: 1rem 0.8rem 3rem; }
  .on-narrow { display: block; }
  .on-wide { display: none; }
  th, td { padding: 0.3rem 0.5rem; }
  td:first-child { white-space: normal; font-size: 0.8rem; min-width: 8rem; }
}
"""


def write(results: Results, out: Path) -> list[Path]:
    """Writes the pictures and the page.

    Args:
        results: the comparison.
        out: the folder.

    Returns:
        The files written; none if there are no results.
    """
    if not results.rows:
        return []
    written = []
    for name, draw in PICTURES.items():
        save(draw(results), out / name)
        written.append(out / name)
    (out / PAGE).write_text(page(results), encoding="utf-8")
    return [*written, out / PAGE]


def page(results: Results) -> str:
    """Returns the report as a page of HTML that loads nothing else.

    Args:
        results: the comparison.
    """
    protocol = results.protocol
    draws = [charts.draw_by_position, charts.draw_by_length]
    has_recall = bool(charts.recall_by_distance(results))
    if has_recall:
        draws.append(charts.draw_recall)
    pictures = [_picture(draw, results) for draw in draws]
    corpus = escape(Path(protocol.corpus).name)
    style = STYLE % {"light": charts.css_colours(dark=False), "dark": charts.css_colours(dark=True)}
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>Position encodings on {corpus}</title><style>{style}</style></head><body>",
        f"<h1>Position encodings on {corpus}</h1>",
        f'<p class="quiet">{len(results.names)} rows, {_plural(len(results.seeds), "seed")}, trained at '
        f"{protocol.train_length:,} bytes, measured up to {results.lengths[-1]:,}. headway compare.</p>",
        "<h2>What may be concluded</h2>",
        f'<div class="said">{_list(results.conclusions())}</div>',
        *pictures[:2],
        "<h2>Held-out bits per byte</h2>",
        "<p>Separate windows, each without the text before it. Marked: the best of each column.</p>",
        _losses(results, "bits_per_byte"),
        "<h2>The same, sliding</h2>",
        "<p>Windows that overlap by half, of which the second half is predicted: every byte has at least half a window "
        "before it.</p>",
        _losses(results, "sliding_bits_per_byte"),
    ]
    if has_recall:
        parts += ["<h2>Recall</h2>", pictures[2], "<p>Right answers, in per cent, by length.</p>", _recall(results)]
    heads = _heads(results)
    if heads:
        parts += [
            "<h2>What the heads do</h2>",
            "<p>At the end of the training. Means of all heads: entropy as a share of that of equal weights, and the "
            "weight of the first byte, in windows of the text. Of the head that does it most: the weight of the byte "
            "before, and of the byte after an earlier copy in random bytes that are repeated (induction).</p>",
            heads,
            '<p class="quiet">The folder heads has these numbers for each head and step. Recurrent baselines have no '
            "heads.</p>",
        ]
    parts += [
        "<h2>What it took</h2>",
        _costs(results),
        '<p class="quiet">Peak memory while the row was trained and measured: on a CPU the resident memory of the '
        "process, Python and torch included; on a GPU the memory that torch allocated there.</p>",
        "<h2>The protocol, fixed before any result was seen</h2>",
        _list(protocol.text()),
        "<h2>Made with</h2>",
        _list(_made_with(results)),
        "</body></html>",
    ]
    return "\n".join(parts) + "\n"


def _picture(draw: Callable[[Results, charts.Layout], Figure], results: Results) -> str:
    """A picture in two layouts, of which the page shows the one that fits the screen."""
    wide, narrow = (
        _own_ids(charts.svg(draw(results, layout)), f"{draw.__name__}-{kind}")
        for kind, layout in (("wide", charts.WIDE), ("narrow", charts.NARROW))
    )
    return f'<figure><div class="on-wide">{wide}</div><div class="on-narrow">{narrow}</div></figure>'


def _own_ids(svg: str, name: str) -> str:
    """The SVG with unique ids, since a page has several pictures."""
    svg = re.sub(r'id="([^"]+)"', rf'id="{name}-\1"', svg)
    svg = re.sub(r"url\(#([^)]+)\)", rf"url(#{name}-\1)", svg)
    svg = re.sub(r'href="#([^"]+)"', rf'href="#{name}-\1"', svg)
    return svg.replace("<svg", '<svg role="img"', 1)


def _list(sentences: list[str]) -> str:
    return "<ul>" + "".join(f"<li>{escape(sentence)}</li>" for sentence in sentences) + "</ul>"


def _table(head: list[str], rows: list[list[str]]) -> str:
    top = "".join(f"<th>{cell}</th>" for cell in head)
    body = "".join(f"<tr>{''.join(row)}</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'


def _names(results: Results) -> dict[str, str]:
    """The first cell of each row: the name, with a dot in its colour."""
    colours = charts.styles(results)
    names = {value: key for key, value in charts.names_of_colours().items()}
    return {
        name: f'<td><span class="mark" style="background: var(--{names[colours[name].colour]})"></span>'
        f"{escape(name).replace('(', '<wbr>(')}</td>"
        for name in results.names
    }


def _losses(results: Results, field: str) -> str:
    first = _names(results)
    best = {}
    for length in results.lengths:
        values = [results.mean(name, length, field) for name in results.names]
        best[length] = min((value for value in values if value is not None), default=None)
    rows = []
    for name in results.names:
        cells = [first[name]]
        for length in results.lengths:
            value = results.mean(name, length, field)
            if value is None:
                cells.append("<td>—</td>")
                continue
            spread = results.by_seed(name, length, field).values()
            note = f' title="{min(spread):.4f} to {max(spread):.4f}"' if len(spread) > 1 else ""
            mark = ' class="best"' if value == best[length] else ""
            cells.append(f"<td{mark}{note}>{value:.3f}</td>")
        rows.append(cells)
    return _table(["encoding", *(f"{length:,}" for length in results.lengths)], rows)


def _recall(results: Results) -> str:
    first = _names(results)
    rows = []
    for name in results.names:
        values = [results.mean(name, length, "recall") for length in results.lengths]
        if any(value is not None for value in values):
            rows.append([first[name], *(f"<td>{_percent(value)}</td>" for value in values)])
    return _table(["encoding", *(f"{length:,}" for length in results.lengths)], rows)


HEADS = {
    "normalized_entropy": "entropy",
    "first": "first byte",
    "previous_token": "byte before",
    "induction": "induction",
}


def _heads(results: Results) -> str:
    """A table of what heads do; empty if that is not known, as in results of an earlier version."""
    first = _names(results)
    rows = []
    for name in results.names:
        found = [row["heads"] for row in results.rows if row["encoding"] == name and row.get("heads")]
        if not found or results.any_row(name)["view_of"] is not None:
            continue
        cells = [first[name]]
        for column in HEADS:
            values = [one[column] for one in found]
            cells.append("<td>—</td>" if None in values else f"<td>{mean(values):.3f}</td>")
        rows.append(cells)
    return _table(["encoding", *HEADS.values()], rows) if rows else ""


def _percent(value: float | None) -> str:
    return "—" if value is None else f"{100 * value:.1f}"


def _costs(results: Results) -> str:
    first = _names(results)
    rows = []
    for name in results.names:
        row = results.any_row(name)
        length = row["length"]

        def over(field: str, name: str = name, length: int = length) -> float:
            return results.mean(name, length, field) or 0.0

        rows.append(
            [
                first[name],
                f"<td>{row['parameters']:,}</td>",
                f"<td>{row['encoding_parameters']:,}</td>",
                f"<td>{over('steps'):,.0f}</td>",
                f"<td>{over('train_seconds'):,.1f}</td>",
                f"<td>{over('tokens_per_second'):,.0f}</td>",
                f"<td>{escape(row['kernel'])}</td>",
                f"<td>{over('peak_memory_bytes') / 2**20:,.0f} MiB</td>",
            ]
        )
    head = [
        "encoding",
        "parameters",
        "of the encoding",
        "steps",
        "seconds",
        "bytes per second",
        "kernel",
        "peak memory",
    ]
    return _table(head, rows)


def _made_with(results: Results) -> list[str]:
    made = {
        ", ".join(f"{what} {version}" for what, version in row["versions"].items())
        + f"; {row['device']}, {_plural(row['threads'], 'thread')}"
        for row in results.rows
    }
    return sorted(made)


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}" + ("" if count == 1 else "s")
