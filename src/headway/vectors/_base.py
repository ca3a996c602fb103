"""The base class of all methods that give words vectors."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from typing_extensions import Self

from .._common.progress import Share, nobody
from ..errors import HeadwayError
from . import _saved
from ._neighbours import NUMBERS, TENTH, Chance, Neighbours
from ._text import Tokenizer, Vocabulary, WordCorpus, Words, described, index_of
from ._unknown import MOST_COMPARED, UnknownWordError, nearest_spellings

MOST_BYTES = 2**33
"""The most bytes of a matrix of word vectors."""


class Vectors(ABC):
    """Base class of the methods that give each word of a vocabulary a vector.

    ``fit`` finds the vectors in texts. A method is one file with a subclass, which defines its options (keyword-only
    arguments of the constructor, kept as attributes of the same names), ``_fit``, which finds the vectors, and
    ``_tensors`` and ``_restore``, which write them to a file and read them.

    Args:
        min_count: words that occur less often are left out.
        max_words: only this many words are kept, the most frequent; all of them if None.
        tokenizer: cuts a text into tokens; ``Words()`` if None.

    Example:
        vectors = GloVe(dim=100).fit(texts)
        vectors.vector("cat")                        # float32 [100]
        vectors.encode("the cat sat")                # float32 [3, 100], the input of a Transformer
        vectors.most_similar("cat")                  # [("dog", 0.83), …]
        vectors.analogy("man", "king", "woman")      # [("queen", 0.71), …]
    """

    name: ClassVar[str]
    """The name in the table VECTORS."""

    words: tuple[str, ...]
    """The vocabulary, most frequent first."""
    counts: Tensor | None
    """How often each word occurred, int64 [words]; None if a file did not say."""

    def __init__(self, *, min_count: int = 1, max_words: int | None = None, tokenizer: Tokenizer | None = None) -> None:
        self.min_count, self.max_words = min_count, max_words
        self.tokenizer: Tokenizer = tokenizer or Words()
        self._take(())

    # ---------------------------------------------------------------- from texts

    def fit(self, texts: Iterable[str], *, watch: Share | None = None) -> Self:
        """Finds the vectors of the words in texts.

        Args:
            texts: the documents.
            watch: called with the share of the work that is done, 0 … 1.

        Returns:
            These vectors.

        Raises:
            HeadwayError: if texts is one str or has no words, or an option is out of range.
        """
        corpus = WordCorpus.of(texts, self.tokenizer, min_count=self.min_count, max_words=self.max_words)
        self._take(corpus.words, corpus.counts)
        try:
            self._fit(corpus, watch or nobody)
        except BaseException:
            self._take(())  # no words without vectors remain
            raise
        return self

    @abstractmethod
    def _fit(self, corpus: WordCorpus, watch: Share) -> None:
        """Learns the tables that ``rows`` reads."""

    def _take(self, words: Sequence[str], counts: Tensor | None = None) -> None:
        self.words, self.counts = tuple(words), counts
        self.index = index_of(self.words)
        self._chance = None

    # ---------------------------------------------------------------- words and vectors

    @property
    @abstractmethod
    def dim(self) -> int:
        """Numbers in a vector."""

    @abstractmethod
    def rows(self, ids: Tensor) -> Tensor:
        """Returns the vectors of words by their ids.

        Args:
            ids: numbers of words, int64 [n].

        Returns:
            float32 [n, dim].
        """

    def __len__(self) -> int:
        return len(self.words)

    def __contains__(self, word: object) -> bool:
        """Whether ``vector(word)`` returns a vector."""
        return word in self.index

    def vector(self, word: str) -> Tensor:
        """Returns the vector of a word.

        Args:
            word: a word as the tokenizer writes it.

        Returns:
            float32 [dim].

        Raises:
            HeadwayError: if the word has no vector.
        """
        return self.rows(torch.tensor([self.id_of(word)]))[0]

    def encode(self, text: str) -> Tensor:
        """Returns the vector of each token of a text.

        Args:
            text: any text.

        Returns:
            float32 [n, dim]; zeros for a token without a vector.
        """
        self._need_fitted()
        return self._vectors(self.tokenizer(text))

    def document(self, text: str) -> Tensor:
        """Returns one vector for a whole text, the mean over its words that have one.

        Args:
            text: any text.

        Returns:
            float32 [dim]; zeros if no word has a vector.
        """
        self._need_fitted()
        known = [token for token in self.tokenizer(text) if token in self]
        return self._vectors(known).mean(0) if known else torch.zeros(self.dim)

    def id_of(self, word: str) -> int:
        """Returns the number of a word in the vocabulary.

        Args:
            word: a word as the tokenizer writes it.

        Raises:
            HeadwayError: if the word is not in the vocabulary.
        """
        self._need_fitted()
        if word not in self.index:
            raise UnknownWordError([word], self)
        return self.index[word]

    def spellings(self, word: str, count: int = 3) -> list[str]:
        """Returns the words of the vocabulary that are spelt most like a word, the most like it first.

        Args:
            word: any word.
            count: the most words to return.
        """
        return nearest_spellings(word, self.words[:MOST_COMPARED], count)

    def _remedy(self, word: str) -> str:
        return "fasttext and bert make vectors of words that they have not seen"

    def _vectors(self, tokens: Sequence[str]) -> Tensor:
        """Returns the vectors of words, [n, dim], with zeros for words without one."""
        if 4 * len(tokens) * self.dim > MOST_BYTES:
            raise HeadwayError(
                f"the vectors of {len(tokens):,} words by {self.dim:,} numbers take more than 8 GiB: "
                "give fewer words, or vectors with fewer numbers"
            )
        out = torch.zeros(len(tokens), self.dim)
        known = [(place, self.index[token]) for place, token in enumerate(tokens) if token in self.index]
        if known:
            places, ids = torch.tensor(known).T
            out[places] = self.rows(ids)
        return out

    def _need_fitted(self) -> None:
        if not self.words:
            raise HeadwayError(f"{type(self).__name__} has no vectors yet: call fit(texts), or load a file")

    # ---------------------------------------------------------------- how words are related

    @abstractmethod
    def cosines(self, vectors: Tensor) -> Tensor:
        """Returns the cosine of each vector with every word of the vocabulary.

        Args:
            vectors: [n, dim].

        Returns:
            [n, words]; 0 for a zero vector.
        """

    def similarity(self, a: str, b: str) -> float:
        """Returns the cosine of two words.

        Args:
            a: a word.
            b: another word.

        Returns:
            −1 … 1; 0 if a vector is zero.
        """
        x, y = self.vector(a).double(), self.vector(b).double()
        size = float(x.norm() * y.norm())
        return float(x @ y) / size if size else 0.0

    def most_similar(self, word: str | Tensor, count: int = 10) -> list[tuple[str, float]]:
        """Returns the words nearest to a word or a vector, by cosine.

        Args:
            word: a word, which is left out of the result, or a vector [dim].
            count: the number of words to return.

        Returns:
            Words and cosines, the nearest first.
        """
        vector, out = (self.vector(word), (word,)) if isinstance(word, str) else (word, ())
        return self._nearest(vector, count, out)

    def neighbours(self, words: Sequence[str], count: int = 10) -> list[Neighbours]:
        """Returns the words nearest to each of several words, with doubts about them.

        ``doubt`` of a result is a sentence if ``margin`` is not above zero or the word occurs fewer than 5 times, and
        otherwise None. ``margin`` compares the largest cosine c₁ and the tenth c₁₀ with those of N unrelated words. The
        directions of unrelated words share the mean m of all words and the direction p of their largest variance λ;
        otherwise they are random. v and all words are scaled to length one:

            margin(v) = max over k = 1, 10 of  cₖ − tₖ,   P(C > tₖ) = λₖ/N,   P(Poisson(λₖ) ≥ k) = 0.025
            (1 + C)/2 has a beta distribution,   E C = m·v,   Var C = (p·v)²·λ + (1 − |m|² − λ)/dim

        If m and λ are 0, C is exactly the cosine of random directions; it never exceeds 1. Among words with random
        directions, at most one in twenty has a margin above zero. The mean and the direction of largest variance are no
        evidence, since they mostly show how often words occur, whatever they mean (Mu and Viswanath 2018). The test is
        strict if words share a direction almost wholly, as with sub-words. It does not notice that GloVe and the counts
        of documents fit accidents of a small text exactly; docs/word-vectors.md says how often it errs.

        Args:
            words: the words. The result of a word without a vector has no neighbours, but the spellings nearest to it.
            count: the number of neighbours to return.

        Returns:
            A result for each word, in their order.

        Raises:
            HeadwayError: if words is one str, or the vectors have no neighbours, as those of ``OneHot``.

        References:
            Mu and Viswanath 2018.
        """
        self._need_fitted()
        if isinstance(words, str):
            raise HeadwayError(f"words is the text {words[:40]!r}: give a list of words")
        return [self._neighbours(word, count) for word in words]

    def _neighbours(self, word: str, count: int) -> Neighbours:
        if word not in self:
            return Neighbours(word, (), spellings=tuple(self.spellings(word)))
        nearest = self.most_similar(word, max(count, TENTH) if count > 0 else count)  # it refuses 0
        if not nearest:  # it is the only word
            return Neighbours(word, ())
        if self._chance is None:
            step = -(-len(self) * self.dim // NUMBERS)
            self._chance = Chance.of(self.rows(torch.arange(0, len(self), step)), len(self))
        margin, chance = self._chance.margin(self.vector(word), torch.tensor([cosine for _, cosine in nearest]))
        number = self.index.get(word)
        seen = None if self.counts is None else 0 if number is None else int(self.counts[number])
        return Neighbours(word, tuple(nearest[:count]), margin, chance, seen)

    _chance: Chance | None = None

    def analogy(
        self, a: str, b: str, c: str, count: int = 10, *, keep_question: bool = False
    ) -> list[tuple[str, float]]:
        """Returns which words are to c as b is to a, the nearest to b − a + c.

        The three vectors are scaled to length one. By default the three words are left out of the result (3CosAdd). The
        nearest word of all is often b itself, so an answer that is found without them proves little.

        Args:
            a: a word, such as "man".
            b: the word that a is related to, such as "king".
            c: the word that is asked about, such as "woman".
            count: the number of words to return.
            keep_question: whether a, b and c may be answers too.

        Returns:
            Words and cosines, the nearest first, such as [("queen", 0.71), …].

        Raises:
            HeadwayError: if a word has no vector.

        References:
            Mikolov et al. 2013.
        """
        self._need_fitted()
        if unknown := [word for word in dict.fromkeys((a, b, c)) if word not in self]:
            raise UnknownWordError(unknown, self)
        units = torch.stack([self.vector(word) for word in (a, b, c)])
        units = torch.nn.functional.normalize(units, dim=1)
        return self._nearest(units[1] - units[0] + units[2], count, () if keep_question else (a, b, c))

    def _nearest(self, vector: Tensor, count: int, out: Sequence[str]) -> list[tuple[str, float]]:
        self._need_fitted()
        if tuple(vector.shape) != (self.dim,):
            raise HeadwayError(f"the vector has shape {tuple(vector.shape)}: give [{self.dim}], or a word")
        if count < 1:
            raise HeadwayError(f"count is {count}: give at least 1")
        cosines = self.cosines(vector[None])[0]
        left_out = {self.index[word] for word in out if word in self.index}
        cosines[list(left_out)] = -torch.inf
        best = cosines.topk(min(count, len(self) - len(left_out)))
        return [(self.words[i], value) for value, i in zip(best.values.tolist(), best.indices.tolist(), strict=True)]

    # ---------------------------------------------------------------- into a Transformer

    def embedding(self, vocabulary: Vocabulary | Sequence[str] | None = None, *, trained: bool = False) -> nn.Embedding:
        """Returns the vectors as the input layer of a Transformer.

        Row i is the vector of the i-th word; one more row, of zeros, stands for any other word.

        Args:
            vocabulary: the words of the rows; those of the vectors if None. A word without a vector gets zeros.
                FastText composes vectors of unseen words from their n-grams.
            trained: whether training changes the rows.

        Returns:
            An embedding of float32 [words + 1, dim].

        Raises:
            HeadwayError: if vocabulary is a text, or the matrix would be larger than 8 GiB.

        Example:
            vocabulary = Vocabulary.of(texts)
            model = Encoder.of_parts(vectors.embedding(vocabulary), stack)
            model(vocabulary.ids("the cat sat")[None])
        """
        self._need_fitted()
        if isinstance(vocabulary, str):
            raise HeadwayError(f"vocabulary is the text {vocabulary[:40]!r}: give a Vocabulary, or a list of words")
        if isinstance(vocabulary, Vocabulary):
            vocabulary = vocabulary.words
        words = self.words if vocabulary is None else tuple(vocabulary)
        matrix = torch.cat([self._vectors(words), torch.zeros(1, self.dim)])
        return nn.Embedding.from_pretrained(matrix, freeze=not trained)

    # ---------------------------------------------------------------- in a file

    @property
    def options(self) -> dict[str, Any]:
        """The arguments of the constructor by name, without the tokenizer."""
        names = [
            name
            for kind in type(self).__mro__
            if "__init__" in vars(kind) and issubclass(kind, Vectors)
            for name, parameter in inspect.signature(kind.__init__).parameters.items()
            if parameter.kind is parameter.KEYWORD_ONLY
        ]
        return {name: getattr(self, name) for name in dict.fromkeys(names) if name != "tokenizer"}

    def save(self, path: str | Path) -> None:
        """Writes everything into one safetensors file, which ``headway.vectors.load`` reads.

        If writing fails, an existing file stays as it was. A tokenizer that is neither Words nor SubWords is left out:
        pass it to ``load`` again.

        Args:
            path: the file.

        Raises:
            HeadwayError: if the class is not one of headway's, or the file cannot be written.
        """
        self._need_fitted()
        if type(self).__module__.partition(".")[0] != __name__.partition(".")[0]:
            raise HeadwayError(
                f"{type(self).__name__} is none of headway's methods: save its words and rows by Pretrained.of"
            )
        tokenizer = described(self.tokenizer)
        saved = _saved.Saved(self.name, self.options, tokenizer, self.words, self.counts, self._tensors())
        _saved.write(saved, Path(path))

    @abstractmethod
    def _tensors(self) -> dict[str, Tensor]:
        """Returns the tensors that a file holds in addition to words, counts and options."""

    @abstractmethod
    def _restore(self, tensors: dict[str, Tensor]) -> None:
        """Restores the tensors of ``_tensors``, after ``words``. Raises HeadwayError if they do not fit."""


class MatrixVectors(Vectors):
    """Base class of vectors that are the rows of one matrix.

    Args:
        min_count: words that occur less often are left out.
        max_words: only this many words are kept, the most frequent; all of them if None.
        tokenizer: cuts a text into tokens; ``Words()`` if None.

    Attributes:
        matrix: float32 [words, dim].
    """

    matrix: Tensor
    _dim: int
    """The dimension asked for, until there is a matrix."""

    @property
    def dim(self) -> int:
        return self._dim

    def rows(self, ids: Tensor) -> Tensor:
        return self.matrix[ids]

    def cosines(self, vectors: Tensor) -> Tensor:
        if self._units is None:
            self._units = torch.nn.functional.normalize(self.matrix, dim=1)
        return torch.nn.functional.normalize(vectors, dim=1) @ self._units.T

    _units: Tensor | None = None

    def _set(self, matrix: Tensor) -> None:
        self.matrix, self._units, self._dim = matrix, None, matrix.shape[1]

    def _tensors(self) -> dict[str, Tensor]:
        return {"vectors": self.matrix}

    def _restore(self, tensors: dict[str, Tensor]) -> None:
        matrix = tensors.get("vectors")
        if matrix is None or matrix.ndim != 2 or matrix.shape[0] != len(self.words):
            shape = None if matrix is None else tuple(matrix.shape)
            raise HeadwayError(
                f"the vectors have shape {shape} and there are {len(self.words)} words: the file is broken"
            )
        self._set(matrix.float())
