"""Which head and which token a report opens with."""

from __future__ import annotations

import unicodedata
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from ..._common.scripts import is_han

SILENT = ("delimiter", "sink", "broad")
"""Roles that do not depend on the words of a text."""
LETTERS = 4
"""The fewest letters of a word that counts as one of content, in scripts that are written in letters."""


class Link(NamedTuple):
    """A weight with its query and key."""

    query: int
    key: int
    weight: float


class Opening(NamedTuple):
    """What a report opens with: a head, the query that is kept, and its strongest key."""

    head: int
    token: int
    key: int


def opening(links: Sequence[Sequence[Link]], telling: Collection[int], content: Mapping[int, int]) -> Opening:
    """Returns the strongest link between two content words by a head with a role.

    Without such a link it is that of any head, then one from a content word, then any. Of equal ones the first counts.

    Args:
        links: the strongest links of each head, without keys that are the first token or no text.
        telling: the heads with a role that depends on words.
        content: the tokens of content words, with the number of the word of each.
    """
    every = [(head, link) for head, of_head in enumerate(links) for link in of_head]
    of_content = [(head, link) for head, link in every if link.query in content]
    of_content = [(head, link) for head, link in of_content if content[link.query] != content.get(link.key)]
    between = [(head, link) for head, link in of_content if link.key in content]
    told = [(head, link) for head, link in between if head in telling]
    for candidates in (told, between, of_content, every):
        if candidates:
            head, link = max(candidates, key=lambda one: one[1].weight)
            return Opening(head, link.query, link.key)
    return Opening(0, 0, 0)


def is_content(word: str) -> bool:
    """Returns whether a word is likely one of content: four letters or more, or a Chinese character."""
    word = word.strip()
    letters = sum(unicodedata.category(character)[0] in "LM" for character in word)
    return letters == len(word) > 0 and (letters >= LETTERS or is_han(word))
