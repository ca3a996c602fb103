"""FastText: word2vec with n-grams of letters, which give unseen words vectors too."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .._common.extras import need
from .._common.progress import Share
from ..errors import HeadwayError
from ._fasttext_bin import Model
from ._negative_sampling import NegativeSampling, frequencies
from ._text import WordCorpus, has_short_words

AT_ONCE = 1 << 16
"""The words whose n-grams are computed at once, which takes about 100 MB."""
_UNFIT = re.compile("[\0\ud800-\udfff]")
SHORT_WORDS, LONG_WORDS = 1, 3
"""The smallest n-grams of Chinese and Japanese, and of other languages."""
END_OF_SENTENCE = "</s>"
"""fastText's special word, which has no n-grams."""


class FastText(NegativeSampling):
    """Word2vec whose words are composed of their n-grams of letters, learned by gensim.

        v(w) = (own_w + Σ_{g ∈ G(w)} ngram_{hash(g) mod bucket}) / (1 + |G(w)|)      for a word of the vocabulary
        v(w) =  Σ_{g ∈ G(w)} ngram_{hash(g) mod bucket} / |G(w)|                      for any other word

    G(w) are the runs of min_n … max_n letters of "<w>". The hash is fastText's: 32-bit FNV-1a over UTF-8, with bytes
    above 127 sign-extended. An unseen word has a vector if one of its n-grams occurred in training: ``word in vectors``
    is then true, and ``vector``, ``encode``, ``document``, ``embedding`` and ``analogy`` take it. A word that is not
    UTF-8 has to be decoded with errors="surrogateescape".

    Args:
        min_n: the smallest number of letters of an n-gram, "<" and ">" included. If None, 1 if at least half of the
            words of the texts are Chinese or Japanese, and otherwise 3, fastText's own default. With 3, all n-grams of
            a Chinese word of two characters contain both characters, so an unseen word shares none. The attribute has
            the number in use.
        max_n: the largest; 0 for no n-grams.
        bucket: n-grams whose hashes agree modulo this share a row. Only the rows that n-grams of the vocabulary use are
            kept and saved, about 10 for each word. The other rows are never trained: they count as zeros here, where
            fastText and gensim keep their initial random numbers.
        **shared: the options of ``Word2Vec``, with the same defaults.

    Attributes:
        matrix: float32 [words, dim], the vectors v(w) of the vocabulary.
        ngrams: float32 [rows, dim], the rows of the n-grams.
        buckets: int64 [rows], ascending: the bucket of each of these rows.

    Raises:
        HeadwayError: if an option is out of range; ``fit`` raises it if gensim is not installed.

    References:
        Bojanowski et al. 2017.
    """

    name = "fasttext"

    ngrams: Tensor
    buckets: Tensor
    min_n: int

    def __init__(self, *, min_n: int | None = None, max_n: int = 6, bucket: int = 2_000_000, **shared: Any) -> None:
        self._min_n, self.max_n = min_n, max_n
        super().__init__(**shared)
        if (min_n or 0) < 0 or max_n < 0 or 0 < max_n < (min_n or 0):
            raise HeadwayError(f"min_n is {min_n} and max_n {max_n}: give 0 ≤ min_n ≤ max_n, or max_n = 0 for none")
        if not 0 <= bucket < 2**31:
            raise HeadwayError(f"bucket is {bucket}: give 0 … {2**31 - 1}")
        self.bucket = bucket

    def _take(self, words: Sequence[str], counts: Tensor | None = None) -> None:
        super()._take(words, counts)
        by_script = min(self.max_n, SHORT_WORDS if has_short_words(self.words, counts) else LONG_WORDS)
        self.min_n = by_script if self._min_n is None else self._min_n

    @classmethod
    def of(
        cls,
        words: Sequence[str],
        own: Tensor,
        ngrams: Tensor,
        *,
        counts: Tensor | None = None,
        buckets: Tensor | None = None,
        bucket: int | None = None,
        **options: Any,
    ) -> FastText:
        """Composes the vectors of the rows of words and of n-grams.

        Args:
            words: the vocabulary.
            own: the rows of the words, float32 [words, dim].
            ngrams: the rows of the n-grams, float32 [rows, dim].
            counts: how often each word occurred, int64 [words], if known.
            buckets: the bucket of each row of ``ngrams``, int64 [rows], ascending; 0 … rows − 1 if None.
            bucket: the number of buckets; that of rows if None.
            **options: options of the constructor, such as min_n, max_n and window.

        Raises:
            HeadwayError: if sizes do not agree.
        """
        if own.ndim != 2 or ngrams.ndim != 2 or len(own) != len(words) or own.shape[1] != ngrams.shape[1]:
            raise HeadwayError(
                f"{len(words)} words have rows {tuple(own.shape)} and n-grams {tuple(ngrams.shape)}: "
                "give [words, dim] and [rows, dim]"
            )
        made = cls(dim=own.shape[1], bucket=len(ngrams) if bucket is None else bucket, **options)
        made._take(words, counts)
        made._hold(ngrams.float(), torch.arange(len(ngrams)) if buckets is None else buckets)
        made._set(made._full(own.float()))
        return made

    # ---------------------------------------------------------------- from texts

    def _fit(self, corpus: WordCorpus, watch: Share) -> None:
        library = need("gensim.models.fasttext", "fasttext")
        numpy = need("numpy", "fasttext")
        numbers, used = self._found(corpus.words)
        buckets, rows = used.unique(return_inverse=True)
        # created without buckets, and then given only the rows in use, since gensim would allocate all buckets
        model = library.FastText(bucket=0, **self._settings())
        model.build_vocab_from_freq(frequencies(corpus))
        start = numpy.random.default_rng(self.seed + 1).random((len(buckets), self.dim), dtype=numpy.float32)
        model.wv.vectors_ngrams = (2 * start - 1) / self.dim
        ends = numbers.bincount(minlength=len(corpus.words)).cumsum(0)
        model.wv.buckets_word = numpy.split(rows.numpy().astype(numpy.uint32), ends[:-1].numpy())
        model.wv.bucket = len(buckets)
        self._learn(model, corpus, watch)
        self._hold(torch.from_numpy(model.wv.vectors_ngrams), buckets)
        self._set(self._full(torch.from_numpy(model.wv.vectors_vocab)))

    # ---------------------------------------------------------------- n-grams

    def own(self) -> Tensor:
        """Returns the rows of the words themselves, without their n-grams.

        Returns:
            float32 [words, dim].
        """
        out = torch.empty_like(self.matrix)
        for start in range(0, len(self), AT_ONCE):
            part = slice(start, start + AT_ONCE)
            sums, many = self._sums(self.words[part])
            out[part] = self.matrix[part] * (many + 1)[:, None] - sums
        return out

    def _full(self, own: Tensor) -> Tensor:
        """Returns the vectors of the words that were seen, from their own rows."""
        out = torch.empty_like(own)
        for start in range(0, len(self), AT_ONCE):
            part = slice(start, start + AT_ONCE)
            sums, many = self._sums(self.words[part])
            out[part] = (own[part] + sums) / (many + 1)[:, None]
        return out

    def _sums(self, words: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Returns the sum of the rows of each word's n-grams, float32 [n, dim], and their number, int64 [n]."""
        numbers, buckets = self._found(words)
        many = numbers.bincount(minlength=len(words))
        places, known = self._places(buckets)
        ends = numbers[known].bincount(minlength=len(words)).cumsum(0)
        starts = torch.cat([ends.new_zeros(1), ends[:-1]])
        if not known.any():
            return torch.zeros(len(words), self.ngrams.shape[1]), many
        return F.embedding_bag(places[known], self.ngrams, starts, mode="sum"), many

    def _found(self, words: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Returns the number of the word and the bucket of each n-gram, int64 [k] both, word by word."""
        if not self.bucket:
            return torch.zeros(0, dtype=torch.int64), torch.zeros(0, dtype=torch.int64)
        numbers, hashes = ngrams_of(words, self.min_n, self.max_n)
        return numbers, hashes % self.bucket

    def _places(self, buckets: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the rows of buckets, int64 [k], and whether they exist, bool [k]."""
        if not len(self.buckets):
            return torch.zeros_like(buckets), torch.zeros_like(buckets, dtype=torch.bool)
        places = torch.searchsorted(self.buckets, buckets).clamp(max=len(self.buckets) - 1)
        return places, self.buckets[places] == buckets

    def __contains__(self, word: object) -> bool:
        """Whether the word is in the vocabulary or has an n-gram that was trained."""
        if super().__contains__(word):
            return True
        return bool(self.words) and isinstance(word, str) and bool(self._places(self._found([word])[1])[1].any())

    def vector(self, word: str) -> Tensor:
        """Returns the vector of a word, seen or not.

        Args:
            word: any word.

        Returns:
            float32 [dim].

        Raises:
            HeadwayError: if the word was not seen and none of its n-grams was.
        """
        if word not in self:
            self.id_of(word)  # raises with the reason
        return self._vectors([word])[0]

    def document(self, text: str) -> Tensor:
        rows = self.encode(text)
        rows = rows[rows.any(1)]
        return rows.mean(0) if len(rows) else torch.zeros(self.dim)

    def _vectors(self, tokens: Sequence[str]) -> Tensor:
        out = super()._vectors(tokens)
        places = [place for place, token in enumerate(tokens) if token not in self.index]
        if places:
            sums, many = self._sums([tokens[place] for place in places])
            out[places] = sums / many.clamp(min=1)[:, None]
        return out

    def _remedy(self, word: str) -> str:
        return f"none of its n-grams of {self.min_n} … {self.max_n} letters was seen either; bert reads any text"

    # ---------------------------------------------------------------- in a file

    @classmethod
    def _of_model(cls, model: Model) -> FastText:
        """Returns the vectors of a file of the fastText program."""
        # fastText hashes the bytes of a word. Invalid UTF-8 is kept as surrogates here; these cannot be printed, so the
        # word gets another spelling afterwards, as in gensim.
        hashed = [word.decode(errors="surrogateescape") for word in model.words]
        made = cls.of(
            hashed, model.own, model.ngrams, counts=model.counts, buckets=model.buckets, bucket=model.bucket,
            **model.options,
        )  # fmt: skip
        made._take([word.decode(errors="backslashreplace") for word in model.words], made.counts)
        return made

    def _as_model(self) -> Model:
        """Returns the content of such a file; raises HeadwayError for a word that it cannot hold."""
        for word in self.words:
            if not word or _UNFIT.search(word):
                raise HeadwayError(
                    f"the word {word!r} is empty, is not UTF-8 or holds a zero, which ends "
                    "a word in this format: save(path) keeps it"
                )
        names = ("window", "epochs", "min_count", "architecture", "negative", "subsample", "min_n", "max_n")
        counts = torch.ones(len(self), dtype=torch.int64) if self.counts is None else self.counts
        return Model(
            [word.encode() for word in self.words], counts, self.own(), self.ngrams, self.buckets, self.bucket,
            {name: getattr(self, name) for name in names},
        )  # fmt: skip

    def _hold(self, ngrams: Tensor, buckets: Tensor) -> None:
        if tuple(buckets.shape) != (len(ngrams),) or buckets.dtype != torch.int64:
            raise HeadwayError(
                f"{len(ngrams)} rows of n-grams have buckets {tuple(buckets.shape)} {buckets.dtype}: "
                "give int64, one for each row"
            )
        if len(buckets) and not (buckets[0] >= 0 and buckets[-1] < self.bucket and (buckets.diff() > 0).all()):
            raise HeadwayError(f"the buckets of the n-grams are not ascending in 0 … {self.bucket - 1}")
        self.ngrams, self.buckets = ngrams, buckets

    def _tensors(self) -> dict[str, Tensor]:
        return super()._tensors() | {"ngrams": self.ngrams, "buckets": self.buckets}

    def _restore(self, tensors: dict[str, Tensor]) -> None:
        super()._restore(tensors)
        ngrams, buckets = tensors.get("ngrams"), tensors.get("buckets")
        if ngrams is None or buckets is None or ngrams.ndim != 2 or ngrams.shape[1] != self.dim:
            shape = None if ngrams is None else tuple(ngrams.shape)
            raise HeadwayError(f"the n-grams have shape {shape} beside vectors of {self.dim}: the file is broken")
        self._hold(ngrams.float(), buckets)


# ---------------------------------------------------------------- fastText's hash


def ngrams_of(words: Sequence[str], min_n: int, max_n: int) -> tuple[Tensor, Tensor]:
    """The number of its word and the hash of every n-gram of "<word>", word by word, int64 [k] both.

    It computes all at once: from each letter of each word a hash continues byte by byte, and is kept where a letter
    ends.
    """
    octets = [b"" if word == END_OF_SENTENCE else _octets(f"<{word}>") for word in words]
    joined = b"".join(octets)
    if not joined or not max_n:
        return torch.zeros(0, dtype=torch.int64), torch.zeros(0, dtype=torch.int64)
    signed = torch.frombuffer(bytearray(joined), dtype=torch.int8).long()
    values, inside = signed & 0xFFFFFFFF, (signed & 0xC0) == 0x80
    lengths = torch.tensor([len(one) for one in octets])
    ends = lengths.cumsum(0)
    number = torch.arange(len(words)).repeat_interleave(lengths)

    here = (~inside).nonzero()[:, 0]  # the index of the next byte
    word, first = number[here], here == (ends - lengths)[number[here]]
    hashed, letters = torch.full_like(here, 2166136261), torch.zeros_like(here)
    kept = []
    while len(here):
        hashed = ((hashed ^ values[here]) * 16777619) & 0xFFFFFFFF
        here = here + 1
        at_end = here == ends[word]
        whole = at_end | ~inside[here.clamp(max=len(joined) - 1)]
        letters = letters + whole
        keep = whole & (letters >= min_n) & ~((letters == 1) & (first | at_end))  # a single "<" or ">" is not an n-gram
        kept.append((word[keep], hashed[keep]))
        on = ~at_end & ~(whole & (letters == max_n))
        here, word, first, hashed, letters = here[on], word[on], first[on], hashed[on], letters[on]
    words_of, hashes = (torch.cat(parts) for parts in zip(*kept, strict=True))
    order = words_of.argsort(stable=True)
    return words_of[order], hashes[order]


def _octets(text: str) -> bytes:
    try:
        return text.encode(errors="surrogateescape")
    except UnicodeEncodeError:  # a lone surrogate has no UTF-8
        return text.encode(errors="surrogatepass")
