"""Which head and which token a report opens with."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from ..._common.scripts import is_han
from ..._common.words import is_alphabetic, spelling

SILENT = ("positional", "sink", "delimiter", "block", "local", "broad")
"""Roles that say where a head looks, or how widely, whatever the words are."""
LETTERS = 4
"""The fewest letters of a word that counts as one of content, in scripts that are written in letters."""
FUNCTION_WORDS = frozenset(
    """
    about above across after against ahead along although always amid among amongst another anybody anyone anything
    around because been before behind being below beneath beside besides between beyond both cannot could despite does
    doing done doth down during each either else even ever every everybody everyone everything except from hadst hast
    hath have having hence hers herself himself however into itself just less like many might mine more most much must
    myself near neither never nobody none nothing onto only other others ought ours ourselves over perhaps quite rather
    same shall shalt should since some somebody someone something still such than that thee their theirs them
    themselves then there therefore these they thine this those thou though through throughout thus till together
    toward towards under unless unlike until unto upon very were what whatever when whence whenever where whereas
    wherever whether which whichever while whilst whither whoever whom whose will with within without would your yours
    yourself yourselves 如果
    """.split()  # noqa: SIM905 (as a list of strings it would be four times as long)
)
"""Words of four letters or more, or of two characters, that stand for relations: no words of content."""
FUNCTION_CHARACTERS = frozenset(
    "的地得了着著过過是在有和与與及或而但且因为為所以如若虽雖然则則不没沒无無非也都就还還又再很太最更极極这這那哪谁誰何什么麼我你您他她它们們"
    "自己咱其此彼之乎者矣焉于於被把将將对對从從由向往到至给給让讓使令比跟同吗嗎呢吧啊啦嘛呀哦会會能可要应應该該须須每某各些个個只曾已正"
)
"""Chinese characters that make up other such words."""


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


def opening(
    links: Sequence[Sequence[Link]],
    telling: Collection[int],
    silent: Collection[int],
    content: Mapping[int, int],
    whole: Collection[int],
) -> Opening:
    """Returns the strongest link between two content words by a head whose role depends on words.

    A link between tokens that are whole words comes before one between parts of words, then one from a content word,
    then any. Of each kind, one by a head with a role that depends on words comes first, then one by a head of which
    nothing is known, then the others: a head that looks at the previous token links any two words. Of equal ones the
    first counts.

    Args:
        links: the strongest links of each head, without keys that are the first token or no text.
        telling: the heads with a role that depends on words.
        silent: the heads that have only other roles.
        content: the tokens of content words, with the number of the word of each.
        whole: those of them that are a word by themselves.
    """

    def rank(one: tuple[int, Link]) -> tuple[int, bool, bool, float]:
        head, (query, key, weight) = one
        if content.get(query) == content.get(key) or query not in content:
            kind = 0
        elif key not in content:
            kind = 1
        else:
            kind = 3 if query in whole and key in whole else 2
        return kind, head in telling, head not in silent, weight

    every = [(head, link) for head, of_head in enumerate(links) for link in of_head]
    head, link = max(every, key=rank, default=(0, Link(0, 0, 0.0)))
    return Opening(head, link.query, link.key)


def is_content(word: str) -> bool:
    """Returns whether a word is likely one of content.

    It has four letters or more, or Chinese characters, and is none of the words that stand for relations.
    """
    word = spelling(word.strip(), lower=True)
    if not is_alphabetic(word):
        return False
    if is_han(word):
        return word not in FUNCTION_WORDS and not FUNCTION_CHARACTERS.issuperset(word)
    return len(word) >= LETTERS and word not in FUNCTION_WORDS
