"""A file of a small model: its weights, its words, and its measurements."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...._common.extras import need
from ...._common.files import write_tensors
from ....errors import HeadwayError
from ....inspection.roles import HeadRoles
from ....inspection.roles._state import from_state, state_of
from ....models import Encoder
from .._grammar import Language
from .._languages import named_language
from .._tokens import vocabulary
from .._training import build

FORMAT = "headway.study.planted 1"
PACKAGE = Path(__file__).parent
MAKE = "python -m headway.study.planted.weights"
"""The command that makes the files of the package."""
ROLE = "roles."
"""What the names of tensors of roles begin with."""


@dataclass(frozen=True)
class Pretrained:
    """A small model that met the criteria.

    Attributes:
        model: the model in eval mode, as ``trained`` returns it.
        language: its language.
        seed: the seed of its training.
        rejected: the seeds that were tried before it, with the criteria that each missed.
        recipe: a name for all that the model depends on.
        criteria: the bounds by name.
        measured: the measurements for the criteria.
        roles: the roles of its heads, measured on ``held_out_texts``.
    """

    model: Encoder
    language: Language
    seed: int
    rejected: dict[int, list[str]]
    recipe: str
    criteria: dict[str, float]
    measured: dict[str, Any]
    roles: HeadRoles

    def head(self, relation: str) -> tuple[int, int]:
        """Returns layer and number of the head that finds most links of a relation.

        Args:
            relation: the relation.
        """
        layer, head = self.measured["relations"][relation]["head"].split(".")
        return int(layer), int(head)


def pretrained(language: str | Language, number: int = 0, *, folder: str | Path | None = None) -> Pretrained:
    """Reads a small model that comes with headway.

        small = pretrained("chinese")
        small.model(torch.tensor([tokenizer(small.language).encode("小猫很可爱，它在睡觉。").ids]))

    The weights are stored in 16 bits, and the model computes in float32. The answers are therefore the same on every
    machine, apart from rounding.

    Args:
        language: "chinese", "english", or a language of ``pretrain``.
        number: the number of the model: 0, or 0 to 2 for lesson 15's language ``ARTICLE``.
        folder: where the files are. Default: those of the package.

    Raises:
        HeadwayError: if there is no such model, its file is damaged, or it was made for other words.
    """
    language = named_language(language)
    path = file_of(language, number, PACKAGE if folder is None else Path(folder))
    library = need("safetensors", "reading a small model", "checkpoints")
    if not path.is_file():
        raise HeadwayError(f"there is no {path}: train one with pretrain(language, folder=...)")
    try:
        with library.safe_open(path, framework="pt") as file:
            about = {name: json.loads(text) for name, text in file.metadata().items()}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        if about["format"] != FORMAT:
            raise ValueError(f"its format is {about['format']!r}")
        figures = {name.removeprefix(ROLE): tensors.pop(name) for name in list(tensors) if name.startswith(ROLE)}
        if about["vocabulary"] != list(vocabulary(language)):
            raise ValueError(f"its words are not those of the language {language.name!r}")
        model = build(language, 0)
        model.load_state_dict({name: tensor.float() for name, tensor in tensors.items()})
        return Pretrained(
            model=model.eval(),
            language=language,
            rejected={int(seed): lacks for seed, lacks in about["rejected"].items()},
            roles=from_state(about["roles"], figures),
            **{name: about[name] for name in ("seed", "recipe", "criteria", "measured")},
        )
    except Exception as error:  # a modified file can raise anything
        said = " ".join(f"{type(error).__name__}: {error}".split())
        remedy = f"delete it, and run {MAKE}" if path.parent == PACKAGE else "delete it"
        raise HeadwayError(f"{path} is damaged or of another version ({said:.200}): {remedy}") from error


def recipe_in(path: Path) -> str | None:
    """Returns the recipe of a model's file; None if it cannot be read."""
    library = need("safetensors", "reading a small model", "checkpoints")
    try:
        with library.safe_open(path, framework="pt") as file:
            recipe = json.loads(file.metadata()["recipe"])
    except Exception:  # a modified file can raise anything
        return None
    return recipe if isinstance(recipe, str) else None


def file_of(language: Language, number: int, folder: Path) -> Path:
    """Returns the path of a model's file."""
    return folder / f"{language.name}-{number}.safetensors"


def write(small: Pretrained, path: Path) -> None:
    """Writes a model's file, completely or not at all, with weights that are rounded to 16 bits.

    Raises:
        HeadwayError: if the file cannot be written.
    """
    about, figures = state_of(small.roles)
    tensors = {name: tensor.half().contiguous() for name, tensor in small.model.state_dict().items()}
    tensors |= {ROLE + name: tensor for name, tensor in figures.items()}
    entries = {
        "format": FORMAT,
        "vocabulary": list(vocabulary(small.language)),
        "roles": about,
        **{name: getattr(small, name) for name in ("seed", "rejected", "recipe", "criteria", "measured")},
    }
    write_tensors(path, tensors, {name: json.dumps(value, ensure_ascii=False) for name, value in entries.items()})
