"""What ``headway inspect`` reads: a model with its tokenizer, and texts."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._common.files import given_path
from .._common.language import said
from .._common.text_files import decoded, ending_of
from ..errors import HeadwayError

if TYPE_CHECKING:
    from torch import nn

    from .._common.progress import Tell
    from ..inspection import HeadRoles
    from ..inspection.texts import AnnotatedText, EncodedText

READERS = {
    ".conllu": "read_conllu",
    ".tsv": "read_gap",
    ".conll": "read_conll2012",
    ".v4_gold_conll": "read_conll2012",
    ".gold_conll": "read_conll2012",
}
"""The readers of annotated texts by the endings of file names; any other file is plain text."""

SENTENCES = 200
"""How many sentences of the manual roles are measured on."""


@dataclass(frozen=True)
class Inspected:
    """A model with its tokenizer, and texts on which its roles can be measured."""

    name: str
    model: nn.Module
    tokenizer: Any
    texts: Callable[[], Sequence[EncodedText]]
    about: str
    """A description of the texts."""
    longest: int | None
    """The most tokens that the model reads; None for any number."""
    roles: HeadRoles | None = None
    """The roles of a small model that comes with headway, measured on these texts with the seed ``SEED``."""


def is_model(name: str) -> bool:
    """Whether an argument is a model, not a text: a folder, a .gguf file or an id on the hub."""
    from ..checkpoints._hub import hub_model

    path = given_path(name)  # a text may be longer than the name of a file can be
    return os.path.isdir(path) or path.suffix.lower() == ".gguf" or hub_model(name) is not None


def texts_of(given: str) -> list[AnnotatedText]:
    """Returns the texts of an argument: those of a file or of standard input, or the argument itself."""
    from ..inspection import texts

    if given == "-":
        return texts.paragraphs(decoded(sys.stdin.buffer.read(), "standard input"), "standard input")
    path = given_path(given)
    if os.path.isfile(path):
        read: Callable[[Path], list[AnnotatedText]] = getattr(texts, READERS.get(ending_of(path), "read_text"))
        return read(path)
    if ending_of(path) in (*READERS, ".txt"):
        raise HeadwayError(f"there is no file {given}: give a text, or a file that exists")
    return texts.paragraphs(given)


def published(name: str) -> Inspected:
    """Loads a published model by its folder, its file or its id on the hub."""
    from .. import checkpoints
    from ..checkpoints._hub import model_name
    from ..inspection.roles import longest_text
    from ..inspection.texts import encode, python_manual
    from ..models import EncoderDecoder

    model = checkpoints.load(name).eval()
    if isinstance(model, EncoderDecoder):
        raise HeadwayError(f"{name} reads two texts, with an encoder and a decoder: give a model that reads one")
    tokenizer, longest = checkpoints.tokenizer(name), longest_text(model)
    texts = encode(tokenizer, python_manual(SENTENCES), longest=longest, too_long="leave out")
    about = said("{count} sentences of Python's manual", count=len(texts))
    return Inspected(model_name(name), model, tokenizer, lambda: texts, about, longest)


def small_model(language: str | None, given: Sequence[AnnotatedText], train: bool, tell: Tell) -> Inspected:
    """Returns a small model that knows planted relations: the one that comes with headway, or one trained here.

    The default language is that of the given texts; without a text, Chinese.
    """
    from .._common.scripts import is_han
    from ..study import planted

    if language is None:
        chinese = not given or any(is_han(character) for text in given for character in text.text)
        language = "chinese" if chinese else "english"
    of = planted.named_language(language)
    small = planted.pretrain(of, tell=tell) if train else planted.pretrained(of)
    texts = partial(planted.held_out_texts, of)
    about = said(
        "{count} planted sentences in {language} with nouns that are new in their places",
        count=planted.TEXTS,
        language=said(of.name.capitalize()),
    )
    return Inspected(
        said("small {language} model", language=said(of.name)),
        small.model,
        planted.tokenizer(of),
        texts,
        about,
        None,
        small.roles,
    )
