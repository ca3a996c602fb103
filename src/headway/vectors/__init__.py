"""Vectors of words: counted, learned from neighbouring words, or read in their sentence."""

from .._common.training import Diverged as Diverged
from ._base import MatrixVectors as MatrixVectors
from ._base import Vectors as Vectors
from ._evaluate import word_analogies as word_analogies
from ._evaluate import word_similarity as word_similarity
from ._files import load as load
from ._files import write as write
from ._map import WordMap as WordMap
from ._map import word_map as word_map
from ._neighbours import Neighbours as Neighbours
from ._pretrained import Pretrained as Pretrained
from ._table import VECTORS as VECTORS
from ._text import SubWords as SubWords
from ._text import Vocabulary as Vocabulary
from ._text import WordCorpus as WordCorpus
from ._text import Words as Words
from ._train_bert import train_bert as train_bert
from ._unknown import UnknownWordError as UnknownWordError
from .bag_of_words import BagOfWords as BagOfWords
from .bert import Bert as Bert
from .fasttext import FastText as FastText
from .glove import GloVe as GloVe
from .one_hot import OneHot as OneHot
from .tf_idf import TFIDF as TFIDF
from .word2vec import Word2Vec as Word2Vec

__all__ = [
    "VECTORS",
    "Vectors",
    "MatrixVectors",
    "OneHot",
    "BagOfWords",
    "TFIDF",
    "Word2Vec",
    "GloVe",
    "FastText",
    "Bert",
    "Pretrained",
    "Neighbours",
    "UnknownWordError",
    "Diverged",
    "load",
    "write",
    "train_bert",
    "word_map",
    "WordMap",
    "word_similarity",
    "word_analogies",
    "Words",
    "SubWords",
    "Vocabulary",
    "WordCorpus",
]


def __dir__() -> list[str]:
    return __all__
