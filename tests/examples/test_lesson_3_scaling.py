"""What lesson 3 finds: variance d, a softmax that saturates, and gradients that vanish for most but not on average."""

import math

import pytest

from .conftest import Learn


@pytest.mark.slow
def test_figures(learn: Learn) -> None:
    found = learn("lesson_3_scaling")
    widths = found["widths"]
    assert widths == [4, 16, 64, 256, 1024]
    roots = [math.sqrt(d) for d in widths]

    # dot products of random vectors: mean 0, variance d; ⟨k, k⟩ is d, or 1 for unit vectors, which all are as near
    for mean, root in zip(found["unrelated_mean"], roots, strict=True):
        assert abs(mean) < 0.05 * root
    assert found["unrelated_std"] == pytest.approx(roots, rel=0.1)
    assert found["itself"] == pytest.approx(widths, rel=0.05)
    assert found["unit_unrelated_std"] == pytest.approx([1 / root for root in roots], rel=0.1)
    assert found["unit_itself"] == pytest.approx([1] * 5, rel=1e-5)
    assert found["not_closest"][0] > 0.5 > 0.15 > found["not_closest"][-1] > 0
    assert found["unit_not_closest"] == [0] * 5

    assert found["variance"]["unscaled"] == pytest.approx(widths, rel=0.25)
    assert found["variance"]["scaled"] == pytest.approx([1] * 5, rel=0.25)
    assert found["variance"]["folded"] == pytest.approx([1] * 5, rel=0.25)
    assert found["folded_difference"] < 1e-5

    # saturation, in bounds that hold for any weights over 64 keys
    assert max(found["largest"]["scaled"]) < 0.15
    assert found["largest"]["unscaled"][-1] > 0.99
    assert found["entropy"]["unscaled"][-1] < 0.05
    assert min(found["entropy"]["scaled"]) > 0.8 * math.log(64)
    for norms in (*found["jacobian"].values(), *found["jacobian_mean"].values()):
        assert max(norms) <= 0.5
    assert max(found["jacobian"]["scaled"]) < 1.3 * min(found["jacobian"]["scaled"])
    assert found["jacobian"]["unscaled"][-1] < 0.02 < found["jacobian_mean"]["unscaled"][-1]

    # the gradient at the query: at d = 64 larger without the scale, at 1024 gone for most, and never on average
    scaled, unscaled = found["gradient"]["scaled"], found["gradient"]["unscaled"]
    assert max(scaled) < 1.4 * min(scaled)
    assert unscaled[2] > 2 * scaled[2]
    assert unscaled[4] < 0.1 * scaled[4]
    assert min(found["gradient_mean"]["unscaled"][2:]) > 3 * max(found["gradient_mean"]["scaled"])
    assert found["silent"]["scaled"] == [0] * 5
    assert 0.35 < found["silent"]["unscaled"][-1] < 0.7

    assert found["derivatives"] == pytest.approx([a * (1 - a) for a in found["weights"]])
    assert found["log_derivatives"] == pytest.approx([1 - a for a in found["weights"]])

    # learning: the scale learns, without it not so soon, although its first gradient is larger
    loss, first = found["final_loss"], found["first_gradient"]
    assert loss["scaled"] < 0.4
    assert found["final_accuracy"]["scaled"] > 0.9
    assert loss["unscaled"] > 1.2
    assert loss["unscaled, slower"] > 1.2
    assert loss["scaled"] < loss["folded"] < loss["unscaled"]
    assert first["unscaled"] > 3 * first["scaled"]
    # Adam's steps are as large as its rate: Wq and its rate √d smaller are the scale itself
    assert first["folded, Wq slower"] == pytest.approx(16 * first["scaled"], rel=1e-3)
    assert found["losses"]["folded, Wq slower"][:6] == pytest.approx(found["losses"]["scaled"][:6], rel=0.05)
