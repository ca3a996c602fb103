"""Options that several commands share, and the completion of their values."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import Field, fields
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

import typer

from .._common.language import choose
from ..errors import HeadwayError, unknown

if TYPE_CHECKING:
    import torch


N = TypeVar("N", int, float)


def completing(names: Callable[[], Iterable[str]]) -> Callable[[str], list[str]]:
    """Returns a function that completes one of the names, or the last of several names separated by commas."""

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


def _in_english(as_json: bool) -> bool:
    """Sets English, since programs read JSON, and its notes must not depend on the environment."""
    if as_json:
        choose("en")
    return as_json


Json = Annotated[
    bool,
    typer.Option(
        "--json",
        callback=_in_english,
        help="Print one JSON object and nothing else to standard output: command, version, rows (an object for each "
        "row), notes (sentences), files (what was written). A number that is not finite is null. Progress goes to "
        "standard error.",
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", help="Print only the results, without progress.")]
Device = Annotated[
    str,
    typer.Option(
        help="Where the model runs: cpu, cuda, cuda:1 …; auto takes a GPU if there is one (but in a comparison only if "
        "a fused kernel trains every encoding there).",
        autocompletion=completing(lambda: DEVICES),
    ),
]
Dtype = Annotated[
    str | None,
    typer.Option(help="float32 or bfloat16. Default: as in the file.", autocompletion=completing(lambda: DTYPES)),
]
OutFolder = Annotated[str, typer.Option(help="Folder for the results; the same command resumes from it.")]


def options_of(settings: Any, **own: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Gives a command whose function takes ``**settings`` an option for each field of a dataclass.

    The options have the names, types and defaults of the fields. The help comes from the docstring of the dataclass,
    with "--names" in place of ``names``. Several values are written as one text, separated by commas. The metadata of a
    field may have "choices", and an "option" to be used in place of the field's name. ``own`` replaces the annotations
    of some fields. The options --out, --json and --quiet come last.
    """
    kinds = get_type_hints(settings)
    entries = re.findall(r"^ {4}(\w+): (.+(?:\n {8}.+)*)", inspect.getdoc(settings) or "", re.MULTILINE)
    helps = {
        name: re.sub(r"``(\w+)``", lambda match: _flag(match[1]), " ".join(text.split())) for name, text in entries
    }

    def annotation(field: Field[Any]) -> Any:
        kind, text = kinds[field.name], helps.get(field.name, "")
        if any(get_origin(part) is Sequence for part in get_args(kind)):
            kind, text = str | None, text.replace(".", ", separated by commas.", 1)
        choices = field.metadata.get("choices", ())
        complete = completing(lambda: choices) if choices else None
        flag = field.metadata.get("option", _flag(field.name))
        return Annotated[kind, typer.Option(flag, help=text[:1].upper() + text[1:], autocompletion=complete)]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(command, eval_str=True)
        named = {name: one for name, one in signature.parameters.items() if one.kind is not one.VAR_KEYWORD}
        last = [named.pop(name).replace(kind=inspect.Parameter.KEYWORD_ONLY) for name in ("out", "as_json", "quiet")]
        options = [
            inspect.Parameter(
                field.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=field.default,
                annotation=own.get(field.name) or annotation(field),
            )
            for field in fields(settings)
        ]
        parameters = [*named.values(), *options, *last]
        command.__annotations__ = {one.name: one.annotation for one in parameters}
        command.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        return command

    return decorate


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def numbers(text: str, name: str = "lengths", kind: type[N] = int, such_as: str = "128,256,512,1024") -> list[N]:
    """Splits numbers separated by commas. Raises HeadwayError, with ``name`` and an example, for any other text."""
    try:
        values = [kind(part) for part in text.split(",") if part.strip()]
    except ValueError:
        values = []
    if not values:
        what = "whole numbers" if kind is int else "numbers"
        raise HeadwayError(f"{name} is {text!r}: give {what} separated by commas, such as {such_as}")
    return values


def seeds_named(text: str) -> int | list[int]:
    """Returns the seeds that --seeds names: as many as a number such as 3 says, or those of 3-5 or 0,2."""
    if text.strip().isdecimal():
        return int(text)
    seeds: list[int] = []
    for part in text.split(","):
        found = re.fullmatch(r"(\d+)(?:-(\d+))?", part.strip())
        if found is None or (found[2] is not None and int(found[2]) < int(found[1])):
            raise HeadwayError(f"--seeds is {text!r}: give a number of seeds, or seeds such as 3-5 or 0,2")
        seeds += range(int(found[1]), int(found[2] or found[1]) + 1)
    return seeds


def share_named(text: str | None) -> tuple[int, int]:
    """Returns the share that --share names, such as 2/5; the whole without the option."""
    if text is None:
        return 1, 1
    parts = re.fullmatch(r"(\d+)/(\d+)", text.strip())
    if parts is None:
        raise HeadwayError(f"--share is {text!r}: give the number of this machine and of all, such as 2/5")
    return int(parts[1]), int(parts[2])


def split_names(text: str, option: str = "--encodings") -> list[str]:
    """Splits an option at commas outside of brackets and quotes.

    Raises:
        HeadwayError: if a bracket or quote stays open, there is no name, or one is given twice.
    """
    from ..positions._naming import split_outside

    names, closed = split_outside(text, ",")
    if not closed:
        raise HeadwayError(f"encodings {text!r} has a bracket or quote without its other half: close it")
    found = [name for name in names if name]
    if not found:
        raise HeadwayError(f"{option} is {text!r}: give names separated by commas, or leave it out")
    twice = next((name for name in found if found.count(name) > 1), None)
    if twice is not None:
        raise HeadwayError(f"{option} names {twice} twice: give it once; --seeds repeats trainings")
    return found
