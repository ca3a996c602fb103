"""Tokenizers of English, Chinese and subwords, and the conversion of a corpus into ids."""

from __future__ import annotations

import json
import re
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from .._common.extras import need
from .._common.progress import Share
from .._common.scripts import HAN, KANA, has_han
from .._common.text_files import read_text
from .._common.words import Span, spelling, words_in
from ..errors import HeadwayError


class TooRareError(HeadwayError):
    """Raised if no word of a corpus occurs ``min_count`` times."""


_SHORT = re.compile(rf"[{HAN}{KANA}]")
_NUMERAL = re.compile("([一二三四五六七八九]*〇[〇一二三四五六七八九]*)")
"""A number by its digits, such as 二〇二四. jieba does not know this zero."""
_REPEATED = re.compile(f"([{HAN}])々")
_WIDE = {0xFF01 + i: 0x21 + i for i in range(94) if chr(0x21 + i).isalnum()}
"""Letters and digits of full width."""


class Tokenizer(Protocol):
    """A function that cuts a text into tokens, in order."""

    def __call__(self, text: str) -> list[str]: ...


@dataclass(frozen=True)
class Words:
    """Cuts a text into its words: runs of letters, digits and the marks on them, with the apostrophes inside them.

    They are those of ``headway.inspection.texts.words_in`` without signs, each in one form (Unicode's NFC; letters of
    usual width; ' for ’), however a text writes it. Chinese words of jieba's dictionary, and those that you add by
    ``jieba.add_word``, may have other letters, such as T恤.

    Args:
        lower: whether words are converted to lower case.
        chinese: "words" cuts Chinese into words with jieba (the extra ``chinese``); "characters" into single
            characters; "" is the first if jieba is installed, and otherwise the second. The attribute has the value in
            use.

    Raises:
        HeadwayError: if ``chinese`` has another value; calls raise it for Chinese text if jieba is not installed.
    """

    lower: bool = True
    chinese: str = ""

    def __post_init__(self) -> None:
        if not self.chinese:
            object.__setattr__(self, "chinese", "words" if find_spec("jieba") else "characters")
        if self.chinese not in ("words", "characters"):
            raise HeadwayError(f"chinese is {self.chinese!r}: give 'words' or 'characters'")

    def __call__(self, text: str) -> list[str]:
        return [spelling(text[start:stop], lower=self.lower) for start, stop in self.spans(text)]

    def spans(self, text: str) -> list[Span]:
        """Returns the start and the stop of each word in a text.

        Args:
            text: any text.
        """
        if self.chinese == "characters" or not has_han(text):
            return list(words_in(text, signs=False))
        spans: list[Span] = []
        at = rest = 0  # the rest is the text between Chinese words
        for piece in _jieba(text):
            if has_han(piece):
                spans += _between(text, rest, at)
                spans.append((at, at + len(piece)))
                rest = at + len(piece)
            at += len(piece)
        return spans + _between(text, rest, at)


def has_short_words(words: Sequence[str], counts: Tensor | None = None) -> bool:
    """Whether at least half of all words are Chinese or Japanese, whose words have mostly one or two characters.

    ``counts`` says how often each word occurs, int64 [words]; each once if None.
    """
    many = [1] * len(words) if counts is None else counts.tolist()
    short = sum(count for word, count in zip(words, many, strict=True) if _SHORT.search(word))
    return bool(words) and 2 * short >= sum(many)


