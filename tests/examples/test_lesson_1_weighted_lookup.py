"""What lesson 1 finds: the largest key wins a dot product, the nearest a distance."""

import math

import pytest

from .conftest import Learn


def test_figures(learn: Learn) -> None:
    found = learn("lesson_1_weighted_lookup")
    assert found["scores"] == [2907, 3192, 3306]
    assert found["product_weights"] == [0, 0, 1]
    assert found["product_answer"] == 48.0
    assert found["product_slope"] == 0
    assert set(found["product_line"]) == {48.0}  # wherever the query is

    # the softmax of −36/2, −1/2, −1/2, by hand
    parts = [math.exp(-18), math.exp(-0.5), math.exp(-0.5)]
    by_hand = [part / sum(parts) for part in parts]
    assert found["distance_weights"] == pytest.approx(by_hand, rel=1e-3)
    assert found["distance_answer"] == pytest.approx(45.5, abs=1e-5)
    assert found["distance_slope"] == pytest.approx(2.5, abs=1e-4)  # (48 − 43)·(58 − 56)/4

    assert found["two_product_answers"] == [[43, 59], [43, 59]]
    assert found["two_product_slope"] == 0
    assert found["two_distance_answers"] == [pytest.approx([48, 65], abs=1e-4), pytest.approx([40, 55], abs=1e-4)]
