"""Every row of ENCODINGS passes every check, on every kernel that takes it."""

import pytest

from headway.positions import ENCODINGS, EVIDENCE, KINDS, PositionEncoding, citation
from headway.testing import ENCODING_CHECKS

FURTHER = pytest.mark.one_in(6)  # the examples of an encoding behind its first
EXAMPLES = [
    pytest.param(example, id=f"{name}-{number}", marks=[FURTHER] * (number > 0))
    for name, kind in ENCODINGS.items()
    for number, example in enumerate(kind.examples())
]


# the one that runs every encoding on every kernel runs whole
ONE_IN = {
    "matches_its_formula": 1,
    "compiles_as_one_graph": 149,
    "keeps_the_promise_in_every_dtype": 31,
    "trains_with_dropout": 23,
}


@pytest.mark.parametrize(
    "check", [pytest.param(name, marks=pytest.mark.one_in(ONE_IN.get(name, 9))) for name in ENCODING_CHECKS]
)
@pytest.mark.parametrize("encoding", EXAMPLES)
def test_encoding(encoding: PositionEncoding, check: str) -> None:
    ENCODING_CHECKS[check](encoding)


@pytest.mark.parametrize("name", ENCODINGS)
def test_every_row_has_examples_of_two_head_counts_and_a_citation(name: str) -> None:
    kind = ENCODINGS[name]
    examples = kind.examples()
    heads = {example.num_heads for example in examples if hasattr(example, "num_heads")}
    assert len(heads) != 1, f"{name} is checked with {heads} heads only: add a number that is no power of two"
    own = citation(kind).strip()
    assert own.startswith("@") or name in ("none", "index", "unit-index"), f"{name} cites nothing"


@pytest.mark.parametrize("name", ENCODINGS)
def test_every_row_says_what_it_is(name: str) -> None:
    kind = ENCODINGS[name]
    assert kind.kind in KINDS
    assert kind.evidence in {*EVIDENCE} - {"unknown"}
    assert kind.year or name in ("index", "unit-index")
    assert kind.same_function_as is None or kind.same_function_as in ENCODINGS


def test_the_headline_counts_functions_and_not_names() -> None:
    """Rows that compute the same as another, or that nothing but their formula speaks for, do not count."""
    counted = [e for e in ENCODINGS.values() if e.evidence != "formula" and e.same_function_as is None]
    assert len(ENCODINGS) >= 60
    assert len(counted) >= 45
