"""Word2vec: a word is what predicts the words around it."""

from __future__ import annotations

import torch

from ..extras import need
from ._negative_sampling import NegativeSampling, frequencies
from ._text import Watch, WordCorpus


class Word2Vec(NegativeSampling):
    """Vectors that tell the words that stand near a word from words drawn at random; learned by gensim.

        maximise  Σ over words w and their neighbours c:  ln σ(u_c·v_w) + Σₖ ln σ(−u_k·v_w),   k drawn by count^¾

    v are the vectors, u a second table that is dropped. Skip-gram predicts each neighbour from the word, as above;
    CBOW predicts the word from the mean of its neighbours, faster, and weaker on rare words.

    dim            numbers in a vector
    window         how far a neighbour may stand away; for every word a distance of 1 … window is drawn
    architecture   "skip-gram" or "cbow"
    negative       words drawn against each that was there
    epochs         times that the corpus is read
    min_count      words that occur less often are left out; max_words: as many as this are kept
    subsample      words more frequent than this share of all are left out at random, the more frequent the more often;
                   0 keeps all
    learning_rate  at the start; it falls to 0.0001 in a straight line
    seed           the same seed gives the same vectors, 0 … 2³² − 1
    workers        threads; more than one are faster, and no seed repeats their result

    A document longer than 10,000 words is read in pieces of that length. Raises HeadwayError for options out of range,
    and where gensim is not installed. Cite: Mikolov et al. 2013a, 2013b.
    """

    name = "word2vec"

    def _fit(self, corpus: WordCorpus, watch: Watch) -> None:
        model = need("gensim.models.word2vec", "word2vec").Word2Vec(**self._settings())
        model.build_vocab_from_freq(frequencies(corpus))
        self._learn(model, corpus, watch)
        self._set(torch.from_numpy(model.wv.vectors))
