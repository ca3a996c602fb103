"""Small models that learn planted relations between words, to show what heads do."""

from ._article import ARTICLE as ARTICLE
from ._cases import Cases as Cases
from ._criteria import CRITERIA as CRITERIA
from ._criteria import Criteria as Criteria
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
from .weights import TEXTS as TEXTS
from .weights import Pretrained as Pretrained
from .weights import held_out_texts as held_out_texts
from .weights import pretrain as pretrain
from .weights import pretrained as pretrained

__all__ = [
    "ARTICLE",
    "CRITERIA",
    "LANGUAGES",
    "SPLITS",
    "TEXTS",
    "TRAININGS",
    "Cases",
    "Criteria",
    "Language",
    "Link",
    "PlantedWords",
    "Pretrained",
    "Relation",
    "Sentence",
    "annotated",
    "held_out_texts",
    "masked",
    "measure",
    "named_language",
    "pretrain",
    "pretrained",
    "tokenizer",
    "trained",
]
