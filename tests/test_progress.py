"""Parts of a work tell of the whole."""

import pytest

from headway._common.progress import nobody, part_of


def test_a_part_tells_where_it_is_in_the_whole() -> None:
    told: list[float] = []
    first, second = part_of(told.append, 0.0, 0.25), part_of(told.append, 0.25, 0.75)
    within = part_of(second, 0.5, 0.5)
    for tell in (first, second, within):
        tell(0.0)
        tell(1.0)
    assert told == pytest.approx([0.0, 0.25, 0.25, 1.0, 0.625, 1.0])


def test_nobody_takes_what_anybody_is_told() -> None:
    nobody(0.5)
    nobody("yarn", 0.5)
    nobody(["a sentence"])
