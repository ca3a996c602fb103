"""The kinds of values in files of JSON."""

from typing import Any

import pytest

from headway._common.kinds import Kind, fits

FITS: list[tuple[Kind, list[Any], list[Any]]] = [
    (int, [0, -5], [True, 1.5, "1", None]),
    (float, [0, 1.5], [False, "1.5", None, []]),
    (str, ["", "a"], [1, None]),
    (bool, [True, False], [0, 1, None]),
    (None, [None], [0, False, ""]),
    ((int, None), [1, None], ["a", True]),
    ([int], [[], [1, 2]], [[1, "a"], {}, None]),
    ([str, int], [["a", 1]], [["a"], ["a", 1, 2], [1, "a"]]),
    ({str: int}, [{}, {"a": 1}], [{"a": "b"}, []]),
    ({float: int}, [{"0.5": 1}], [{"a": 1}]),
    ({"a": int, "b": (str, ...)}, [{"a": 1}, {"a": 1, "b": "x", "c": []}], [{}, {"b": "x"}, {"a": 1, "b": None}]),
    ({"a": int, str: float}, [{"a": 1, "b": 2.5}], [{"a": 1, "b": "x"}, {"b": 2.5}]),
    ([lambda x: fits(x, float) and x > 0], [[1, 0.5]], [[0], ["a"]]),
]


@pytest.mark.parametrize(("kind", "good", "bad"), FITS)
def test_what_fits_a_kind(kind: Kind, good: list[Any], bad: list[Any]) -> None:
    assert [one for one in good if not fits(one, kind)] == []
    assert [one for one in bad if fits(one, kind)] == []
