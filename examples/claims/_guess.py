"""The claims as a page on which one guesses first; its rows are those of docs/claims.md, in both languages."""

from __future__ import annotations

import re
from typing import Any

from lesson import DOCS, SPEAK

from ._base import Verdict

PAGES = {"en": DOCS / "claims.md", "zh": DOCS / "zh-CN" / "claims.md"}
CLAIM = re.compile(r"### \d+\. (.+)\n\n\*\*(.+?)\*\* · (.+) · \[(.+?)\].*\n\n(.+)")


def rows(text: str) -> list[dict[str, str]]:
    """Returns the claims of a page of docs, with their subjects."""
    found = []
    for part in re.split(r"^## ", text, flags=re.M)[1:]:
        subject = part.partition("\n")[0]
        for says, verdict, documents, lesson, measured in CLAIM.findall(part):
            plain = re.sub(r"\[([^\]]*)\]\([^)]*\)|`", r"\1", measured)
            found.append(
                {"subject": subject, "says": says, "verdict": verdict, "documents": documents, "lesson": lesson}
                | {"measured": plain}
            )
    return found


def page_data() -> dict[str, Any]:
    return {
        "title": ["What the tutorials claim: guess first", "教程里的说法：先猜一猜"],
        "verdicts": {language: [verdict.text(t) for verdict in Verdict] for language, t in SPEAK.items()},
        "claims": {language: rows(path.read_text(encoding="utf-8")) for language, path in PAGES.items()},
    }
