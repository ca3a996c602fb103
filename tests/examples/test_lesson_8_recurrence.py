"""What lesson 8 finds: recurrence knows order and forgets, attention reaches back and pays with n²."""

import math
import statistics

import pytest

from .conftest import Learn


@pytest.mark.slow
def test_figures(learn: Learn) -> None:
    found = learn("lesson_8_recurrence")

    assert found["rnn_error"] < 1e-12
    assert found["rnn_order"] > 0.1
    assert found["attention_order"] < 1e-12

    assert found["gradient_per_step"]["rnn"] == pytest.approx(factor_of_a_step(64), rel=0.1)
    assert found["gradient_per_step"]["rnn"] < found["gradient_per_step"]["lstm"] < 0.75
    assert found["gradient_per_step"]["attention"] == pytest.approx(1, abs=0.01)
    assert found["share_exponent"] == pytest.approx(-1, abs=0.25)

    rows = found["unrolled"]
    assert all(len(row) == 3 for which in rows.values() for row in which)
    assert [sum(row) for row in rows["weights"]] == pytest.approx([1, 1, 1])
    assert all(-1 < number < 1 for row in rows["h"] for number in row)

    recall = found["recall"]
    assert [recall[kind][0] for kind in ("rnn", "lstm", "attention")] == pytest.approx([1, 1, 1], abs=0.1)
    assert min(recall["attention"][:4]) > 0.9
    assert recall["attention"][4] > 0.5
    assert recall["rnn"][3:] == pytest.approx([1 / 8, 1 / 8], abs=0.08)
    assert recall["lstm"][4] < 0.5
    assert sum(recall["rnn"]) < sum(recall["lstm"]) < sum(recall["attention"])
    assert found["recall_parameters"]["rnn"] == 17 * 32 + 32 * (32 + 32 + 2)

    assert all(len(seconds) == len(found["lengths"]) for seconds in found["seconds"].values())
    assert found["kept"] == {"rnn": [256] * 7, "lstm": [512] * 7, "attention": [512 * n for n in found["lengths"]]}


def factor_of_a_step(width: int) -> float:
    """By what a gradient shrinks in a step of torch's RNN at its first values, U(−1/√d, 1/√d), in the mean square."""
    normal = statistics.NormalDist()
    points = [normal.inv_cdf((i + 0.5) / 1000) for i in range(1000)]
    each = 1 / (3 * width)  # the variance of a weight
    spread = 1.0
    for _ in range(20):  # until the state's own size agrees with what it makes
        state = statistics.mean(math.tanh(spread * point) ** 2 for point in points)
        spread = math.sqrt(width * each * (1 + state) + 2 * each)
    slope = statistics.mean((1 - math.tanh(spread * point) ** 2) ** 2 for point in points)
    return math.sqrt(width * each * slope)
