"""``headway encodings``: what is there, where each acts, and what one of them is."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Annotated

import typer

from ._console import console

if TYPE_CHECKING:
    from rich.table import Table

    from ..positions import PositionEncoding

SIZES = {"num_heads": 8, "head_dim": 64, "embed_dim": 512, "max_length": 512, "bidirectional": False}
"""The model for which parameters are counted."""

PLACES = {
    "locate": "where tokens are",
    "embed": "embeddings",
    "prepare": "queries and keys",
    "terms": "scores",
}


def run(
    name: Annotated[
        str | None, typer.Argument(help="One encoding, as compare takes it: rope, 'rope(base=500000)', mine.py:Mine.")
    ] = None,
) -> None:
    """List the position encodings, or show one: what it computes and what its properties are."""
    from .. import positions

    out = console()
    if name is None:
        out.print(_table(positions.ENCODINGS))
        out.print(
            "[dim]parameters: for 8 heads of 64 and a length of 512, in one direction. "
            "One of them in full: headway encodings NAME[/dim]"
        )
        return
    encoding = positions.encoding(name, **SIZES)
    out.print(f"[bold]{type(encoding).__name__}[/bold]: acts on {_places(encoding)}\n")
    out.print(inspect.cleandoc(inspect.getdoc(type(encoding)) or "It has no docstring."), markup=False)
    out.print("\n[bold]Properties[/bold], measured")
    out.print(str(encoding.properties()), markup=False, soft_wrap=True)
    if cited := positions.citation(encoding):
        out.print(f"\n{inspect.cleandoc(cited)}", markup=False)


def _table(encodings: dict[str, type[PositionEncoding]]) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from ..positions import encoding

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("name", style="bold", no_wrap=True)
    table.add_column("acts on", no_wrap=True)
    table.add_column("parameters", justify="right", no_wrap=True)
    table.add_column("what it is")
    for name, cls in encodings.items():
        built = encoding(name, **SIZES)
        learned = sum(parameter.numel() for parameter in built.parameters())
        first_line = (inspect.getdoc(cls) or "").split("\n")[0]
        table.add_row(name, _places(built), f"{learned:,}", first_line)
    return table


def _places(encoding: PositionEncoding) -> str:
    acts = [place for hook, place in PLACES.items() if hook in encoding.acts]
    return ", ".join(acts) or "nothing"
