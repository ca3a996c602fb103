"""The words and templates of the English sentences."""

from __future__ import annotations

from ._grammar import Language, Link, Relation, Sentence

CREATURES = {
    "woke": ("cat", "dog", "rabbit", "horse", "lion", "bear"),
    "flew": ("crow", "sparrow", "pigeon", "swallow", "eagle", "owl"),
    "stood": ("boy", "girl", "man", "woman", "king", "queen"),
    "swam": ("salmon", "carp", "shark", "whale", "trout", "dolphin"),
}
EATERS = {
    "he": ("boy", "man", "uncle", "king", "prince", "brother"),
    "she": ("girl", "woman", "aunt", "queen", "princess", "sister"),
    "it": ("cat", "dog", "rabbit", "horse", "lion", "bear"),
    "they": ("cats", "dogs", "rabbits", "horses", "lions", "bears"),
}
FOODS = {
    "it": ("apple", "pear", "peach", "melon", "lemon", "cake"),
    "they": ("grapes", "cherries", "berries", "plums", "nuts", "beans"),
}
THINGS = {
    "fast": ("car", "bus", "train", "taxi", "truck", "van"),
    "tall": ("tower", "church", "palace", "castle", "temple", "monument"),
    "hot": ("tea", "coffee", "soup", "milk", "porridge", "cocoa"),
    "long": ("book", "novel", "story", "diary", "poem", "letter"),
}
PROFESSIONS = {
    "hospital": ("doctor", "nurse", "surgeon"),
    "school": ("teacher", "pupil", "professor"),
    "farm": ("farmer", "shepherd", "gardener"),
    "restaurant": ("cook", "waiter", "baker"),
    "court": ("judge", "lawyer", "clerk"),
    "harbour": ("sailor", "captain", "fisherman"),
}

ENGLISH = Language(
    name="english",
    relations=(
        Relation(
            "verb",
            "creature",
            CREATURES,
            (
                "the {noun} {fill} {word} up",
                "the {noun} that was sleeping {fill} {word} up",
                "at last the {noun} which was quiet {fill} {word} up {few}",
                "at last the {noun} that was quiet {fill} {word} up",
            ),
        ),
        Relation(
            "modifier",
            "thing",
            THINGS,
            (
                "{word} {fill} was the {noun}",
                "as {word} as ever {fill} was the {noun}",
                "the {noun} {fill} looked {word}",
                "the {noun} {fill} was {word}",
            ),
        ),
        Relation(
            "association",
            "profession",
            PROFESSIONS,
            (
                "the {noun} {fill} went to the {word}",
                "at the {word} {fill} worked the {noun}",
                "the {noun} {fill} came from the {word}",
                "the {noun} {fill} worked at the {word}",
            ),
        ),
        Relation(
            "subject pronoun",
            "creature",
            EATERS,
            (
                "the {noun} {few} ate the {food} {fill} because {word} seemed {hungry}",
                "the {noun} {few} wanted the {food} {fill} since {word} seemed {hungry}",
                "because {word} seemed {hungry} {fill} the {noun} {few} took the {food}",
                "the {noun} {few} took the {food} {fill} as {word} seemed {hungry}",
            ),
        ),
        Relation(
            "object pronoun",
            "creature",
            FOODS,
            (
                "the {eater} ate {few} the {noun} {fill} because {word} seemed {sweet}",
                "the {eater} wanted {few} the {noun} {fill} since {word} seemed {sweet}",
                "because {word} seemed {sweet} {fill} the {eater} took {few} the {noun}",
                "the {eater} took {few} the {noun} {fill} as {word} seemed {sweet}",
            ),
        ),
    ),
    lists={
        "eater": [noun for nouns in EATERS.values() for noun in nouns],
        "food": [noun for nouns in FOODS.values() for noun in nouns],
        "hungry": ("hungry", "tired", "thirsty", "busy"),
        "sweet": ("sweet", "ripe", "fresh", "cheap"),
    },
    fillers=(
        *("quietly", "today", "again", "slowly", "there", "often"),
        *("last night", "this morning", "all day"),
        *(
            "near the {any}",
            "behind the {any}",
            "beside the {any}",
            "under the {any}",
            "on the {any}",
            "with the {any}",
        ),
    ),
    neutral=("mat", "door", "river", "table", "garden", "tree", "window", "road"),
    between=(",", "and"),
    stop=".",
    spaced=True,
    examples=(
        Sentence.of("the cat that was sleeping on the mat woke up .", Link("verb", 8, 1)),
        Sentence.of("the cat ate the apple because it seemed hungry .", Link("subject pronoun", 6, 1)),
        Sentence.of("the cat ate the apple because it seemed sweet .", Link("object pronoun", 6, 4)),
        Sentence.of("the doctor with the teacher went to the hospital .", Link("association", 8, 1)),
        Sentence.of("as fast as ever behind the tower was the train .", Link("modifier", 1, 9)),
    ),
)
