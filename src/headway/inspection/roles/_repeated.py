"""Repeated random tokens: only the first copies predict the later ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch

from ..texts import AnnotatedText, EncodedText

LENGTH, COPIES, TEXTS = 25, 4, 40
DROPPED = 0.04
"""The share of the ids that are left out, of the rarest and of the most frequent ones each."""


def distinct_ids(texts: Sequence[EncodedText]) -> list[int]:
    """The ids of words' tokens in the texts without the rarest and the most frequent ones, by rising frequency."""
    counts = Counter(number for text in texts for number, word in zip(text.ids, text.word_of, strict=True) if word >= 0)
    ids = sorted(counts, key=lambda number: (counts[number], number))
    end = int(len(ids) * DROPPED)
    return ids[end : len(ids) - end]


def repeated(texts: Sequence[EncodedText], longest: int | None, generator: torch.Generator) -> list[EncodedText]:
    """Returns texts of ``LENGTH`` different random tokens of the given texts, ``COPIES`` times in a row.

    They begin and end with the tokens that the model adds to the given texts. For a model that reads fewer tokens there
    are fewer copies, at least two.
    """
    ids, first = distinct_ids(texts), texts[0]
    words = [i for i, word in enumerate(first.word_of) if word >= 0]
    before, after = first.ids[: words[0]], first.ids[words[-1] + 1 :]
    fit = COPIES if longest is None else (longest - len(before) - len(after)) // LENGTH
    encoded = []
    for _ in range(TEXTS):
        drawn = [ids[i] for i in torch.randperm(len(ids), generator=generator)[:LENGTH].tolist()] * max(
            2, min(COPIES, fit)
        )
        number = (*before, *drawn, *after)
        word_of = (*(-1,) * len(before), *range(len(drawn)), *(-1,) * len(after))
        written = " ".join(map(str, drawn))
        starts = [0]
        for one in drawn:
            starts.append(starts[-1] + len(str(one)) + 1)
        spans = tuple((start, start + len(str(one))) for start, one in zip(starts, drawn, strict=False))
        said = AnnotatedText(written, spans, name="random tokens, repeated")
        encoded.append(EncodedText(number, tuple(map(str, number)), word_of, said))
    return encoded
