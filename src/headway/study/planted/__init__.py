"""Small models that learn planted relations between words, so that one can watch what their heads do."""

from ._chinese import CHINESE as CHINESE
from ._english import ENGLISH as ENGLISH
from ._grammar import SPLITS as SPLITS
from ._grammar import Language as Language
from ._grammar import Link as Link
from ._grammar import Relation as Relation
from ._grammar import Sentence as Sentence

LANGUAGES = {language.name: language for language in (CHINESE, ENGLISH)}
"""The languages by name."""

__all__ = ["LANGUAGES", "SPLITS", "CHINESE", "ENGLISH", "Language", "Link", "Relation", "Sentence"]
