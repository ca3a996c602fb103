"""The page of a report: one HTML file that asks for nothing else."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable
from functools import cache
from html import escape
from importlib import resources
from typing import Any

HEAD = """<!doctype html>
<html lang="{language}">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; script-src '{hash}' 'wasm-unsafe-eval'; \
style-src 'unsafe-inline'; img-src data: blob:">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
{style}
</style>
</head>
<body>
<div id="headway"></div>
"""
LANGUAGES = ("en", "zh")


@cache
def asset(name: str) -> str:
    """Returns a file of the viewer.

    Args:
        name: "viewer.js" or "viewer.css".
    """
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def spelled(value: Any) -> str:
    """Returns JSON that may stand in a script of HTML, in ASCII; NaN and ±∞ are null."""
    return json.dumps(_finite(value), separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.6g}") if abs(value) < float("inf") else None
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}
    return [_finite(one) for one in value] if isinstance(value, (list, tuple)) else value


def chunk_text(name: str, content: str) -> str:
    """Returns a chunk as it stands in the page."""
    return f'<script id="{name}" type="text/plain">{content}</script>\n'


def page(report: Any, chunks: Iterable[tuple[str, str]], title: str, language: str | None) -> Iterable[str]:
    """Yields the parts of a page.

    Args:
        report: the report as JSON values.
        chunks: id and content of each chunk.
        title: the title.
        language: "en", "zh" or None.
    """
    script = "\n" + asset("viewer.js").replace("</script", "<\\/script") + "\n"
    digest = base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii")
    yield HEAD.format(
        language=language or "en", hash=f"sha256-{digest}", title=escape(title), style=asset("viewer.css")
    )
    yield f'<script id="headway-report" type="application/json">{spelled(report)}</script>\n'
    for name, content in chunks:
        yield chunk_text(name, content)
    yield f'<script type="module">{script}</script>\n</body>\n</html>\n'
