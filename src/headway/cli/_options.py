"""Options that mean the same in several commands, and what completes their values."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import unknown

if TYPE_CHECKING:
    import torch


def completing(names: Callable[[], Iterable[str]]) -> Callable[[str], list[str]]:
    """Returns what completes one of some names, or the last of several that are separated by commas."""

    def complete(incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",")
        return [before + comma + name for name in names() if name.startswith(last)]

    return complete


def encoding_names() -> Iterable[str]:
    """Returns the names of all encodings."""
    from ..positions import ENCODINGS

    return ENCODINGS


def dtype_named(name: str | None) -> torch.dtype | None:
    """Returns the dtype that --dtype names; None if it was not given. Raises HeadwayError for another name."""
    import torch

    if name is not None and name not in DTYPES:
        raise unknown("dtype", name, DTYPES)
    return None if name is None else getattr(torch, name)


DEVICES = ("auto", "cpu", "cuda")
DTYPES = ("float32", "bfloat16")

Json = Annotated[
    bool,
    typer.Option(
        "--json",
        help="Print one JSON object and nothing else to standard output: command, version, rows (an object for each "
        "row), notes (sentences), files (what was written). A number that is not finite is null. Progress goes to "
        "standard error.",
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", help="Print the results alone, without progress.")]
Device = Annotated[
    str,
    typer.Option(
        help="Where the model runs: cpu, cuda, cuda:1 …; auto takes a GPU if there is one (in a comparison only if "
        "a fused kernel trains every encoding there).",
        autocompletion=completing(lambda: DEVICES),
    ),
]
Dtype = Annotated[
    str | None,
    typer.Option(help="float32 or bfloat16. Default: that of the file.", autocompletion=completing(lambda: DTYPES)),
]
OutFolder = Annotated[str, typer.Option(help="Folder for the results; the same command resumes from it.")]
