"""A tokenizer whose tokens are the words of a language."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..._common.extras import need
from ._grammar import Language, Sentence

if TYPE_CHECKING:
    from tokenizers import Tokenizer

PAD, UNK, CLS, MASK = SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[MASK]")


def vocabulary(language: Language) -> dict[str, int]:
    """Returns the id of each token: the special ones, then the words of a language."""
    return {token: number for number, token in enumerate((*SPECIAL, *language.words))}


def tokenizer(language: Language) -> Tokenizer:
    """Makes a tokenizer of whole words, which puts [CLS] before a text; other words are [UNK].

    English is split at spaces and punctuation and read in lower case. In Chinese, the longest word of the vocabulary is
    taken at each place, and a character with which none begins is [UNK].

    Args:
        language: the language.

    Returns:
        A Tokenizer of the package ``tokenizers``.

    Raises:
        HeadwayError: if the package is not installed.
    """
    tokenizers = need("tokenizers", "reading a text", "checkpoints")
    ids = vocabulary(language)
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(ids, unk_token=UNK))
    if language.spaced:
        made.normalizer = tokenizers.normalizers.Lowercase()
        made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    else:
        longest_first = sorted(language.words, key=len, reverse=True)
        one_word = tokenizers.Regex("|".join([*longest_first, r"\S"]))
        cut = tokenizers.pre_tokenizers
        made.pre_tokenizer = cut.Sequence([cut.WhitespaceSplit(), cut.Split(one_word, behavior="isolated")])
    made.post_processor = tokenizers.processors.TemplateProcessing(
        single=f"{CLS} $A", pair=f"{CLS} $A $B", special_tokens=[(CLS, ids[CLS])]
    )
    made.add_special_tokens(list(SPECIAL))
    return made


def written(language: Language, words: Sequence[str]) -> tuple[str, list[tuple[int, int]]]:
    """Writes words as a text.

    Returns:
        The text, and where each word starts and stops in it.
    """
    text, spans = "", []
    for word in words:
        text += " " if text and language.spaced and word[0].isalnum() else ""
        shown = word.capitalize() if language.spaced and not text else word
        spans.append((len(text), len(text) + len(shown)))
        text += shown
    return text, spans


def encoded(language: Language, sentences: Sequence[Sentence]) -> list[list[int]]:
    """Returns the tokenizer's ids of each sentence, [CLS] first."""
    ids = vocabulary(language)
    return [[ids[CLS], *(ids[word] for word in sentence.words)] for sentence in sentences]


def padded(rows: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """Returns rows of ids as one tensor, padded on the right with [PAD], which is 0, and their lengths.

    The ids are int64 [rows, longest], and the lengths int64 [rows].
    """
    ids = torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True)
    return ids, torch.tensor([len(row) for row in rows])
