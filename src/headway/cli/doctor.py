"""``headway doctor``: what this installation has, whether it works, and what to do about the rest."""

from __future__ import annotations

from typing import Annotated

import typer

from . import _diagnosis


def run(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object in place of text.")] = False,
) -> None:
    """Show versions, kernels, threads and caches, check what the kernels compute, and say what is missing.

    Each fault has the command that mends it. The exit code is 0 if everything that is installed works, and 1 if
    something is broken. Put the output into a bug report.

    Examples:
        headway doctor
    """
    if code := _diagnosis.show(as_json):
        raise typer.Exit(code)
