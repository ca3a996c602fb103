"""Student's intervals, against scipy."""

import math

import pytest

from headway.study.intervals import holm, mean_and_half, p_value, paired, t_quantile


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


@pytest.mark.parametrize("values", [[0.1, 0.3], [2.31, -2.28, 0.4, 2.33], [0.01, 0.012, 0.011], [0.5, -0.5, 0.1, 0.2]])
def test_p_is_that_of_scipy(values: list[float]) -> None:
    stats = pytest.importorskip("scipy.stats")
    assert p_value(values) == pytest.approx(stats.ttest_1samp(values, 0).pvalue, rel=1e-9)


def test_p_of_values_that_do_not_vary() -> None:
    assert [p_value(values) for values in ([1.0], [1.0, 1.0], [0.0, 0.0])] == [None, 0.0, 1.0]


def test_p_is_below_five_hundredths_where_the_interval_excludes_zero() -> None:
    for values in ([0.1, 0.3], [0.1, 0.11, 0.09], [0.2, 0.05, 0.11]):
        found = paired("a", "b", dict(enumerate(values)), dict.fromkeys(range(3), 0.0))
        assert found is not None
        assert found.p is not None
        assert (found.p < 0.05) == found.separated


def test_holm_by_hand() -> None:
    assert holm([0.04, 0.01, 0.03]) == pytest.approx([0.06, 0.03, 0.06])  # 3 × 0.01, 2 × 0.03, and no less than that
    assert holm([0.5, 0.9]) == [1.0, 1.0]
    assert holm([]) == []
