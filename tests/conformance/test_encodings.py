"""Every row of ENCODINGS passes every check, on every kernel that takes it."""

import pytest

from headway.positions import ENCODINGS, PositionEncoding, citation
from headway.testing import ENCODING_CHECKS

EXAMPLES = [
    pytest.param(example, id=f"{name}-{number}")
    for name, kind in ENCODINGS.items()
    for number, example in enumerate(kind.examples())
]


@pytest.mark.parametrize("check", ENCODING_CHECKS)
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
