"""The table of the methods from words to vectors."""

from ._base import Vectors
from .bag_of_words import BagOfWords
from .bert import Bert
from .fasttext import FastText
from .glove import GloVe
from .one_hot import OneHot
from .tf_idf import TFIDF
from .word2vec import Word2Vec

VECTORS: dict[str, type[Vectors]] = {
    "one-hot": OneHot,
    "bag-of-words": BagOfWords,
    "tf-idf": TFIDF,
    "word2vec": Word2Vec,
    "glove": GloVe,
    "fasttext": FastText,
    "bert": Bert,
}
"""The methods by name, one for each file of this folder."""
