"""Training of small models until one meets the criteria."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from ...._common.files import make_folder, need_folder_place
from ...._common.language import said
from ...._common.progress import Tell, nobody
from ....errors import HeadwayError
from ....inspection import head_roles
from ....inspection.texts import EncodedText
from ....models import Encoder
from ...protocol import Training
from .._criteria import CRITERIA, measured
from .._grammar import Language
from .._languages import named_language
from .._texts import masked
from .._training import cache, named_training, recipe_of, trained
from ._files import Pretrained, file_of, pretrained, recipe_in, write

TRAINING = {"english": "full", "article": "full"}
"""The trainings of languages for which "quick" is too short."""
TRIES = 20
"""The seeds that are tried at most."""
MOST = 0.8
"""The share of the time that the training takes."""
TEXTS = 400
"""The texts in which roles are measured."""


def pretrain(
    language: str | Language,
    number: int = 0,
    *,
    training: str | Training | None = None,
    folder: str | Path | None = None,
    tell: Tell = nobody,
) -> Pretrained:
    """Trains small models until one meets the criteria, and keeps it in a file, from which later calls read it.

    It tries seeds from 0 on. Further models of a language, which show how seeds differ, have the next seeds; for them
    the examples do not count. A training that was stopped resumes.

    Args:
        language: "chinese", "english", or a language of your own, whose examples are judged too.
        number: the number of the model.
        training: "quick", "full", or settings of your own. Default: "quick"; for English and ``ARTICLE`` "full".
        folder: where the file is kept. Default: where ``trained`` keeps models.
        tell: is told of the progress with one seed.

    Raises:
        HeadwayError: if none of 20 seeds meets the criteria. The message names the criteria that the last one missed.
    """
    language, folder = named_language(language), cache() if folder is None else Path(folder)
    settings = named_training(training or TRAINING.get(language.name, "quick"))
    recipe = recipe_of_model(language, settings)
    path = file_of(language, number, folder)
    need_folder_place(folder)
    if path.is_file() and recipe_in(path) in (recipe, None):  # a model of another recipe may have other words
        return pretrained(language, number, folder=folder)
    first = 0 if number == 0 else pretrain(language, number - 1, training=settings, folder=folder, tell=tell).seed + 1
    rejected: dict[int, list[str]] = {}
    for seed in range(first, first + TRIES):
        model, figures = _tried(language, seed, settings, tell)
        if lacks := CRITERIA.lacks(figures, examples=number == 0):
            rejected[seed] = lacks
            continue
        roles = head_roles(model, held_out_texts(language))
        make_folder(folder)
        write(Pretrained(model, language, seed, rejected, recipe, CRITERIA.as_dict(), figures, roles), path)
        return pretrained(language, number, folder=folder)
    raise HeadwayError(
        f"none of the seeds {first} to {seed} of {language.name!r} meets the criteria ({'; '.join(rejected[seed])}): "
        "train longer, or change the language"
    )


def _tried(language: Language, seed: int, settings: Training, tell: Tell) -> tuple[Encoder, dict[str, Any]]:
    """A model with the weights of the file, and its measurements."""
    doing = said("training a small {language} model, seed {seed}", language=said(language.name), seed=seed)
    model = trained(language, seed, training=settings, watch=lambda step, _: tell(doing, MOST * step / settings.steps))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.half().float())
    doing_next = said("measuring it, seed {seed}", seed=seed)
    return model, measured(model, language, watch=lambda share: tell(doing_next, MOST + (1 - MOST) * share))


def measure_again(language: str | Language, number: int = 0, *, folder: str | Path, tell: Tell = nobody) -> Pretrained:
    """Measures a model and the roles of its heads again, and writes them to its file.

    Raises:
        HeadwayError: if there is no such model, or it does not meet the criteria.
    """
    small = pretrained(language, number, folder=folder)
    doing = f"measuring the small {small.language.name} model {number}"
    figures = measured(small.model, small.language, watch=lambda share: tell(doing, 0.9 * share))
    if lacks := CRITERIA.lacks(figures, examples=number == 0):
        raise HeadwayError(
            f"{small.language.name} {number} does not meet the criteria ({'; '.join(lacks)}): train it again"
        )
    again = replace(small, measured=figures, roles=head_roles(small.model, held_out_texts(small.language)))
    write(again, file_of(small.language, number, Path(folder)))
    return again


def held_out_texts(language: Language) -> Sequence[EncodedText]:
    """Returns the texts in which the roles of a model's heads are measured: nouns that are new in their places.

    Args:
        language: the language.
    """
    return masked(language, language.sentences(TEXTS, seed=-1, split="words"))


def recipe_of_model(language: Language, settings: Training) -> str:
    """Returns a name for all that a model and its acceptance depend on."""
    facts = (recipe_of(language, settings), language.examples, CRITERIA)
    return hashlib.sha256("\0".join(map(str, facts)).encode()).hexdigest()[:12]
