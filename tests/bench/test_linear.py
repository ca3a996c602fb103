"""The report from which the table of linear maps is made; what is timed is never asserted."""

import re
from types import SimpleNamespace

import pytest
import torch

from headway.bench import linear
from headway.nn import linear_kernel


@pytest.mark.parametrize(("kernel", "bold"), [("torch", 0), ("onednn", 3)])
def test_a_row_for_each_size_and_what_is_chosen_is_bold(kernel: str, bold: int) -> None:
    with linear_kernel(kernel):
        said = linear.report([(4, 16, 8)], seconds=0.0, rounds=1)
    [line] = [line for line in said.splitlines() if line.startswith("| 4 × 16 × 8 |")]
    assert len(re.findall(r"\*\*\d+\.\d\d\*\*", line)) == bold
    assert ("chosen: none" in said) == (bold == 0)


def test_the_products_of_both_sides_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def check(torchs: object, onednns: object, seconds: float, rounds: int) -> float:
        torch.testing.assert_close(onednns(), torchs())  # type: ignore[operator]
        seen.append(torchs().shape)  # type: ignore[operator]
        return 1.0

    monkeypatch.setattr(linear, "_ratio", check)
    linear.measure((4, 16, 8))
    assert seen == [(4, 8), (4, 16), (8, 16)]


def test_a_ratio_is_the_time_of_torch_over_that_of_onednn(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = 0.0

    def lasting(seconds: float) -> torch.Tensor:
        nonlocal clock
        clock += seconds
        return torch.empty(0)

    monkeypatch.setattr(linear, "time", SimpleNamespace(perf_counter=lambda: clock))
    assert linear._ratio(lambda: lasting(3.0), lambda: lasting(2.0), seconds=0.0, rounds=2) == 1.5


def test_the_grid_has_short_calls_and_long_ones() -> None:
    assert (1, 64, 64) in linear.GRID
    assert (8192, 2048, 8192) in linear.GRID
