"""Planted sentences as annotated texts, which readers of a model's heads take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ...inspection.texts import AnnotatedText, EncodedText, Mention, encode
from ._grammar import Language, Sentence
from ._tokens import MASK, tokenizer, vocabulary, written

NOT_ANNOTATED = -2
PRONOUNS = ("subject pronoun", "object pronoun")


def annotated(language: Language, sentence: Sentence) -> AnnotatedText:
    """Returns a sentence as a text, with its links.

    The governor of a decided word is the noun that decides it, by the name of the planted relation. A pronoun and its
    noun are mentions of one entity too.

    Args:
        language: the language.
        sentence: the sentence.
    """
    text, spans = written(language, sentence.words)
    governors, relations = [NOT_ANNOTATED] * len(spans), [""] * len(spans)
    mentions = []
    for entity, link in enumerate(sentence.links):
        governors[link.word], relations[link.word] = link.noun, link.relation
        if link.relation in PRONOUNS:
            mentions += [Mention(at, at + 1, entity, at) for at in sorted((link.word, link.noun))]
    return AnnotatedText(
        text, tuple(spans), governors=tuple(governors), relations=tuple(relations), mentions=tuple(sorted(mentions))
    )


def masked(language: Language, sentences: Sequence[Sentence]) -> list[EncodedText]:
    """Returns sentences as a model reads them, with their decided words masked, as most are in training.

    Args:
        language: the language.
        sentences: the sentences.
    """
    mask = vocabulary(language)[MASK]
    masked_texts = []
    for text, sentence in zip(
        encode(tokenizer(language), [annotated(language, one) for one in sentences]), sentences, strict=True
    ):
        decided = {link.word for link in sentence.links}
        hidden = [word in decided for word in text.word_of]
        ids = tuple(mask if hide else number for number, hide in zip(text.ids, hidden, strict=True))
        tokens = tuple(MASK if hide else token for token, hide in zip(text.tokens, hidden, strict=True))
        masked_texts.append(replace(text, ids=ids, tokens=tokens))
    return masked_texts