class SubWords:
    """Cuts a text into sub-words with a tokenizer of the package ``tokenizers``.

    Args:
        tokenizer: a ``tokenizers.Tokenizer``.

    Example:
        tokenizer = SubWords.train(texts, size=8000)
        tokenizer("unbelievable")                     # ['un', 'belie', 'vable']
    """

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer

    @classmethod
    def train(cls, texts: Iterable[str], size: int = 8000) -> SubWords:
        """Learns sub-words from texts by byte-pair encoding, which merges frequent neighbours.

        Args:
            texts: the texts.
            size: the largest number of sub-words.

        References:
            Sennrich et al. 2016.
        """
        library = need("tokenizers", "SubWords")
        normal, models, trainers = library.normalizers, library.models, library.trainers
        made = library.Tokenizer(models.BPE(unk_token="[UNK]"))
        made.normalizer = normal.Sequence([normal.NFKC(), normal.Lowercase()])
        made.pre_tokenizer = library.pre_tokenizers.BertPreTokenizer()
        trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=["[UNK]"], show_progress=False)
        made.train_from_iterator(texts, trainer)
        return cls(made)

    @classmethod
    def read(cls, path: str | Path) -> SubWords:
        """Reads the tokenizer of a tokenizer.json.

        Args:
            path: the file.

        Raises:
            HeadwayError: if the file cannot be read.
        """
        try:
            return cls(need("tokenizers", "SubWords").Tokenizer.from_str(read_text(Path(path))))
        except HeadwayError:
            raise
        except Exception as error:  # the package tokenizers raises Exception itself
            raise HeadwayError(f"{path} is not a tokenizer ({error}): give a tokenizer.json") from None

    def __call__(self, text: str) -> list[str]:
        tokens: list[str] = self.tokenizer.encode(text, add_special_tokens=False).tokens
        return tokens


def described(tokenizer: Tokenizer) -> str | None:
    """A tokenizer as text, which ``tokenizer_from`` reads; None for one that is neither Words nor SubWords."""
    if isinstance(tokenizer, Words):
        return json.dumps({"words": asdict(tokenizer)})
    if isinstance(tokenizer, SubWords):
        return json.dumps({"sub-words": tokenizer.tokenizer.to_str()})
    return None


def tokenizer_from(description: str) -> Tokenizer:
    """The tokenizer that ``described`` has written."""
    [(kind, what)] = json.loads(description).items()
    if kind == "words":
        return Words(**what)
    return SubWords(need("tokenizers", "SubWords").Tokenizer.from_str(what))


def index_of(words: Sequence[str]) -> dict[str, int]:
    """Returns the number of each word, by the word and by its spelling, in which tokenizers write it."""
    index = {word: number for number, word in enumerate(words)}
    for number, word in enumerate(words):
        if not word.isascii():
            index.setdefault(spelling(word), number)
    return index


class Vocabulary:
    """Words and their ids.

    The i-th word has id i, and every other word has the id len(vocabulary).

    Args:
        words: the words, each once.
        tokenizer: cuts a text into tokens; ``Words()`` if None.

    Raises:
        HeadwayError: if a word is given twice.

    Example:
        vocabulary = Vocabulary.of(texts, min_count=2)
        ids = vocabulary.ids("the cat sat")           # int64 [3]
    """

    def __init__(self, words: Iterable[str], tokenizer: Tokenizer | None = None) -> None:
        self.words = tuple(words)
        self.tokenizer = tokenizer or Words()
        self.index = index_of(self.words)
        if len(set(self.words)) < len(self.words):
            word, count = Counter(self.words).most_common(1)[0]
            raise HeadwayError(f"the word {word!r} stands {count} times among the words: give each once")

    @classmethod
    def of(
        cls,
        texts: Iterable[str],
        tokenizer: Tokenizer | None = None,
        *,
        min_count: int = 1,
        max_words: int | None = None,
    ) -> Vocabulary:
        """Returns the words of texts, the most frequent first.

        Args:
            texts: the documents.
            tokenizer: cuts a text into tokens; ``Words()`` if None.
            min_count: words that occur less often are left out.
            max_words: only this many words are kept, the most frequent; all of them if None.
        """
        tokenizer = tokenizer or Words()
        corpus = WordCorpus.of(texts, tokenizer, min_count=min_count, max_words=max_words)
        return cls(corpus.words, tokenizer)

    def __len__(self) -> int:
        return len(self.words)

    def __contains__(self, word: object) -> bool:
        return word in self.index

    def ids(self, text: str) -> Tensor:
        """Returns the id of each token of a text.

        Args:
            text: any text.

        Returns:
            int64 [n].
        """
        unknown = len(self.words)
        return torch.tensor([self.index.get(token, unknown) for token in self.tokenizer(text)], dtype=torch.int64)


