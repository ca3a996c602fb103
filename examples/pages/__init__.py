"""Pages that answer to the hand: one HTML file each, in both languages, which asks for nothing else.

A page consists of `page.css` and `page.js`, which all pages share, its own script, and the data with which that script
computes. The script of a lesson has its name: `lesson_1_weighted_lookup.js`.
"""

from __future__ import annotations

import base64
import hashlib
import json
from html import escape
from pathlib import Path
from typing import Any

from headway._common.files import atomic_write

FOLDER = Path(__file__).parent
HEAD = """<!doctype html>
<html lang="{language}">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; script-src '{hash}'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
{style}</style>
</head>
<body>
<script id="data" type="application/json">{data}</script>
<script>{script}</script>
</body>
</html>
"""


def html(name: str, data: dict[str, Any], language: str | None = None) -> str:
    """Returns a page.

    Args:
        name: that of its script, such as "lesson_1_weighted_lookup".
        data: what the script computes with, as JSON values. ``title`` has the title in English and in Chinese.
        language: the language in which it opens, "en" or "zh"; that of the browser if None.
    """
    script = "\n" + "".join((FOLDER / file).read_text(encoding="utf-8") for file in ("page.js", f"{name}.js"))
    digest = base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii")
    given = json.dumps({**data, "language": language}, ensure_ascii=False, allow_nan=False).replace("<", "\\u003c")
    return HEAD.format(
        language=language or "en",
        hash=f"sha256-{digest}",
        title=escape(data["title"][language == "zh"]),
        style=(FOLDER / "page.css").read_text(encoding="utf-8"),
        data=given,
        script=script,
    )


def write(path: Path, name: str, data: dict[str, Any], language: str | None = None) -> None:
    """Writes a page, completely or not at all."""
    with atomic_write(path) as part:
        part.write_text(html(name, data, language), encoding="utf-8")
