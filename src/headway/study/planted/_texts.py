"""Planted sentences as annotated texts, which readers of a model's heads take."""

from __future__ import annotations

from ...inspection.texts import AnnotatedText, Mention
from ._grammar import Language, Sentence
from ._tokens import written

NOT_ANNOTATED = -2
PRONOUNS = ("subject pronoun", "object pronoun")


def annotated(language: Language, sentence: Sentence) -> AnnotatedText:
    """Returns a sentence as it is written, with its links.

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
