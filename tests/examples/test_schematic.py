"""Schematics show what they are given: each number in its cell, in the colour of its sign."""

import pytest
from matplotlib.colors import to_rgb

from lesson import paper
from looks import faults
from schematic import Place, arrow, box, numbers, sheet


def test_a_matrix_shows_its_numbers() -> None:
    with paper():
        figure, axes = sheet(2.0)
        place = numbers(axes, 1.0, 0.5, [[1.0, -2.0, -0.04], [0.0, None, 0.5]], down=["a", "b"], across=list("xyz"))
        assert faults(figure) == []
    assert place == Place(1.0, 0.5, pytest.approx(1.2), 0.48)
    assert [text.get_text() for text in axes.texts] == ["1.0", "−2.0", "0.0", "0.0", "0.5", "a", "b", "x", "y", "z"]
    one, minus_two, _, zero, *_ = (to_rgb(patch.get_facecolor()[:3]) for patch in axes.patches)
    assert one[0] > one[2]  # red
    assert minus_two[2] > minus_two[0]  # blue
    assert max(zero) - min(zero) < 0.02


def test_boxes_and_arrows_lie_where_they_are_put() -> None:
    with paper():
        figure, axes = sheet(1.5)
        first, second = box(axes, Place(0.5, 0.5, 1.0, 0.4), "one"), box(axes, Place(3.0, 0.5, 1.0, 0.4), "two")
        arrow(axes, first.right, second.left)
        assert faults(figure) == []
    assert (first.right, second.left) == ((1.5, 0.7), (3.0, 0.7))
    assert (axes.texts[-1].xy, axes.texts[-1].xyann) == (second.left, first.right)
