"""What lesson 15 finds: heads for every planted relation, none of them for one alone, and the article's sentences."""

import pytest

from headway.study.planted import ARTICLE, Relation

from .conftest import Learn

ACT, _, _, NEIGHBOUR, PRONOUN = ARTICLE.relations


@pytest.mark.slow
def test_figures(learn: Learn) -> None:
    found = learn("lesson_15_four_relations", "--sentences", "50")
    names = [one.name for one in ARTICLE.relations]
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
        assert sum(one["weights"]) == pytest.approx(1, abs=1e-5)
        assert one["said"] == one["words"][one["decided"]]
        assert one["weights"][one["noun"]] > (0.5 if one["relation"] == NEIGHBOUR.name else 0.8)  # [CLS] has weight too


@pytest.mark.parametrize("relation", ARTICLE.relations, ids=lambda one: one.name)
def test_words_and_links(relation: Relation) -> None:
    """Sentences have the relation between the words that the language says, and only neighbours a fixed distance."""
    drawn = ARTICLE.sentences(300, 7, relation=relation.name)
    offsets = set()
    for sentence in drawn:
        link = sentence.link(relation.name)
        assert sentence.words[link.noun] in relation.nouns[sentence.words[link.word]]
        offsets.add(link.offset)
    assert (len(offsets) == 1) == (relation is NEIGHBOUR)


def test_the_article_s_sentences_are_of_the_language() -> None:
    assert {word for sentence in ARTICLE.examples for word in sentence.words} <= set(ARTICLE.words)
    for sentence in ARTICLE.examples:
        (link,) = sentence.links
        relation = ARTICLE.relation(link.relation)
        assert sentence.words[link.noun] in relation.nouns[sentence.words[link.word]]
    assert ARTICLE.examples[-1].links[0].relation == PRONOUN.name
