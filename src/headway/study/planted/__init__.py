"""Small models that learn planted relations between words, so that one can watch what their heads do."""

from ._cases import Cases as Cases
from ._grammar import SPLITS as SPLITS
from ._grammar import Language as Language
from ._grammar import Link as Link
from ._grammar import Relation as Relation
from ._grammar import Sentence as Sentence
from ._heads import measure as measure
from ._languages import LANGUAGES as LANGUAGES
from ._languages import named_language as named_language
from ._texts import annotated as annotated
from ._texts import masked as masked
from ._tokens import tokenizer as tokenizer
from ._training import TRAININGS as TRAININGS
from ._training import PlantedWords as PlantedWords
from ._training import trained as trained

__all__ = [
    "LANGUAGES",
    "SPLITS",
    "TRAININGS",
    "Cases",
    "Language",
    "Link",
    "PlantedWords",
    "Relation",
    "Sentence",
    "annotated",
    "masked",
    "measure",
    "named_language",
    "tokenizer",
    "trained",
]
