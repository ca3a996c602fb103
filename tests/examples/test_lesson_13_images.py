"""What lesson 13 finds: without positions an image is a bag of patches; one order for all is as good as another."""

from statistics import median

import pytest
import torch

import lesson_13_images as lesson
from lesson import measured

from .conftest import Learn


@pytest.mark.slow
def test_figures(learn: Learn) -> None:
    found = learn("lesson_13_images")
    middle = {name: {order: median(values) for order, values in by.items()} for name, by in found["accuracy"].items()}

    assert all(len(values) == 3 for by in found["accuracy"].values() for values in by.values())
    assert max(middle["none"].values()) < middle["axial-rope"]["whole"] - 0.2
    for name in ("learned", "rope", "axial-rope"):
        assert min(found["accuracy"][name]["whole"]) > max(found["accuracy"][name]["each"]) + 0.2, name
        assert abs(middle[name]["whole"] - middle[name]["shuffled"]) < 0.1, name
    assert max(found["order_of_patches"].values()) < 1e-12
    assert found["nearest"]["whole"] == found["nearest"]["shuffled"]
    assert max(found["nearest"]["each"]) < 0.3
    assert found["trained"] == pytest.approx(found["accuracy"]["axial-rope"]["whole"][0], abs=0.05)
    assert sum(sum(row) for row in found["attention"]) == pytest.approx(16, abs=1e-3)
    whole, shuffled = (torch.tensor(image).flatten() for image in (found["image"], found["shuffled"]["each"]))
    assert torch.equal(whole.sort().values, shuffled.sort().values)


def test_patches_are_squares_of_the_image() -> None:
    images = torch.arange(64.0).view(1, 8, 8)
    patches = lesson.patches_of(images)
    assert patches.shape == (1, 16, 4)
    assert patches[0, 0].tolist() == [0, 1, 8, 9]
    assert patches[0, 5].tolist() == [18, 19, 26, 27]
    assert torch.equal(lesson.image_of(patches), images)


def test_orders() -> None:
    """One order for all moves every image alike, an order for each does not; no patch is lost."""
    patches = lesson.patches_of(torch.arange(64.0).expand(30, 64).reshape(30, 8, 8))
    one, each = (lesson.rearranged(patches, order, torch.Generator().manual_seed(0)) for order in ("shuffled", "each"))
    assert torch.equal(one, one[:1].expand_as(one))
    assert not torch.equal(each, each[:1].expand_as(each))
    assert not torch.equal(one, patches)
    assert torch.equal(each.sort(1).values, patches.sort(1).values)


def test_no_image_is_in_both_parts() -> None:
    patches, digit, held_out, right = lesson.split("whole", 0)
    assert (len(patches), len(digit), len(held_out), len(right)) == (1347, 1347, 450, 450)
    together = torch.cat([patches, held_out]).flatten(1)
    assert len(together.unique(dim=0)) == len(lesson.digits()[0].unique(dim=0)) == 1797


def test_rows_are_complete() -> None:
    rows = {(row["encoding"], row["order"], row["seed"]) for row in measured(lesson.__file__)}
    assert rows == {(name, order, seed) for name in lesson.ARGUMENTS for order in lesson.ORDERS for seed in (0, 1, 2)}
