from dataclasses import replace

import pytest
import torch

from headway import Coordinates, HeadwayError
from headway.bench import FULL, QUICK, Case, Plan
from headway.bench.cases import PARTS, STATISTICS_MEMORY, pairs
from headway.bench.sides import asked, mask_of


@pytest.mark.parametrize("mask", ["none", "causal", "window"])
@pytest.mark.parametrize("n", [1, 16, 256, 257, 600])
def test_pairs_are_those_that_the_mask_allows(mask: str, n: int) -> None:
    span = Coordinates.span(n)
    found = mask_of(mask)
    allowed = torch.ones(n, n) if found is None else found.allowed(span, span)
    assert pairs(mask, n) == int(allowed.sum())


@pytest.mark.parametrize("kind", ["packed", "left-padded"])
def test_pairs_of_rows_that_hold_more_than_one_stream(kind: str) -> None:
    of = Case(kind, mask="causal", n=64)
    arguments, _ = asked(of)
    allowed = arguments["mask"].allowed(arguments["q_positions"], arguments["k_positions"])
    assert of.pairs == int(allowed.sum())
    assert 0 < of.share < 0.5


def test_operations_are_those_of_the_products() -> None:
    """Two products of n·n·head_dim multiply-adds for each head, and five backward."""
    assert Case(n=100, head_dim=16).flop == 2 * 2 * 8 * 100 * 100 * 16
    assert Case(n=100, head_dim=16, direction="backward").flop == 5 * 2 * 8 * 100 * 100 * 16
    assert Case("decoding", n=100, head_dim=16).flop == 2 * 2 * 8 * 100 * 16


def test_a_row_has_the_fields_of_its_kind_alone() -> None:
    assert {"queries", "group"} <= Case("cache").fields().keys()
    assert not {"queries", "group"} & Case("decoding").fields().keys()


def test_a_plan_has_every_part_and_no_case_twice() -> None:
    for plan in (FULL, QUICK):
        cases = plan.cases()
        assert {of.part for of in cases} == set(PARTS)
        assert len(set(cases)) == len(cases)
    assert len({str(of) for of in FULL.cases()}) == len(FULL.cases())


def test_a_window_that_hides_nothing_is_not_measured_beside_causal() -> None:
    lengths = {of.n for of in FULL.cases() if of.kind == "attention" and of.mask == "window"}
    assert lengths == {512, 1024, 2048, 4096}


def test_one_direction_alone() -> None:
    assert {of.direction for of in Plan(directions=("forward",)).cases()} == {"forward"}
    assert {of.direction for of in Plan(directions=("backward",)).cases()} == {"backward"}


def test_statistics_come_with_their_memory_and_the_longest_call_is_left_to_the_full_plan() -> None:
    for plan, most in ((FULL, 65536), (QUICK, 16384)):
        cases = replace(plan, parts=("statistics",)).cases()
        assert {of.kind for of in cases} == {"statistics", STATISTICS_MEMORY}
        assert max(of.n for of in cases if of.kind == STATISTICS_MEMORY) == most
        assert {of.encoding for of in cases} >= {"none", "rope"}
        assert {of.mask for of in cases} == {"causal"}
    assert replace(FULL, parts=("statistics",), directions=("backward",)).cases() == []


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"dtypes": ("float64",)}, "there is no dtype 'float64'"),
        ({"masks": ("holes",)}, "there is no mask 'holes'"),
        ({"directions": ("sideways",)}, "there is no direction 'sideways'"),
        ({"parts": ()}, "parts is empty"),
        ({"lengths": (0,)}, "lengths has 0"),
        ({"dims": (-1,)}, "dims has -1"),
        ({"statistics_lengths": (0,)}, "statistics_lengths has 0"),
        ({"rounds": 0}, "rounds is 0"),
        ({"seconds": -1.0}, "seconds is -1.0"),
        ({"seconds": float("nan")}, "seconds is nan"),
    ],
)
def test_what_cannot_be_measured_is_said(changes: dict[str, object], said: str) -> None:
    with pytest.raises(HeadwayError, match=said):
        Plan(**changes)


def test_a_kernel_can_be_told_but_not_to_parts_that_choose_one() -> None:
    told = Plan(parts=("attention", "cache"), kernel="cpu").cases()
    assert {case.kernel for case in told} == {"cpu"}
    assert told[0].fields()["kernel"] == "cpu"
    assert "kernel" not in Case().fields(), "rows that were measured before have none"
    with pytest.raises(HeadwayError, match="kernel is 'cpu', and parts has 'statistics'"):
        Plan(parts=("attention", "statistics"), kernel="cpu")
    with pytest.raises(HeadwayError, match="no kernel 'cpus'"):
        Plan(parts=("attention",), kernel="cpus")
