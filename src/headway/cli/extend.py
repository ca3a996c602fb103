"""``headway extend``: published models beyond the length that they were trained for."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import HeadwayError
from ._console import Progress, console, going_on, points, table

if TYPE_CHECKING:
    from rich.console import Console

    from ..study.extension import Extension


def run(
    model: Annotated[
        str,
        typer.Argument(
            help="A folder with config.json and model.safetensors, a .gguf file, or an id on the Hugging Face hub, "
            "such as HuggingFaceTB/SmolLM2-135M-Instruct."
        ),
    ],
    method: Annotated[
        str | None,
        typer.Option(help="Methods, separated by commas. Default: linear,ntk,dynamic,yarn,longrope-style,llama3."),
    ] = None,
    factor: Annotated[float, typer.Option(help="How many times the trained window is to be read.")] = 4.0,
    text: Annotated[Path | None, typer.Option(help="A file of UTF-8 text to measure perplexity on.")] = None,
    window: Annotated[
        int | None,
        typer.Option(help="Tokens that the model was trained for. Default: the config's max_position_embeddings."),
    ] = None,
    length: Annotated[int | None, typer.Option(help="Tokens in a window of text. Default: factor × window.")] = None,
    windows: Annotated[int, typer.Option(help="The most windows of text.")] = 1,
    dtype: Annotated[str | None, typer.Option(help="float32 or bfloat16. Default: that of the file.")] = None,
    device: Annotated[str, typer.Option(help="Device: cpu, cuda or auto.")] = "auto",
    out_dir: Annotated[Path, typer.Option(help="Folder for the results; the same command resumes from it.")] = Path(
        "headway-extend"
    ),
    out: Annotated[Path | None, typer.Option(help="Folder to save the rescaled model to, with one --method.")] = None,
) -> None:
    """Rescale a model's rotary encoding, without training, and measure its perplexity by position.

    Writes results.jsonl, extension.md and extension.png to --out-dir.
    """
    import torch

    from .. import checkpoints
    from ..checkpoints._hub import model_name
    from ..study import extension
    from ..study.comparison import device_named

    dtypes = {"float32": torch.float32, "bfloat16": torch.bfloat16, None: None}
    if dtype not in dtypes:
        raise HeadwayError(f"--dtype is {dtype!r}: give float32 or bfloat16")
    methods = list(extension.METHODS) if method is None else [one.strip() for one in method.split(",") if one.strip()]
    for one in methods or [""]:
        extension.need_method(one)
    extension.need_factor(factor)
    if out is not None and len(methods) != 1:
        raise HeadwayError(f"--out saves one model and --method names {len(methods)}: give one --method")
    if text is None and out is None:
        raise HeadwayError("there is nothing to do: give --text to measure on, or --out to save the model")
    words = None if text is None else _read(text)
    loaded = checkpoints.load(model, dtype=dtypes[dtype], device=device_named(device))
    extension.need_scalable(loaded, window)
    say = console()
    if words is not None and text is not None:
        tokens, first = _tokens(checkpoints.tokenizer(model), words)
        with going_on(out_dir), Progress(say) as progress:
            found = extension.measure(
                loaded,
                tokens,
                methods,
                factor=factor,
                out=out_dir,
                window=window,
                length=length,
                windows=windows,
                first=first,
                names=(model_name(model), text.name),
                watch=progress.tell,
            )
        found.write(out_dir)
        _show(say, found)
        say.print(f"\n{out_dir}/extension.md, {out_dir}/extension.png, {out_dir}/results.jsonl", soft_wrap=True)
    if out is not None:
        checkpoints.save(extension.extend(loaded, methods[0], factor, window), out)
        checkpoints.tokenizer(model).save(str(out / "tokenizer.json"))
        say.print(f"{out}: the model with {methods[0]}, for headway.load and transformers", soft_wrap=True)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise HeadwayError(f"{path} is not UTF-8 text: give another --text") from None
    except OSError as error:
        raise HeadwayError(f"{path} cannot be read ({error.strerror}): give another --text") from None


def _tokens(tokenizer: Any, text: str) -> tuple[list[int], list[int]]:
    """The tokens of the text, and those that the model puts in front of a text."""
    plain = tokenizer.encode("a", add_special_tokens=False).ids
    whole = tokenizer.encode("a").ids
    before = whole[: whole.index(plain[0])]
    return tokenizer.encode(text, add_special_tokens=False).ids, before


def _show(out: Console, found: Extension) -> None:
    points(out, found.protocol(), style="dim")
    out.print("\n[bold]Perplexity by position[/bold]")
    out.print(table(*found.table(), no_wrap=True))
    points(out, found.conclusions())
