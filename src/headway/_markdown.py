"""Functions from which the Markdown reports are built."""

from __future__ import annotations

from collections.abc import Sequence


def table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Returns a Markdown table with a header, or an empty string if there are no rows."""
    if not rows:
        return ""
    return "\n".join(map(_row, (titles, ["---"] * len(titles), *rows)))


def _row(cells: Sequence[str]) -> str:
    """One line of a table; "|" inside a cell would end it and becomes "∣"."""
    return "|" + "".join(f" {cell.replace('|', '∣')} |" if cell else " |" for cell in cells)


def bullets(sentences: Sequence[str]) -> str:
    """Returns a list with one bullet for each sentence."""
    return "\n".join(f"- {sentence}" for sentence in sentences)


def signed(value: float, form: str) -> str:
    """Returns a number in the format ``form``, with the minus sign "−" in place of a hyphen."""
    return format(value, form).replace("-", "−")
