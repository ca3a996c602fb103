"""``headway encodings``: lists the position encodings, or shows one of them in detail."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .._common.files import need_file_place
from .._common.language import columns_of, padded, said, to_say
from .._common.table import Cell, Table
from ..errors import HeadwayError
from ._console import consoles, print_json
from ._options import Json, completing, encoding_names

if TYPE_CHECKING:
    from rich.console import Console

    from ..positions import PositionEncoding

SIZES = {"num_heads": 8, "head_dim": 64, "embed_dim": 512, "max_length": 512, "bidirectional": False}
"""The model for which parameters are counted."""

WIDE, NARROW = 150, 116
"""Columns of a terminal: from ``WIDE`` on the table has the first sentence of each encoding, below ``NARROW`` only the
columns of ``FEW``."""

PLACES = {
    "locate": "positions",
    "embed": "embeddings",
    "prepare": "q and k",
    "terms": "scores",
    "values": "v and output",
}


def run(
    name: Annotated[
        str | None,
        typer.Argument(
            help="An encoding, such as rope, 'rope(base=500000)', 'alibi + shaw', or mine.py:Mine for a class in a "
            "file. Default: list all.",
            autocompletion=completing(encoding_names),
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="PNG file for a picture of the encoding. An existing file is replaced. Default: none."),
    ] = None,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print the list as Markdown.")] = False,
    as_json: Json = False,
) -> None:
    """List the position encodings, or show one: its formula, arguments, kernels, measured properties and a picture.

    Examples:
        headway encodings
        headway encodings rope --out rope.png
    """
    from .. import positions

    if as_markdown and (as_json or name is not None):
        raise HeadwayError("--markdown prints the list of all encodings: give neither a name nor --json with it")
    if out is not None:
        if name is None:
            raise HeadwayError(f"--out is {out} but no encoding is named: give headway encodings NAME --out {out}")
        need_file_place(out)
        if out.suffix.lower() != ".png":
            raise HeadwayError(f"--out is {out}: give a file that ends in .png")
    say, _ = consoles(as_json)
    if name is not None:
        _show(say, name, out, as_json)
    elif as_json:
        print_json("encodings", map(_facts, positions.ENCODINGS))
    elif as_markdown:
        say.print(markdown(positions.ENCODINGS), markup=False, soft_wrap=True, end="")
    else:
        say.print(_table(positions.ENCODINGS, say.width).rich(no_wrap=True, overflow="ellipsis"))
        kinds, functions = _counted(positions.ENCODINGS)
        say.print(
            said(
                "{kinds}; {functions} distinct functions whose numbers were compared with the authors' or another "
                "implementation.",
                kinds=kinds,
                functions=functions,
            )
        )
        about = said(
            "parameters: for 8 heads of 64 and a length of 512, with a causal mask. beyond: whether longer inputs "
            "produce no values unseen in training, by construction. kernels: those that take it in training. Details "
            "of one encoding: headway encodings NAME"
        )
        say.print(f"[dim]{about}[/dim]")


def _show(say: Console, name: str, out: Path | None, as_json: bool) -> None:
    """Prints one encoding in detail, and draws it."""
    from .. import positions

    encoding = positions.encoding(name, **SIZES)
    if as_json:
        if out is not None:
            _draw(encoding, name, out)
        print_json("encodings", [_facts(name, encoding, detailed=True)], files=[out] if out else [])
        return
    kind = type(encoding)
    acts = said(", ").join(map(said, _places(encoding))) or said("nothing")
    say.print(f"[bold]{kind.__name__}[/bold]{said(': ')}{said('acts on {places}', places=acts)}\n")
    say.print(inspect.cleandoc(inspect.getdoc(kind) or said("It has no docstring.")), markup=False)
    kinds, evidence = said(positions.KINDS[encoding.kind]), said(positions.EVIDENCE[encoding.evidence])
    say.print()
    for title, fact in {
        said("Arguments"): _arguments(encoding),
        said("Kind"): said(encoding.kind) + said(": ") + kinds,
        said("Evidence"): evidence,
        said("Kernels"): said(_kernels(encoding)),
    }.items():
        say.print(f"[bold]{title}[/bold]{padded('', 11 - columns_of(title))}{fact}", highlight=False)
    if encoding.acts != {"locate"}:
        say.print("\n" + said("[bold]Properties[/bold], measured"))
        say.print(str(encoding.properties()), markup=False, soft_wrap=True)
    if cited := positions.citation(encoding):
        say.print(f"\n{inspect.cleandoc(cited)}", markup=False)
    if out is not None:
        _draw(encoding, name, out)
        say.print("\n" + said("picture: {out}", out=out), markup=False, soft_wrap=True)
    elif encoding.acts:
        draw = said("to draw it: {command}", command=f"headway encodings {name!r} --out {kind.__name__.lower()}.png")
        say.print(f"\n[dim]{draw}[/dim]")


def _draw(encoding: PositionEncoding, name: str, out: Path) -> None:
    from .._common.pictures import save
    from ..study.portrait import portrait

    save(portrait(encoding, name, untrained=True), out)


def _facts(name: str, built: PositionEncoding | None = None, detailed: bool = False) -> dict[str, Any]:
    """The row of an encoding for --json."""
    from .. import positions

    encoding = positions.encoding(name, **SIZES) if built is None else built
    kind = type(encoding)
    text = inspect.cleandoc(inspect.getdoc(kind) or "")
    facts: dict[str, Any] = {
        "name": name,
        "class": kind.__name__,
        "year": kind.year or None,
        "kind": encoding.kind,
        "acts_on": _places(encoding),
        "parameters": sum(parameter.numel() for parameter in encoding.parameters()),
        "beyond": encoding.extrapolates,
        "kernels": _kernels(encoding).split(", "),
        "evidence": encoding.evidence,
        "what_it_is": text.split("\n")[0],
    }
    if detailed:
        facts |= {"description": text, "arguments": _arguments(encoding), "citation": positions.citation(encoding)}
        if encoding.acts != {"locate"}:
            measured = asdict(encoding.properties())
            facts["properties"] = {name: one for name, one in measured.items() if name != "encoding"}
    return facts


COLUMNS = ("name", "year", "acts on", "parameters", "beyond", "kernels", "evidence", "what it is")
FEW = ("name", "year", "acts on")


def _rows(encodings: dict[str, type[PositionEncoding]]) -> Iterator[tuple[str, ...]]:
    """The cells of each encoding, under ``COLUMNS``."""
    for facts in map(_facts, encodings):
        yield (
            facts["name"],
            str(facts["year"] or "–"),
            said(", ").join(map(said, facts["acts_on"])) or said("nothing"),
            f"{facts['parameters']:,}",
            said("yes" if facts["beyond"] else "no"),
            said(", ".join(facts["kernels"])),
            said(facts["evidence"]),
            facts["what_it_is"],
        )


def _table(encodings: dict[str, type[PositionEncoding]], width: int) -> Table:
    """A row for each encoding, with the columns that fit the width of the terminal."""
    shown = COLUMNS if width >= WIDE else COLUMNS[:-1] if width >= NARROW else FEW
    rows = []
    for row in _rows(encodings):
        cells = dict(zip(COLUMNS, row, strict=True))
        rows.append([Cell(cells[column], style="bold" if column == "name" else "") for column in shown])
    return Table([*map(said, shown)], rows, right=[shown.index("parameters")] if "parameters" in shown else [])


def markdown(encodings: dict[str, type[PositionEncoding]]) -> str:
    """Returns the table of docs/encodings.md."""
    return Table(COLUMNS, list(_rows(encodings))).markdown() + "\n"


def _counted(encodings: dict[str, type[PositionEncoding]]) -> tuple[str, int]:
    """The number of rows of each kind, and of distinct functions with evidence beyond a formula."""
    from ..positions import KINDS

    count = {kind: sum(cls.kind == kind for cls in encodings.values()) for kind in KINDS}
    each = said(", ").join(
        said("{number} of kind {kind}", number=number, kind=said(kind)) for kind, number in count.items() if number
    )
    proven = [cls for cls in encodings.values() if cls.evidence != "formula" and cls.same_function_as is None]
    return said("{count} rows: {kinds}", count=len(encodings), kinds=each), len(proven)


def _places(encoding: PositionEncoding) -> list[str]:
    return [place for hook, place in PLACES.items() if hook in encoding.acts]


def _arguments(encoding: PositionEncoding) -> str:
    """The constructor's arguments with their defaults."""
    parameters = inspect.signature(type(encoding)).parameters.values()
    return ", ".join(p.name if p.default is p.empty else f"{p.name}={p.default!r}" for p in parameters) or said("none")


def _kernels(encoding: PositionEncoding) -> str:
    """The kernels that take a training step with this encoding."""
    import torch

    from ..attention import explain
    from ..coordinates import Coordinates
    from ..masks import Causal
    from ..positions._base import IN_ATTENTION

    if encoding.acts == {"locate"}:
        return to_say("of the other part")
    if "embed" in encoding.acts and not encoding.acts & IN_ATTENTION:
        return to_say("all")
    n, heads, head_dim = 4, SIZES["num_heads"], SIZES["head_dim"]
    q, k, v = (torch.zeros(1, heads, n, head_dim, requires_grad=True) for _ in range(3))
    x = torch.zeros(1, n, SIZES["embed_dim"])
    at = Coordinates.span(n, axes=encoding.axes or 1)
    explanation = explain(
        q, k, v, encoding=encoding, mask=Causal(), q_positions=at, k_positions=at, q_input=x, k_input=x
    )
    return ", ".join(name for name, reasons in explanation.reasons.items() if not reasons)
