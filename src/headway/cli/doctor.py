"""``headway doctor``: what this installation has, whether it works, and how to repair what does not."""

from __future__ import annotations

from typing import Annotated

import typer

from . import _diagnosis


def run(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object in place of text.")] = False,
) -> None:
    """Show versions, kernels, threads and caches, check what the kernels compute, and say what is missing.

    For each fault it prints the command that repairs it. The exit code is 0 if everything that is installed works, and
    1 if something is broken. Include the output in a bug report.

    Examples:
        headway doctor
    """
    if code := _diagnosis.show(as_json):
        raise typer.Exit(code)
