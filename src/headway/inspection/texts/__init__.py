"""Texts with words and annotation, readers of their files, and what a model reads of them."""

from ..._common.words import words_in as words_in
from ._encode import encode as encode
from ._text import AnnotatedText as AnnotatedText
from ._text import Choice as Choice
from ._text import EncodedText as EncodedText
from ._text import Mention as Mention
from .conll2012 import read_conll2012 as read_conll2012
from .conllu import read_conllu as read_conllu
from .gap import read_gap as read_gap
from .plain import paragraphs as paragraphs
from .plain import plain_text as plain_text
from .plain import python_manual as python_manual
from .plain import read_text as read_text

__all__ = [
    "encode",
    "AnnotatedText",
    "Choice",
    "EncodedText",
    "Mention",
    "words_in",
    "read_conll2012",
    "read_conllu",
    "read_gap",
    "paragraphs",
    "plain_text",
    "python_manual",
    "read_text",
]


def __dir__() -> list[str]:
    return __all__
