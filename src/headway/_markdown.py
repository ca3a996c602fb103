"""The pieces of which reports in Markdown are made."""

from __future__ import annotations

from collections.abc import Sequence


def table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table with a row of titles, or nothing where it has no other rows."""
    if not rows:
        return ""
    return "\n".join(map(_row, (titles, ["---"] * len(titles), *rows)))


def _row(cells: Sequence[str]) -> str:
    """One line of a table; a "|" inside a cell would end it and becomes "∣"."""
    return "|" + "".join(f" {cell.replace('|', '∣')} |" if cell else " |" for cell in cells)


def bullets(sentences: Sequence[str]) -> str:
    """A list with a bullet for each sentence."""
    return "\n".join(f"- {sentence}" for sentence in sentences)


def signed(value: float, form: str) -> str:
    """A number in the format ``form``, with the minus sign "−" in place of a hyphen."""
    return format(value, form).replace("-", "−")
