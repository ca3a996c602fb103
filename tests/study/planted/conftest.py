"""A language so small that a model for it can be made by hand."""

import pytest

from headway.study.planted import Language, Relation


@pytest.fixture(scope="session")
def tiny_language() -> Language:
    up = ("the {noun} {fill} {word} up", "this {noun} {fill} {word} up", "that {noun} {fill} {word} up")
    went = (
        "the {noun} {fill} reached {word}",
        "this {noun} {fill} reached {word}",
        "that {noun} {fill} reached {word}",
    )
    return Language(
        name="tiny",
        relations=(
            Relation("verb", "creature", {"woke": ("cat", "dog", "cow"), "flew": ("crow", "owl", "jay")}, up),
            Relation("place", "person", {"home": ("cook", "boy", "aunt"), "school": ("pupil", "girl", "king")}, went),
        ),
        lists={},
        fillers=("today", "again", "last night", "near it"),
        neutral=(),
        between=("and",),
        stop=".",
        spaced=True,
    )
