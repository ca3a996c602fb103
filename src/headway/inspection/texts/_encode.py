"""Encodes texts for a model, and finds the word of each token."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any, NamedTuple

from ..._common.words import Span
from ...errors import HeadwayError, need_positive
from ._text import AnnotatedText, EncodedText
from .plain import plain_text

TOO_LONG = ("raise", "leave out")


def encode(
    tokenizer: Any,
    texts: Sequence[str | AnnotatedText],
    *,
    longest: int | None = None,
    too_long: str = "raise",
) -> list[EncodedText]:
    """Encodes texts as a model reads them, and finds the word of each token.

        texts = encode(hw.checkpoints.tokenizer(folder), read_conllu("en_pud-ud-test.conllu"), longest=512)

    A text is encoded unchanged. A token belongs to the word with which it shares most characters, or to the
    first of several such words. A word that gets no token of its own, because a longer token covers it, has no tokens:
    roles leave it out and count it.

    Args:
        tokenizer: a ``tokenizers.Tokenizer``, such as ``headway.checkpoints.tokenizer`` returns, or a fast tokenizer of
            transformers. Special tokens are added if it adds them. Padding that it adds is removed.
        texts: the texts. Strings are read by ``plain_text``.
        longest: the most tokens that the model reads. Default: any number.
        too_long: what to do with a longer text: "raise" an error, or "leave out" the text. The result then has fewer
            entries than ``texts``.

    Returns:
        What the model reads of each text.

    Raises:
        HeadwayError: if the tokenizer gives no offsets or cuts a text; if a text has no words, if none of its words has
            a token, or if it is longer than ``longest`` and too_long is "raise"; and if an argument has another value.
    """
    if isinstance(texts, (str, AnnotatedText)):
        raise HeadwayError("texts is one text: give a list of texts")
    if too_long not in TOO_LONG:
        raise HeadwayError(f"too_long is {too_long!r}: give {' or '.join(map(repr, TOO_LONG))}")
    if longest is not None:
        need_positive(longest=longest)
    encoded = []
    for number, one in enumerate(texts):
        text = one if isinstance(one, AnnotatedText) else _plain(one, number)
        if not any(start < stop for start, stop in text.words):
            raise HeadwayError(f"{text.called} has no words: leave it out")
        pieces = _pieces(tokenizer, text)
        if longest is None or len(pieces) <= longest:
            encoded.append(_aligned(pieces, text))
        elif too_long == "raise":
            raise HeadwayError(
                f"{text.called} has {len(pieces)} tokens and the model reads {longest}: shorten it, or give "
                'too_long="leave out"'
            )
    return encoded


def _plain(text: str, number: int) -> AnnotatedText:
    if not isinstance(text, str):
        raise HeadwayError(f"texts holds {type(text).__name__} at {number}: give strings or AnnotatedText")
    return plain_text(text)


class _Piece(NamedTuple):
    """A token, and the characters that it stands for: none, as (0, 0), for one that the tokenizer adds."""

    id: int
    token: str
    span: Span


def _pieces(tokenizer: Any, text: AnnotatedText) -> list[_Piece]:
    """The tokens of a text, without padding. Raises HeadwayError if the tokenizer does not say where they are."""
    if hasattr(tokenizer, "backend_tokenizer") or hasattr(tokenizer, "convert_ids_to_tokens"):  # of transformers
        if not getattr(tokenizer, "is_fast", False):
            raise HeadwayError(
                f"{type(tokenizer).__name__} does not say which characters a token stands for: give a fast tokenizer, "
                "such as AutoTokenizer.from_pretrained(…, use_fast=True)"
            )
        # without these arguments, settings of an earlier call would stay
        encoded = tokenizer(text.text, truncation=False, padding=False, verbose=False).encodings[0]
    elif callable(getattr(tokenizer, "encode", None)):
        encoded = tokenizer.encode(text.text)
    else:
        raise HeadwayError(f"tokenizer is {type(tokenizer).__name__}: give a tokenizers.Tokenizer, or a fast one")
    if not all(hasattr(encoded, name) for name in ("ids", "tokens", "offsets")):
        raise HeadwayError(
            f"{type(tokenizer).__name__} does not say which characters a token stands for: give a "
            "tokenizers.Tokenizer, or a fast tokenizer of transformers"
        )
    if encoded.overflowing:
        raise HeadwayError(
            f"{type(tokenizer).__name__} cuts {text.called} after {len(encoded.ids)} tokens: call no_truncation() on it"
        )
    rows = zip(encoded.ids, encoded.tokens, encoded.offsets, encoded.attention_mask, strict=True)
    pieces = [_Piece(id, token, span) for id, token, span, real in rows if real]
    if any(not 0 <= piece.span[0] <= piece.span[1] <= len(text.text) for piece in pieces):
        raise HeadwayError(
            f"{type(tokenizer).__name__} gives tokens of {text.called} beyond its {len(text.text)} characters: its "
            "offsets are not those of the text"
        )
    return pieces


def _aligned(pieces: list[_Piece], text: AnnotatedText) -> EncodedText:
    starts = [start for start, _ in text.words]
    word_of = tuple(_word_of(piece.span, starts, text) for piece in pieces)
    if max(word_of, default=-1) < 0:
        raise HeadwayError(
            f"{text.called} has no word that has a token: the tokenizer's offsets are not those of its words"
        )
    return EncodedText(
        tuple(piece.id for piece in pieces),
        tuple(_read(piece, text) for piece in pieces),
        word_of,
        text,
        tuple(piece.span for piece in pieces),
    )


def _word_of(span: Span, starts: list[int], text: AnnotatedText) -> int:
    """The word that shares most characters with a token, the first of several; −1 for none."""
    best, most = -1, 0
    for word in range(max(bisect_right(starts, span[0]) - 1, 0), len(starts)):
        start, stop = text.words[word]
        if start >= span[1]:
            break
        shared = min(stop, span[1]) - max(start, span[0])
        if shared > most:
            best, most = word, shared
    return best


def _read(piece: _Piece, text: AnnotatedText) -> str:
    """A token as written in the text, or the tokenizer's name for it if it is not in the text or is white space."""
    return text.text[slice(*piece.span)].strip() or piece.token
