"""Reports as templates of jinja2, in the files beside this one; values are escaped in those that end with .html."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..extras import need


def need_reports() -> None:
    """Checks that the packages for reports are installed, before the work that they report begins.

    Raises:
        HeadwayError: if jinja2 or matplotlib is not installed.
    """
    need("jinja2", "a report", extra="study")
    need("matplotlib", "the pictures of a report", extra="study")


def render(name: str, **values: Any) -> str:
    """Fills in a template.

    Args:
        name: its file in this folder.
        **values: the values of its names; one that is missing is an error.

    Raises:
        HeadwayError: if jinja2 is not installed.
    """
    jinja2 = need("jinja2", "a report", extra="study")
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=jinja2.select_autoescape(("html",), default=False),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    text: str = environment.get_template(name).render(values)
    return text
