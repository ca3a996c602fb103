"""The sentences: links, what is held out, and that nothing but the linked noun tells the decided word."""

import pytest

from headway.errors import HeadwayError
from headway.study.planted import LANGUAGES, SPLITS, Language, Link, Sentence, annotated
from headway.study.planted._baselines import by_bag, by_offset, chance, linked_by_offset
from headway.study.planted._grammar import FARTHEST, FEW

RELATIONS = ["verb", "modifier", "association", "subject pronoun", "object pronoun"]
languages = pytest.mark.parametrize("language", LANGUAGES.values(), ids=LANGUAGES)


def cases(language: Language, split: str, relation: str) -> set[tuple[str, int]]:
    """The noun and the template of each link in some sentences."""
    links = [(one, one.link(relation)) for one in language.sentences(600, 0, split, relation)]
    return {(one.words[link.noun], link.template) for one, link in links}


@pytest.mark.one_in(10)
@languages
@pytest.mark.parametrize("relation", RELATIONS)
def test_no_word_at_a_fixed_offset_tells_the_decided_word(language: Language, relation: str) -> None:
    known = language.sentences(5000, 0, relation=relation)
    votes, chosen_on = known[:4000], known[4000:]
    found = by_offset(votes, chosen_on, relation)
    best = max(found, key=lambda offset: found[offset])
    for split in SPLITS:
        held_out = language.sentences(4000, 1, split, relation)
        alike = 1 / len(language.relation(relation).nouns)
        assert by_offset(votes, held_out, relation, [best])[best] <= alike + 0.05
        assert max(linked_by_offset(held_out, relation).values()) <= 0.07


@languages
@pytest.mark.parametrize("relation", RELATIONS)
def test_each_decided_word_is_as_frequent(language: Language, relation: str) -> None:
    sentences = language.sentences(2000, 0, relation=relation)
    alike = 1 / len(language.relation(relation).nouns)
    assert chance(sentences, sentences, relation) == pytest.approx(alike, abs=0.03)


@languages
@pytest.mark.parametrize("relation", RELATIONS)
def test_nouns_and_templates_are_held_out(language: Language, relation: str) -> None:
    train, words, templates = (cases(language, split, relation) for split in SPLITS)
    last = len(language.relation(relation).templates) - 1
    assert {template for _, template in train | words} == set(range(last))
    assert {template for _, template in templates} == {last}
    assert not train & words
    nouns = set(language.relation(relation).kind)
    assert {noun for noun, _ in train} == {noun for noun, _ in words} == {noun for noun, _ in templates} == nouns


@languages
def test_held_out_cases_occur_in_no_sentence_of_another_relation(language: Language) -> None:
    held_out = {relation: cases(language, "words", relation) for relation in RELATIONS}
    for split in SPLITS:
        for sentence in language.sentences(2000, 3, split, "modifier"):
            for link in sentence.links:
                if link.relation != "modifier":
                    assert (sentence.words[link.noun], link.template) not in held_out[link.relation]


@languages
def test_training_has_every_word(language: Language) -> None:
    seen = {word for sentence in language.sentences(3000, 0) for word in sentence.words}
    assert seen == set(language.words)


@languages
def test_nouns_decide_words_and_offsets_vary(language: Language) -> None:
    offsets: dict[str, set[int]] = {relation: set() for relation in RELATIONS}
    for sentence in language.sentences(3000, 0):
        for link in sentence.links:
            decided = language.relation(link.relation).nouns[sentence.words[link.word]]
            assert sentence.words[link.noun] in decided
            assert 1 <= abs(link.offset) <= FARTHEST + FEW
            offsets[link.relation].add(link.offset)
        groups = [language.relation(link.relation).group for link in sentence.links]
        assert len(set(groups)) == len(groups)
    assert all(len(found) >= 25 for found in offsets.values())


@languages
def test_the_same_seed_draws_the_same(language: Language) -> None:
    assert language.sentences(50, 3) == language.sentences(50, 3)
    assert language.sentences(50, 3) != language.sentences(50, 4)


@languages
def test_links_of_the_documents_sentences(language: Language) -> None:
    said = [
        [(one.words[link.word], one.words[link.noun], link.relation) for link in one.links] for one in language.examples
    ]
    assert (
        said
        == {
            "chinese": [
                [("它", "小猫", "subject pronoun"), ("睡觉", "小猫", "verb")],
                [("它", "苹果", "object pronoun")],
                [("它", "苹果", "object pronoun")],
                [("它", "小猫", "subject pronoun")],
                [("医院", "医生", "association")],
                [("本", "书", "modifier")],
            ],
            "english": [
                [("woke", "cat", "verb")],
                [("it", "cat", "subject pronoun")],
                [("it", "apple", "object pronoun")],
                [("hospital", "doctor", "association")],
                [("fast", "train", "modifier")],
            ],
        }[language.name]
    )
    for sentence in language.examples:
        assert set(sentence.words) <= set(language.words)
        for link in sentence.links:
            assert sentence.words[link.noun] in language.relation(link.relation).nouns[sentence.words[link.word]]


def test_links_of_a_drawn_sentence() -> None:
    sentence = LANGUAGES["english"].sentences(1, 0, "templates", "object pronoun")[0]
    link = sentence.link("object pronoun")
    words = sentence.words
    assert words[link.word - 1] == "as"
    assert words[link.word + 1] == "seemed"
    assert words[link.noun - 2 : link.noun] == ("took", "the")


def test_a_text_has_the_links() -> None:
    text = annotated(LANGUAGES["chinese"], LANGUAGES["chinese"].examples[0])
    assert text.text == "小猫很可爱，它在睡觉。"
    assert [text.word(i) for i in range(len(text))] == ["小猫", "很", "可爱", "，", "它", "在", "睡觉", "。"]
    assert [(i, text.governors[i], text.relations[i]) for i in range(8) if text.relations[i]] == [
        (4, 0, "subject pronoun"),
        (6, 0, "verb"),
    ]
    assert [mention[:3] for mention in text.mentions] == [(0, 1, 0), (4, 5, 0)]
    english = annotated(LANGUAGES["english"], LANGUAGES["english"].examples[0])
    assert english.text == "The cat that was sleeping on the mat woke up."
    assert english.word(english.governors[8]) == "cat"


def test_baselines() -> None:
    # the word before decides, and "x" stands everywhere
    sentences = [
        Sentence.of(f"x {noun} {word} x x", Link("one", 2, 1)) for noun, word in [("a", "A"), ("b", "B")] for _ in "12"
    ]
    found = by_offset(sentences, sentences, "one")
    assert found[-1] == 1
    assert found[1] == found[-2] == found[20] == 0.5
    assert by_bag(sentences, sentences, "one") == 1
    assert chance(sentences, sentences, "one") == 0.5
    assert linked_by_offset(sentences, "one")[-1] == 1


def test_bad_input() -> None:
    language = LANGUAGES["chinese"]
    with pytest.raises(HeadwayError, match="no split 'test': give one of train, words, templates"):
        language.sentences(1, 0, "test")
    with pytest.raises(HeadwayError, match="no relation 'noun': give one of verb, modifier"):
        language.sentences(1, 0, relation="noun")
