"""Tables of reports, written as Markdown, LaTeX, CSV, HTML or to a terminal."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .templates import render

if TYPE_CHECKING:
    from rich.table import Table as RichTable

IN_LATEX = {
    **{sign: rf"\{sign}" for sign in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"{\char34}",
    "−": "$-$",
    "±": r"$\pm$",
    "×": r"$\times$",
    "·": r"$\cdot$",
    "≥": r"$\geq$",
    "≤": r"$\leq$",
    "–": "--",
    "—": "---",
    "…": r"\ldots{}",
}
"""The signs that LaTeX reads otherwise, or has no glyph for in every engine."""


@dataclass(frozen=True)
class Cell:
    """A cell of a table.

    Attributes:
        text: the text that readers see.
        value: the value for CSV; None for the text.
        spread: half the width of the interval around the value, which CSV has in a column of its own.
        best: whether the cell is marked.
        dot: the CSS variable with the colour of a dot before the text, in HTML; none if empty.
        style: rich's style of the text in a terminal.
    """

    text: str
    value: str | float | None = None
    spread: float | None = None
    best: bool = False
    dot: str = ""
    style: str = ""

    @classmethod
    def of(cls, value: float | None, form: str, spread: float | None = None, *, best: bool = False) -> Cell:
        """Returns the cell of a number.

        Args:
            value: the number; None gives a dash, which CSV leaves empty.
            form: its format, such as ",.3f".
            spread: half the width of the interval around it, written in the same format after "±".
            best: whether the cell is marked.
        """
        if value is None:
            return cls("—", "")
        text = signed(value, form) + ("" if spread is None else f" ± {spread:{form.replace('+', '')}}")
        return cls(text, value, spread, best)


def signed(value: float, form: str) -> str:
    """Returns a number with the minus sign "−" in place of a hyphen.

    Args:
        value: the number.
        form: its format, as ``format`` takes it.
    """
    return format(value, form).replace("-", "−")


@dataclass(frozen=True)
class Column:
    """A column of a table of results.

    Attributes:
        title: the title.
        cell: returns the cell of a row of results.
    """

    title: str
    cell: Callable[[dict[str, Any]], str | Cell]


class Table:
    """Titles, rows and marks, written in each of the formats that reports have.

    Args:
        titles: the titles of the columns.
        rows: the cells of each row.
        rules: the numbers of the rows that a line separates from those above, counted from 0.
        right: the numbers of the columns that are right-aligned; all but the first if None.
    """

    def __init__(
        self,
        titles: Sequence[str | Cell],
        rows: Sequence[Sequence[str | Cell]],
        *,
        rules: Collection[int] = (),
        right: Collection[int] | None = None,
    ) -> None:
        self.titles = [_cell(title) for title in titles]
        self.rows = [[_cell(cell) for cell in row] for row in rows]
        self.rules = rules
        self.right = range(1, len(titles)) if right is None else right

    @classmethod
    def of(cls, rows: Iterable[dict[str, Any]], columns: Sequence[Column]) -> Table:
        """Returns the table that has a row for each of the ``rows`` of results, and these ``columns``."""
        return cls([column.title for column in columns], [[column.cell(row) for column in columns] for row in rows])

    def markdown(self) -> str:
        """Returns the table in Markdown, or an empty string if there are no rows; marked cells are bold."""
        if not self.rows:
            return ""
        lines = [["---"] * len(self.titles), *([_in_markdown(cell) for cell in row] for row in self.rows)]
        return "\n".join(map(_line, [[_in_markdown(title) for title in self.titles], *lines]))

    def latex(self) -> str:
        r"""Returns the table as a ``tabular`` with rules of the package booktabs; marked cells are bold."""
        lines = [
            "% \\usepackage{booktabs}",
            f"\\begin{{tabular}}{{{''.join('lr'[place in self.right] for place in range(len(self.titles)))}}}",
            "\\toprule",
            _line_of_latex(self.titles),
            "\\midrule",
        ]
        for place, row in enumerate(self.rows):
            lines += ["\\midrule"] * (place in self.rules and place > 0)
            lines.append(_line_of_latex(row))
        return "\n".join([*lines, "\\bottomrule", "\\end{tabular}"]) + "\n"

    def csv(self) -> str:
        """Returns the table as CSV, with numbers as they are and intervals as columns of their own, named "… ±"."""
        spread = [any(row[place].spread is not None for row in self.rows) for place in range(len(self.titles))]
        buffer = io.StringIO()
        writer = csv.writer(buffer, lineterminator="\n")
        titles = [_value(title) for title in self.titles]
        writer.writerow(_spread_out(titles, [f"{title} ±" for title in titles], spread))
        for row in self.rows:
            writer.writerow(_spread_out([_value(cell) for cell in row], [cell.spread for cell in row], spread))
        return buffer.getvalue()

    def html(self) -> Any:
        """Returns the table as HTML, escaped; cells that are marked have the class "best"."""
        from markupsafe import Markup

        return Markup(render("table.html", table=self))

    def rich(self, **column: Any) -> RichTable:
        """Returns the table for a terminal; marked cells are bold and green.

        Args:
            **column: rich's options of every column, such as no_wrap.
        """
        from rich.box import SIMPLE_HEAD
        from rich.markup import escape
        from rich.table import Table as RichTable
        from rich.text import Text

        made = RichTable(box=SIMPLE_HEAD, pad_edge=False)
        for place, title in enumerate(self.titles):
            made.add_column(escape(title.text), justify="right" if place in self.right else "left", **column)
        for place, row in enumerate(self.rows):
            cells = (Text(cell.text, "bold green" if cell.best else cell.style) for cell in row)
            made.add_row(*cells, end_section=place + 1 in self.rules)
        return made


def _cell(cell: str | Cell) -> Cell:
    return cell if isinstance(cell, Cell) else Cell(cell)


def _value(cell: Cell) -> str | float:
    return cell.text if cell.value is None else cell.value


def _spread_out(values: Sequence[Any], spreads: Sequence[Any], wanted: Sequence[bool]) -> list[Any]:
    """The values of a line, each before its spread if its column has one."""
    pairs = zip(values, spreads, wanted, strict=True)
    return [one for value, spread, has in pairs for one in ((value, spread) if has else (value,))]


def _in_markdown(cell: Cell) -> str:
    """A cell in Markdown; "|" would end it and becomes "∣"."""
    text = cell.text.replace("|", "∣")
    return f"**{text}**" if cell.best and text else text


def _line(cells: Sequence[str]) -> str:
    return "|" + "".join(f" {cell} |" if cell else " |" for cell in cells)


def _line_of_latex(cells: Sequence[Cell]) -> str:
    texts = ["".join(IN_LATEX.get(sign, sign) for sign in cell.text) for cell in cells]
    marked = [rf"\textbf{{{text}}}" if cell.best else text for cell, text in zip(cells, texts, strict=True)]
    return " & ".join(marked) + r" \\"
