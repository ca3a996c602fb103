"""HTML of results, which notebooks show instead of text; needs no other package."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

CELL = 9
"""The width of a cell of a grid in pixels."""
DARK, LIGHT = "#3b6ea8", "#e8ecf1"


def heading(text: str) -> str:
    """Returns a line in bold, escaped.

    Args:
        text: the text.
    """
    return f"<p><b>{escape(text)}</b></p>"


def paragraph(text: str) -> str:
    """Returns a paragraph, escaped.

    Args:
        text: the text.
    """
    return f"<p>{escape(text)}</p>"


def table(rows: Sequence[Sequence[object]], titles: Sequence[object] = (), *, bold: int | None = None) -> str:
    """Returns a table, escaped; columns of numbers are right-aligned.

    Args:
        rows: the cells of each row.
        titles: the titles of the columns; none if empty.
        bold: the number of a row in bold.
    """
    count = max(map(len, rows), default=0)
    right = [all(isinstance(row[i], (int, float)) for row in rows if i < len(row)) for i in range(count)]
    align = ["right" if one else "left" for one in right]
    head = "".join(_cell(title, align[i] if i < count else "left", "th") for i, title in enumerate(titles))
    lines = [
        "<tr>"
        + "".join(_cell(cell, align[i], "th" if number == bold else "td") for i, cell in enumerate(row))
        + "</tr>"
        for number, row in enumerate(rows)
    ]
    return f"<table>{f'<thead><tr>{head}</tr></thead>' if head else ''}<tbody>{''.join(lines)}</tbody></table>"


def _cell(value: object, align: str, tag: str) -> str:
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    return f'<{tag} style="text-align:{align}">{escape(text)}</{tag}>'


def grid(rows: Sequence[Sequence[bool]], x: str, y: str) -> str:
    """Returns a picture of rows of cells, dark where they are True.

    Args:
        rows: the cells.
        x: the text below.
        y: the text at the side.
    """
    width, height = CELL * max(map(len, rows), default=0), CELL * len(rows)
    cells = "".join(
        f'<rect x="{CELL * j}" y="{CELL * i}" width="{CELL - 1}" height="{CELL - 1}" fill="{DARK if one else LIGHT}"/>'
        for i, row in enumerate(rows)
        for j, one in enumerate(row)
    )
    label = 'font-family="sans-serif" font-size="11" fill="currentColor" text-anchor="middle"'
    beside = f'<text {label} transform="translate(11 {height / 2:g}) rotate(-90)">{escape(y)}</text>'
    below = f'<text {label} x="{16 + width / 2:g}" y="{height + 13}">{escape(x)}</text>'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width + 18}" height="{height + 18}">{beside}'
        f'<g transform="translate(16 0)">{cells}</g>{below}</svg>'
    )
