"""``headway generate``: continues a text or answers questions with a published model."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .._common.devices import device_named
from .._common.language import said
from ..errors import HeadwayError
from ._console import console
from ._options import Device, Dtype, dtype_named

if TYPE_CHECKING:
    from tokenizers import Tokenizer


def run(
    model: Annotated[
        str,
        typer.Argument(
            help="A folder with config.json and model.safetensors, a .gguf file, or an id on the Hugging Face hub, "
            "such as Qwen/Qwen3-0.6B."
        ),
    ],
    prompt: Annotated[
        str | None,
        typer.Argument(
            help="The text to continue, in quotes. Default: a conversation that reads one question on each line."
        ),
    ] = None,
    chat: Annotated[
        bool | None,
        typer.Option(
            "--chat/--plain",
            help="--chat: the prompt is a question, which is put into the model's chat template; --plain: a text, "
            "which is continued as it is. Default: --plain, or without a prompt --chat.",
        ),
    ] = None,
    max_new_tokens: Annotated[
        int, typer.Option("--max-new-tokens", "-n", help="Maximum number of tokens to generate.")
    ] = 256,
    temperature: Annotated[
        float, typer.Option(help="Temperature of the random draws; 0 always takes the most likely token.")
    ] = 0.0,
    top_k: Annotated[int | None, typer.Option(help="Draw from the k most likely tokens. Default: from all.")] = None,
    top_p: Annotated[
        float | None,
        typer.Option(help="Draw from the most likely tokens that together have this probability. Default: from all."),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the random draws. Default: another text each time.")] = None,
    dtype: Dtype = None,
    device: Device = "auto",
) -> None:
    """Continue a text or answer questions with a published model.

    Models: BLOOM, GPT-2, GPT-NeoX, LLaMA, SmolLM, Qwen and others; docs/models.md lists all of them.

    Examples:
        headway generate openai-community/gpt2 "The sea was" -n 40
        headway generate HuggingFaceTB/SmolLM2-135M-Instruct --temperature 0.7
    """
    from .. import checkpoints
    from ..checkpoints._hub import model_name
    from ..models import Decoder
    from ..models.generate import check_sampling
    from ..nn import prepack

    say = console()
    check_sampling(max_new_tokens, temperature, top_k, top_p)
    if prompt is not None and not prompt.strip():
        raise HeadwayError("the prompt is empty: give a text to continue, or none for a conversation")
    wanted, place = dtype_named(dtype), device_named(device)
    tokenizer = checkpoints.tokenizer(model)
    loaded = checkpoints.load(model, dtype=wanted, device=place)
    if not isinstance(loaded, Decoder) or loaded.head is None:
        name = loaded.checkpoint.architecture
        raise HeadwayError(f"{model} is a {name}, which does not generate text: give a language model")
    options: dict[str, Any] = {
        "max_new_tokens": max_new_tokens,
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "seed": seed,
        "stop": checkpoints.stop_ids(model),
    }
    if place == "cpu":
        prepack(loaded)
    if prompt is not None:
        question = [{"role": "user", "content": prompt}]
        form = checkpoints.conversation(model, question) if chat else None
        if chat and form is None:
            raise HeadwayError(f"{model} has no chat template: leave --chat out")
        _write(loaded, tokenizer, prompt if form is None else form, options, plain=form is None)
        return
    if checkpoints.conversation(model, [{"role": "user", "content": ""}]) is None or chat is False:
        raise HeadwayError(f"{model} has no chat template: give a prompt to continue")
    ends = said("{model}. An empty line ends the conversation.", model=model_name(model))
    say.print(f"[dim]{ends}[/dim]")
    turns: list[dict[str, str]] = []
    while question_line := _asked():
        turns.append({"role": "user", "content": question_line})
        form = checkpoints.conversation(model, turns)
        assert form is not None
        turns.append({"role": "assistant", "content": _write(loaded, tokenizer, form, options, plain=False)})


def _asked() -> str:
    try:
        return input("> " if sys.stdin.isatty() else "").strip()
    except EOFError:
        return ""


def _write(model: Any, tokenizer: Tokenizer, text: str, options: dict[str, Any], *, plain: bool) -> str:
    """Prints the model's text as it is generated, and returns it."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise HeadwayError("the prompt is not UTF-8: write it in that encoding") from error
    # a chat template has its special tokens already
    ids = tokenizer.encode(text, add_special_tokens=plain).ids
    written = ""
    for piece in pieces(model, tokenizer, ids, options):
        sys.stdout.write(piece)
        sys.stdout.flush()
        written += piece
    sys.stdout.write("\n")
    return written


def pieces(model: Any, tokenizer: Tokenizer, ids: list[int], options: dict[str, Any]) -> Iterator[str]:
    """Yields the text after the ids, each piece as soon as its characters are complete."""
    from ..models import stream

    new: list[int] = []
    shown = ""
    for step in stream(model, [ids], **options):
        if step.ids[0] is not None:
            new.append(step.ids[0])
        text = tokenizer.decode(new)
        if not text.endswith("\ufffd"):  # a character whose last bytes are missing yet
            yield text[len(shown) :]
            shown = text
    rest = tokenizer.decode(new)
    if rest != shown:
        yield rest[len(shown) :]
