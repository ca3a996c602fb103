"""``headway vectors compare``: a comparison of the methods for word vectors."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .._common.files import need_folder_place
from .._common.language import retold, said
from .._common.templates import need_reports
from ..errors import HeadwayError
from ..study.word_vectors import QUICK, Protocol
from ..vectors import VECTORS
from ._console import Screen, consoles, going_on, heading, print_json
from ._options import Json, OutFolder, Quiet, completing

if TYPE_CHECKING:
    from rich.console import Console

    from ..study.word_vectors import Comparison


def compare(
    corpus: Annotated[
        Path | None,
        typer.Argument(
            help="UTF-8 text, with blank lines between documents. Default: a sample of Wikipedia.", show_default=False
        ),
    ] = None,
    methods: Annotated[
        str | None,
        typer.Option(
            help=f"Methods, separated by commas: {', '.join(VECTORS)}. Default: all.",
            autocompletion=completing(lambda: VECTORS),
        ),
    ] = None,
    words: Annotated[
        str | None,
        typer.Option(help="Words whose neighbours are shown, separated by commas. Default: some frequent ones."),
    ] = None,
    dim: Annotated[int, typer.Option(help="Numbers in a vector, for methods that let you choose.")] = Protocol.dim,
    min_count: Annotated[
        int, typer.Option(help="Leave out words that occur fewer times than this.")
    ] = Protocol.min_count,
    steps: Annotated[
        int | None,
        typer.Option(
            help="Training steps of each Transformer that reads the vectors. "
            f"Default: {Protocol.steps}; with --quick {QUICK['steps']}."
        ),
    ] = None,
    encoder: Annotated[
        str | None,
        typer.Option(
            help="A published encoder to compare with: its folder, or its id on the Hugging Face hub, such as "
            "intfloat/e5-small-v2. Default: none."
        ),
    ] = None,
    bert_steps: Annotated[
        int | None,
        typer.Option(
            help=f"Training steps of the BERT. Default: {Protocol.bert_steps}; with --quick {QUICK['bert_steps']}."
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(help="Number of seeds. Differences need several seeds to be reliable.")] = 1,
    quick: Annotated[
        bool,
        typer.Option("--quick", help="Use fewer training steps: a few minutes in all. The report says so."),
    ] = False,
    out: OutFolder = "headway-vectors",
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Fit every method to one text, and compare the vectors, their cost, and a Transformer that reads them.

    Writes results.jsonl, vectors.md, two pictures and the vectors to --out.

    Examples:
        headway vectors compare --quick
        headway vectors compare text.txt --methods glove,fasttext --words king,river
    """
    from ..study import word_vectors

    need_folder_place(Path(out))
    need_reports()
    asked = {"steps": steps, "bert_steps": bert_steps}
    protocol = Protocol(
        dim=dim,
        min_count=min_count,
        words=None if words is None else tuple(split(words, "--words")),
        encoder=encoder,
        quick=quick,
        **{**(QUICK if quick else {}), **{name: value for name, value in asked.items() if value is not None}},
    )
    names = None if methods is None else split(methods, "--methods")
    say, telling = consoles(as_json, quiet)
    with going_on(out), Screen(telling) as screen:
        found = word_vectors.compare(corpus, names, out=out, protocol=protocol, seeds=seeds, watch=screen)
    found.write(out)
    files = [f"{out}/{name}" for name in (*found.files(), "vectors/")]
    if as_json:
        print_json("vectors compare", found.rows, notes=found.conclusions(), files=files)
        return
    _show(say, found)
    say.print(f"\n{', '.join(files)}", markup=False, soft_wrap=True)


def split(text: str, name: str) -> list[str]:
    """Returns names separated by commas; raises HeadwayError if there are none."""
    found = [one.strip() for one in text.split(",") if one.strip()]
    if not found:
        raise HeadwayError(f"{name} is {text!r}: give names separated by commas")
    return found


def _show(out: Console, found: Comparison) -> None:
    from rich.markup import escape

    for title, table in found.parts().items():
        out.print(f"\n[bold]{title}[/bold]")
        out.print(table.rich(overflow="fold"))
    for number, reason in found.reasons_by_number().items():
        out.print(f"{number} {retold(reason)}", style="dim", markup=False)
    for word, its in found.neighbours().items():
        nearest = said("Nearest to “{word}”", word=escape(word))
        out.print(f"\n[bold]{nearest}[/bold]")
        for method, near in its.items():
            out.print(f"  {method:<20} {near}", markup=False, soft_wrap=True)
    heading(out, "\n" + said("Conclusions"), found.conclusions())
