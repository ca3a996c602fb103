"""What lesson 12 finds: a window hides what lies beyond it, layers see further and hop further, dimensions cost."""

from statistics import median

import pytest
import torch

import lesson_12_span_depth_dimension as lesson
from lesson import measured

from .conftest import Learn


@pytest.mark.slow
def test_figures(learn: Learn) -> None:
    found = learn("lesson_12_span_depth_dimension")

    assert found["reach"] == {
        name: 63 if window is None else window * layers for name, (window, layers, _) in lesson.SPANS.items()
    }
    for name, seeds in found["find"].items():
        for column, distance in enumerate(found["distances"]):
            values = [row[column] for row in seeds]
            if distance > found["reach"][name]:
                assert max(values) < 0.3, (name, distance)
            elif found["reach"][name] >= 2 * distance or "layers" not in name:
                assert median(values) > 0.95, (name, distance)
    assert found["span_kept"] == [2 * 256 * n for n in (64, 256, 1024, 4096)]

    one, two, three = (found["chase"][depth] for depth in "123")
    assert min(row[1] for row in one) > 0.95
    assert max(row[2] for row in one) < 0.3
    assert min(row[2] for row in two) > 0.95
    assert median(row[3] for row in three) > median(row[3] for row in two) + 0.3
    assert found["dim_parameters"] == sorted(found["dim_parameters"])
    assert found["dim_saved"] == sorted(found["dim_saved"])
    assert found["dim_parameters"][2] == found["depth_parameters"][2]


@pytest.mark.slow
def test_a_stored_row_comes_out_again() -> None:
    """The code that is there measured the stored rows: here the cheapest one, up to the rounding of machines."""
    torch.set_num_threads(1)
    row = measured(lesson.__file__)[0]
    assert (row["depth"], row["dim"], row["seed"]) == (1, 32, 0)
    assert lesson.chase(0, 1, 32) == pytest.approx(row["right"], abs=0.05)


def test_circles() -> None:
    """k hops are k steps along the successors, and all tokens are on one circle."""
    ids, hops = lesson.circles(20, torch.Generator().manual_seed(0))
    token = torch.zeros(20, 1, dtype=torch.long)
    seen = [token]
    for k in range(lesson.CIRCLE - 1):
        token = ids.gather(1, token)
        seen.append(token)
        if k < lesson.HOPS:
            assert torch.equal(hops[:, 0, k], token[:, 0])
    assert torch.cat(seen, 1).sort(1).values.tolist() == [list(range(lesson.CIRCLE))] * 20


def test_questions() -> None:
    """One symbol in each row, at the distance that is said, and the question last."""
    ids, symbol, which = lesson.questions(50, torch.Generator().manual_seed(0))
    for row, right, number in zip(ids, symbol, which, strict=True):
        (places,) = torch.where(row < lesson.SYMBOLS)
        assert (len(row) - 1 - places).tolist() == [lesson.DISTANCES[number]]
        assert row[places] == right
        assert row[-1] == lesson.SYMBOLS + lesson.FILLERS


def test_rows_are_complete() -> None:
    rows = [(row["depth"], row["dim"], row["seed"]) for row in measured(lesson.__file__)]
    sizes = {(depth, lesson.DIM) for depth in lesson.DEPTHS} | {(lesson.DEPTH, dim) for dim in lesson.DIMS}
    assert sorted(rows) == sorted((*size, seed) for size in sizes for seed in lesson.SEEDS)
