"""Student's intervals, against scipy."""

import math

import pytest

from headway.study.intervals import mean_and_half, t_quantile


@pytest.mark.parametrize("level", [0.5, 0.95, 0.999])
def test_quantiles_are_those_of_scipy(level: float) -> None:
    stats = pytest.importorskip("scipy.stats")
    for degrees in (*range(1, 40), 99, 400):
        assert t_quantile(degrees, level) == pytest.approx(stats.t.ppf((1 + level) / 2, degrees), rel=1e-9)


def test_two_seeds_give_a_wide_interval() -> None:
    assert t_quantile(1) == pytest.approx(12.7062, abs=1e-4)
    middle, half = mean_and_half([1.0, 2.0])
    assert (middle, half) == (1.5, pytest.approx(12.7062 * math.sqrt(0.5) / math.sqrt(2), abs=1e-4))


def test_the_interval_of_a_mean_is_that_of_scipy() -> None:
    stats = pytest.importorskip("scipy.stats")
    values = [2.31, 2.28, 2.4, 2.33]
    middle, half = mean_and_half(values)
    low, high = stats.t.interval(0.95, 3, loc=middle, scale=stats.sem(values))
    assert half is not None
    assert (middle - half, middle + half) == pytest.approx((low, high), rel=1e-9)


def test_one_value_has_no_interval() -> None:
    assert mean_and_half([3.0]) == (3.0, None)
