"""Word2vec: skip-gram and CBOW with negative sampling."""

from __future__ import annotations

import torch

from .._common.extras import need
from .._common.progress import Share
from ._negative_sampling import NegativeSampling, frequencies
from ._text import WordCorpus


class Word2Vec(NegativeSampling):
    """Vectors that distinguish the neighbours of a word from words drawn at random, learned by gensim.

        maximise  Σ over words w and their neighbours c:  ln σ(u_c·v_w) + Σₖ ln σ(−u_k·v_w),   k drawn by count^¾

    v are the vectors, u is a second table that is discarded. Skip-gram predicts each neighbour from the word, as above.
    CBOW predicts the word from the mean of its neighbours; it is faster, and weaker on rare words. A document longer
    than 10,000 words is read in pieces of that length.

    Args:
        dim: the width of a vector.
        window: the largest distance of a neighbour; for every word a distance of 1 … window is drawn.
        architecture: "skip-gram" or "cbow".
        negative: the number of words drawn for each neighbour.
        epochs: the number of passes over the corpus.
        min_count: words that occur less often are left out.
        max_words: only this many words are kept, the most frequent; all of them if None.
        subsample: words whose share of the corpus is larger are left out at random, more often the more frequent they
            are; 0 keeps all.
        learning_rate: the initial rate; it falls linearly to 0.0001.
        seed: the same seed gives the same vectors, 0 … 2³² − 1.
        workers: the number of threads; with more than one, results differ from run to run.
        tokenizer: cuts a text into tokens; ``Words()`` if None.

    Raises:
        HeadwayError: if an option is out of range; ``fit`` raises it if gensim is not installed.

    References:
        Mikolov et al. 2013a, 2013b.
    """

    name = "word2vec"

    def _fit(self, corpus: WordCorpus, watch: Share) -> None:
        model = need("gensim.models.word2vec", "word2vec").Word2Vec(**self._settings())
        model.build_vocab_from_freq(frequencies(corpus))
        self._learn(model, corpus, watch)
        self._set(torch.from_numpy(model.wv.vectors))
