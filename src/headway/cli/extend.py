"""``headway extend``: runs published models beyond the length that they were trained for."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .._common.devices import device_named
from .._common.experiment import RESULTS
from .._common.extras import need
from .._common.files import atomic_folder, need_folder_place
from .._common.language import said
from .._common.templates import need_reports
from .._common.text_files import read_text
from ..errors import HeadwayError
from ._console import Screen, consoles, going_on, points, print_json
from ._options import Device, Dtype, Json, OutFolder, Quiet, completing, dtype_named

if TYPE_CHECKING:
    from rich.console import Console

    from ..study.extension import Extension


def _methods() -> Collection[str]:
    from ..study.extension import METHODS

    return METHODS


def run(
    model: Annotated[
        str,
        typer.Argument(
            help="A folder with config.json and model.safetensors, a .gguf file, or an id on the Hugging Face hub, "
            "such as Qwen/Qwen3-0.6B."
        ),
    ],
    method: Annotated[
        str | None,
        typer.Option(
            help="Methods, separated by commas. Default: linear, ntk, dynamic, yarn, longrope-style, llama3; with "
            "--quick dynamic, yarn.",
            autocompletion=completing(_methods),
        ),
    ] = None,
    factor: Annotated[float, typer.Option(help="How many times as long as the trained window the new one is.")] = 4.0,
    text: Annotated[
        Path | None, typer.Option(help="A file of UTF-8 text to measure perplexity on. Default: none.")
    ] = None,
    window: Annotated[
        int | None,
        typer.Option(
            help="Length in tokens that the model was trained for. Default: the config's max_position_embeddings."
        ),
    ] = None,
    length: Annotated[
        int | None,
        typer.Option(help="Tokens in a window of text. Default: factor × window; with --quick at most 2 × window."),
    ] = None,
    windows: Annotated[int, typer.Option(help="Maximum number of windows of text.")] = 1,
    dtype: Dtype = None,
    device: Device = "auto",
    quick: Annotated[
        bool,
        typer.Option("--quick", help="Take less time: fewer methods and a shorter text. The report says so."),
    ] = False,
    out: OutFolder = "headway-extend",
    save: Annotated[
        Path | None,
        typer.Option(
            help="Folder to save the rescaled model to, with one --method, for headway.load and transformers. It must "
            "not have files. Default: none."
        ),
    ] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Rescale a model's rotary encoding, without training, and measure its perplexity by position.

    Writes results.jsonl, extension.md and extension.png to --out, and the rescaled model to --save.

    Examples:
        headway extend HuggingFaceTB/SmolLM2-135M --text book.txt --quick
        headway extend path/to/a-model --method yarn --factor 4 --save longer
    """
    from .. import checkpoints
    from ..checkpoints._conversation import write_texts
    from ..checkpoints._hub import model_name
    from ..study import extension

    wanted = dtype_named(dtype)
    methods = None if method is None else [one.strip() for one in method.split(",") if one.strip()]
    for one in () if methods is None else methods or [""]:
        extension.need_method(one)
    extension.need_factor(factor)
    if save is not None:
        if methods is None or len(methods) != 1:
            number = len(_methods()) - 1 if methods is None else len(methods)
            raise HeadwayError(f"--save saves one model and there are {number} methods: give one --method")
        need_folder_place(save, empty=True)
    if text is None and save is None:
        raise HeadwayError("there is nothing to do: give --text to measure on, or --save to save the model")
    need_folder_place(Path(out))
    if text is not None:
        need_reports()
    if save is not None:
        need("safetensors", "--save", extra="checkpoints")
    words = None if text is None else read_text(text, f"--text {text}").replace("\r\n", "\n")
    loaded: Any = checkpoints.load(model, dtype=wanted, device=device_named(device))
    extension.need_scalable(loaded, window)
    say, telling = consoles(as_json, quiet)
    rows: list[dict[str, Any]] = []
    notes: list[str] = []
    files: list[str] = []
    if words is not None and text is not None:
        tokens, first = _tokens(checkpoints.tokenizer(model), words)
        with going_on(out), Screen(telling) as screen:
            found = extension.measure(
                loaded,
                tokens,
                methods,
                factor=factor,
                out=out,
                quick=quick,
                window=window,
                length=length,
                windows=windows,
                first=first,
                names=(model_name(model), text.name),
                watch=screen,
            )
        found.write(out)
        _show(say, found)
        rows, notes = rows_of(found), [*found.protocol(), *found.conclusions()]
        files = [f"{out}/{name}" for name in (*found.files(), RESULTS)]
        say.print(f"\n{', '.join(files)}", markup=False, soft_wrap=True)
    if save is not None and methods is not None:
        with atomic_folder(save) as part:
            checkpoints.save(extension.extend(loaded, methods[0], factor, window), part)
            write_texts(model, part)
        saved = "{save}: the model with {method}, for headway.load and transformers"
        say.print(said(saved, save=save, method=methods[0]), soft_wrap=True)
        files.append(str(save))
    if as_json:
        print_json("extend", rows, notes=notes, files=files)


def rows_of(found: Extension) -> list[dict[str, Any]]:
    """Returns the perplexity of each method and range of positions, as --json prints them."""
    values = [
        (method, first, end, *found.perplexity(method, first, end))
        for method in found.methods
        for first, end in found.columns
    ]
    return [
        {"method": method, "first": first, "last": end - 1, "perplexity": value, "standard_error": error}
        for method, first, end, value, error in values
    ]


def _tokens(tokenizer: Any, text: str) -> tuple[list[int], list[int]]:
    """The tokens of the text, and the tokens that the model puts in front of a text."""
    plain = tokenizer.encode("a", add_special_tokens=False).ids
    whole = tokenizer.encode("a").ids
    before = whole[: whole.index(plain[0])]
    return tokenizer.encode(text, add_special_tokens=False).ids, before


def _show(out: Console, found: Extension) -> None:
    points(out, found.protocol(), style="dim")
    out.print(f"\n[bold]{said('Perplexity by position')}[/bold]")
    out.print(found.table().rich(no_wrap=True))
    points(out, found.conclusions())
