"""The papers of the encodings, from references.bib."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from ..errors import HeadwayError


@cache
def entries() -> dict[str, str]:
    """Every BibTeX entry of references.bib by its key."""
    text = (Path(__file__).parent / "references.bib").read_text(encoding="utf-8")
    entries = re.split(r"^(?=@)", text, flags=re.MULTILINE)[1:]
    return {entry[entry.index("{") + 1 : entry.index(",")].strip(): entry.strip() for entry in entries}


def bibtex(citation: str) -> str:
    """The BibTeX of a citation: the citation itself, or the entries of its keys, one after another."""
    if not citation or citation.lstrip()[0] in "@%":
        return citation
    unknown = [key for key in citation.split() if key not in entries()]
    if unknown:
        raise HeadwayError(f"references.bib has no {unknown[0]!r}: add the entry, or write BibTeX itself")
    return "\n".join(entries()[key] for key in citation.split())
