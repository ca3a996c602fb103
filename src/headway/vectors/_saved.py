"""headway's own files of vectors: the method, its options, words and tensors in one safetensors file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .._common.extras import need
from .._common.files import write_tensors
from ..errors import HeadwayError

OURS = "headway.vectors"


@dataclass(frozen=True)
class Saved:
    """The metadata and the tensors of a file.

    tokenizer   as ``described`` puts it; None for one of the user's own
    counts      int64 [words], where they are known
    """

    method: str
    options: dict[str, Any]
    tokenizer: str | None
    words: Sequence[str]
    counts: Tensor | None
    tensors: dict[str, Tensor]


def write(saved: Saved, path: Path) -> None:
    """Whole or not at all."""
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in saved.tensors.items()}
    # JSON, since words of a tokenizer may contain spaces and line ends
    tensors["words"] = torch.frombuffer(bytearray(json.dumps(saved.words).encode()), dtype=torch.uint8)
    if saved.counts is not None:
        tensors["counts"] = saved.counts.cpu()
    about = {"format": OURS, "method": saved.method, "options": json.dumps(saved.options)}
    if saved.tokenizer is not None:
        about["tokenizer"] = saved.tokenizer
    write_tensors(path, tensors, about)


def read(path: Path) -> Saved:
    """Raises HeadwayError for a file that is damaged, or that ``write`` did not write; the caller names it."""
    library = need("safetensors", "loading vectors", "checkpoints")
    try:
        with library.safe_open(path, framework="pt") as file:
            about: dict[str, str] = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (library.SafetensorError, OSError) as error:
        raise HeadwayError(f"it is not a complete safetensors file ({error}): get it again") from error
    if about.get("format") != OURS or "words" not in tensors:
        raise HeadwayError(
            f"it holds the tensors {_some(sorted(tensors))} but not their words: give a file that "
            "headway's save wrote, or make Pretrained.of(words, matrix)"
        )
    try:
        options = json.loads(about["options"])
        words = json.loads(tensors.pop("words").numpy().tobytes())
    except Exception as error:  # a modified file can raise anything
        raise unreadable(error) from error
    counts = tensors.pop("counts", None)
    if not _are_words(words) or not (counts is None or (counts.dtype, counts.shape) == (torch.int64, (len(words),))):
        raise HeadwayError("a word is not there exactly once, or the counts do not fit: get it again")
    return Saved(about.get("method", ""), options, about.get("tokenizer"), words, counts, tensors)


def unreadable(error: Exception) -> HeadwayError:
    """Returns the error for words or options that were modified."""
    return HeadwayError(f"its words or options cannot be read ({error}): get it again")


def _are_words(words: Any) -> bool:
    return (
        isinstance(words, list) and all(isinstance(word, str) for word in words) and len(words) == len(set(words)) > 0
    )


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
