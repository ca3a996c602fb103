"""Heads with given weights, one for each text, and weights between words by the rule of Clark et al., written out."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headway.inspection.texts import AnnotatedText, EncodedText

Head = Callable[[EncodedText], Tensor]
"""The weights of a head on a text before they are normalised, [n, n]."""


class Given(nn.Module):
    """A layer whose heads have given weights, in a causal model those of the tokens up to the query's."""

    def __init__(self, texts: Sequence[EncodedText], *heads: Head, causal: bool = False) -> None:
        super().__init__()
        self.texts, self.heads, self.causal = {text.ids: text for text in texts}, heads, causal

    def forward(self, ids: Tensor) -> Tensor:
        shares = [[head(self.texts[tuple(row)]) for head in self.heads] for row in ids.tolist()]
        bias = torch.stack([torch.stack(row) for row in shares]).double().log().clamp(min=-1e4)  # −∞ would hide keys
        if self.causal:
            bias = bias.masked_fill(torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool).triu(1), -torch.inf)
        q = torch.zeros(len(ids), len(self.heads), ids.shape[1], 4, dtype=torch.float64)
        return F.scaled_dot_product_attention(q, q, q, attn_mask=bias)


def weights(head: Head, text: EncodedText, causal: bool = False) -> Tensor:
    shares = head(text).double()
    shares = shares.tril() if causal else shares
    return shares / shares.sum(-1, keepdim=True)


def between_words(a: Tensor, text: EncodedText) -> list[list[float]]:
    """Weights between words of those between tokens: the mean over the tokens of one of the sum over the other's."""
    of = a.tolist()
    tokens = [[i for i, word in enumerate(text.word_of) if word == w] for w in range(len(text.text))]
    return [[sum(of[i][j] for i in mine for j in others) / max(len(mine), 1) for others in tokens] for mine in tokens]


def chance(text: EncodedText) -> Tensor:
    """Weights of chance, large on few tokens."""
    source = torch.Generator().manual_seed(sum(text.ids))
    return torch.randn(len(text), len(text), generator=source).mul(3).exp()


def to_words(links: Callable[[AnnotatedText], Sequence[tuple[int, int]]]) -> Head:
    """A head that attends from words to words, from all tokens to all tokens, and else by chance."""

    def head(text: EncodedText) -> Tensor:
        linked = torch.zeros(len(text.text) + 1, len(text.text) + 1)  # the last is for tokens of no word
        for a, b in links(text.text):
            linked[a, b] = 1e6
        word = torch.tensor(text.word_of)
        return chance(text) + linked[word[:, None], word[None, :]]

    return head


def encoded(text: AnnotatedText, source: torch.Generator, vocabulary: int = 1000) -> EncodedText:
    """A text in random tokens: [CLS], each word in one to three tokens, [SEP]."""
    word_of = [-1]
    for word in range(len(text)):
        word_of += [word] * int(torch.randint(1, 4, (1,), generator=source))
    word_of += [-1]
    ids = torch.randint(2, vocabulary, (len(word_of),), generator=source).tolist()
    return EncodedText((0, *ids[1:-1], 1), tuple(map(str, ids)), tuple(word_of), text)


def spans(count: int) -> tuple[tuple[int, int], ...]:
    """The places of words of one letter, with spaces between them."""
    return tuple((2 * i, 2 * i + 1) for i in range(count))