@dataclass(frozen=True, eq=False)
class WordCorpus:
    """Texts as the ids of their words, without words outside the vocabulary.

    Attributes:
        words: the vocabulary, the most frequent first, then in alphabetical order.
        counts: how often each word occurs, int64 [words].
        ids: the documents one behind the other, int32 [tokens].
        ends: where each document ends among the ids, int64 [documents].
    """

    words: tuple[str, ...]
    counts: Tensor
    ids: Tensor
    ends: Tensor

    @classmethod
    def of(
        cls,
        texts: Iterable[str],
        tokenizer: Tokenizer,
        *,
        min_count: int = 1,
        max_words: int | None = None,
        watch: Share | None = None,
    ) -> WordCorpus:
        """Reads texts.

        Args:
            texts: the documents.
            tokenizer: cuts a text into tokens.
            min_count: words that occur less often are left out.
            max_words: only this many words are kept, the most frequent; all of them if None.
            watch: called with the share of the texts that are read, 0 … 1.

        Raises:
            HeadwayError: if texts is one str or has no words, a text is not a str, a size is below 1, or no word is
                frequent enough.
        """
        need_texts(texts)
        if min_count < 1 or (max_words is not None and max_words < 1):
            raise HeadwayError(f"min_count is {min_count} and max_words {max_words}: give at least 1")
        number: dict[str, int] = {}
        numbers, ends = array("i"), array("q")
        total = len(texts) if isinstance(texts, Sequence) else None
        for done, text in enumerate(texts):
            if not isinstance(text, str):
                raise HeadwayError(f"text {done} is a {type(text).__name__}: give texts as str")
            numbers.extend(number.setdefault(token, len(number)) for token in tokenizer(text))
            ends.append(len(numbers))
            if watch is not None and total:
                watch((done + 1) / total)
        if not numbers:
            raise HeadwayError(f"the corpus has no words in its {len(ends)} texts: give texts with words in them")
        first = torch.frombuffer(numbers, dtype=torch.int32).long()
        counts = torch.bincount(first, minlength=len(number))
        words, frequency = list(number), counts.tolist()
        order = sorted(range(len(words)), key=lambda i: (-frequency[i], words[i]))
        kept = [i for i in order if frequency[i] >= min_count][:max_words]
        if not kept:
            most = frequency[order[0]]
            raise TooRareError(
                f"no word of the corpus occurs {min_count} times (the most frequent {most}): lower min_count"
            )
        renumber = torch.full((len(words),), -1, dtype=torch.int32)
        renumber[kept] = torch.arange(len(kept), dtype=torch.int32)
        ids = renumber[first]
        inside = ids >= 0
        ends_kept = torch.cat([torch.zeros(1, dtype=torch.int64), inside.cumsum(0)])[torch.tensor(list(ends))]
        return cls(tuple(words[i] for i in kept), counts[kept], ids[inside], ends_kept)

    def documents(self) -> Iterator[Tensor]:
        """Yields the ids of each document, int32 [tokens]."""
        yield from torch.tensor_split(self.ids, self.ends[:-1])


def need_texts(texts: Iterable[str]) -> None:
    """Raises HeadwayError for a single text, and for anything that is not a list of texts."""
    if isinstance(texts, (str, bytes)) or not isinstance(texts, Iterable):
        raise HeadwayError(f"texts is a {type(texts).__name__}: give a list of texts, such as [text]")


def _between(text: str, start: int, stop: int) -> list[Span]:
    return [(start + first, start + last) for first, last in words_in(text[start:stop], signs=False)]


def _jieba(text: str) -> list[str]:
    """The pieces of a text by jieba, which together have its length.

    It gets 人人 for 人々 and letters of usual width, since its dictionary has these.
    """
    jieba = need("jieba", "cutting Chinese into words, unless by Words(chinese='characters'),", "chinese")
    jieba.setLogLevel("WARNING")
    pieces: list[str] = []
    for number, part in enumerate(_NUMERAL.split(_REPEATED.sub(r"\1\1", text.translate(_WIDE)))):
        pieces += [part] if number % 2 else jieba.lcut(part)
    return pieces
