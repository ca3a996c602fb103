"""Learned vectors for clipped distances."""

import pytest
import torch

from headway.coordinates import Coordinates
from headway.errors import HeadwayError
from headway.positions import Shaw
from headway.terms import RelativeKeys, RelativeValues


def test_a_row_for_each_distance_and_the_last_for_all_beyond() -> None:
    encoding, at = Shaw(4, max_distance=2), Coordinates.span(6)
    keys, values = encoding.terms(at, at)
    assert isinstance(keys, RelativeKeys)
    assert isinstance(values, RelativeValues)
    # key − query: a key in front of the query by two or more has row 0, behind it by two or more row 4
    assert keys.rows.map.rows(at, at)[0, 3].tolist() == [0, 0, 1, 2, 3, 4]
    assert values.rows.map.rows(at, at)[0, 0].tolist() == [2, 3, 4, 4, 4, 4]


def test_both_tables_are_shared_by_the_heads() -> None:
    encoding = Shaw(4, max_distance=3)
    assert {name: tuple(p.shape) for name, p in encoding.named_parameters()} == {"keys": (7, 4), "values": (7, 4)}
    assert not torch.equal(encoding.keys, encoding.values)


@pytest.mark.parametrize("arguments", [{"head_dim": 0}, {"head_dim": 4, "max_distance": 0}])
def test_wrong_sizes_raise(arguments: dict) -> None:
    with pytest.raises(HeadwayError, match="is 0: give at least 1"):
        Shaw(**arguments)
