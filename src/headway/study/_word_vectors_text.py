"""The documents of ``word_vectors``: those of a file, or of the sample of Wikipedia that comes with gensim."""

from __future__ import annotations

import bz2
import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .._common.extras import need
from ..errors import HeadwayError
from .corpora import read as read_text

DEFAULT_NAME = "enwiki sample in gensim"
WIKIPEDIA = "enwiki-latest-pages-articles1.xml-p000000010p000030302-shortened.bz2"
FEWEST_WORDS = 10
"""A paragraph of Wikipedia with fewer words is a heading or a remainder of markup."""
HELD_OUT = 10
"""The last of every group of this many documents is held out."""


@dataclass(frozen=True)
class Texts:
    """The documents to train on, ``train``, and every tenth, ``held_out``."""

    name: str
    sha256: str
    train: Sequence[str]
    held_out: Sequence[str]


def read(path: str | Path | None) -> Texts:
    """Reads the documents of a file of UTF-8 text, with blank lines between them, or the default corpus.

    Raises HeadwayError if the file is missing, empty or not text, or has fewer than ten documents.
    """
    documents = wikipedia() if path is None else documents_of(path)
    name = DEFAULT_NAME if path is None else Path(path).name
    if len(documents) < HELD_OUT:
        raise HeadwayError(
            f"corpus {name} has {len(documents)} documents: give at least {HELD_OUT}, with blank lines between them"
        )
    digest = hashlib.sha256("\n\n".join(documents).encode()).hexdigest()
    train = [text for number, text in enumerate(documents, 1) if number % HELD_OUT]
    return Texts(name, digest, train, documents[HELD_OUT - 1 :: HELD_OUT])


def documents_of(path: str | Path) -> list[str]:
    """Returns the documents of a file of UTF-8 text; raises HeadwayError if it is missing, blank or not text."""
    documents = _paragraphs(read_text(Path(path)).decode().replace("\r\n", "\n"))
    if not documents:
        raise HeadwayError(f"corpus {path} has only blanks: give a file with text in it")
    return documents


def wikipedia() -> list[str]:
    """Returns the paragraphs of 107 articles of the English Wikipedia: 5,400 with 468,000 words."""
    library, data = (need(f"gensim.{name}", "the default corpus") for name in ("corpora.wikicorpus", "test.utils"))
    with bz2.open(data.datapath(WIKIPEDIA), "rt", encoding="utf-8") as file:
        pages = library.extract_pages(file, filter_namespaces=("0",))
        articles = [library.filter_wiki(text) for _, text, _ in pages]
    plain = [re.sub("'{2,}", "", text) for text in articles if not text.lstrip().upper().startswith("#REDIRECT")]
    return [text for article in plain for text in _paragraphs(article) if len(text.split()) >= FEWEST_WORDS]


def _paragraphs(text: str) -> list[str]:
    return [part.strip() for part in re.split(r"\n\s*\n", text) if part.strip()]
