"""What lesson 15 finds: heads for every planted relation, none of them for one alone, and the article's sentences."""

import pytest

from headway.study.planted import Relation
from lesson_15_four_relations import ACT, EXAMPLES, LANGUAGE, NEIGHBOUR, PRONOUN, RELATIONS

from .conftest import Learn


@pytest.mark.slow
def test_figures(learn: Learn) -> None:
    found = learn("lesson_15_four_relations")
    names = [one.name for one in RELATIONS]
    for name in names:
        assert min(found["found"][name]) > 0.6, name
        assert min(found["accuracy"][name]) > 0.85 > 2 * found["chance"][name], name
        assert min(found["without"][name]) > found["chance"][name] + 0.3, name
    assert found["offset"][NEIGHBOUR.name] == 1
    assert max(of for name, of in found["offset"].items() if name not in (ACT.name, NEIGHBOUR.name)) < 0.1
    for seed in range(3):  # some head finds half of two relations or more
        finds = [sum(found["shares"][name][seed][head] > 0.5 for name in names) for head in range(8)]
        assert max(finds) >= 2
    for one in found["examples"]:
        assert one["said"] == one["words"][one["decided"]]
        assert max(range(len(one["words"])), key=one["weights"].__getitem__) == one["noun"]


@pytest.mark.parametrize("relation", RELATIONS, ids=lambda one: one.name)
def test_words_and_links(relation: Relation) -> None:
    """Sentences have the relation between the words that the language says, and only neighbours a fixed distance."""
    drawn = LANGUAGE.sentences(300, 7, relation=relation.name)
    offsets = set()
    for sentence in drawn:
        link = sentence.link(relation.name)
        assert sentence.words[link.noun] in relation.nouns[sentence.words[link.word]]
        offsets.add(link.offset)
    assert (len(offsets) == 1) == (relation is NEIGHBOUR)


def test_the_article_s_sentences_are_of_the_language() -> None:
    assert {word for sentence in EXAMPLES for word in sentence.words} <= set(LANGUAGE.words)
    for sentence in EXAMPLES:
        (link,) = sentence.links
        relation = LANGUAGE.relation(link.relation)
        assert sentence.words[link.noun] in relation.nouns[sentence.words[link.word]]
    assert EXAMPLES[-1].links[0].relation == PRONOUN.name
