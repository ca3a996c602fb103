"""FoPE: cosines and sines are sums over the frequencies that turn round within the trained length."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from headway.coordinates import Coordinates
from headway.errors import HeadwayError
from headway.positions import FoPE, RoPE

# vLLM, rotary_embedding/fope.py, its cache in float64 for the coefficients below, position 17: cosines and sines of the
# fast pairs, [heads, pairs]. It does not normalize; the second is its sum with the paper's normalized coefficients.
THEIRS = {
    False: (
        [[-0.2542008069780748, 0.6708973710298884], [-0.11792026083088591, 0.376072624783379]],
        [[-0.7691179935036455, -0.7704973762394811], [-1.0748917970347922, -0.5955724338308492]],
    ),
    True: (
        [[-0.4236680116301247, 0.8386217137873606], [-0.08422875773634708, 0.4178584719815322]],
        [[-0.9613974918795568, -0.7704973762394811], [-0.9771743609407203, -0.7444655422885615]],
    ),
}


def coefficients(modulus: int) -> Tensor:
    return (torch.arange(8, dtype=torch.float64).view(2, 2, 2) % modulus - modulus // 2) / 10 + torch.eye(2)


@pytest.mark.parametrize("normalize", THEIRS)
def test_the_series_are_those_of_other_implementations(normalize: bool) -> None:
    fope = FoPE(2, 16, max_length=40, normalize=normalize)
    fope.cos_coefficients.data, fope.sin_coefficients.data = coefficients(7), coefficients(5)
    assert fope.fast == 2
    for found, theirs in zip(fope.waves(Coordinates.span(1, start=17)), THEIRS[normalize], strict=True):
        torch.testing.assert_close(found[0, :, 0, :2], torch.tensor(theirs, dtype=torch.float64), rtol=1e-13, atol=0)
        assert bool((found[..., 2:] == 1).all())


def test_normalized_scores_are_those_of_the_formula(score_gap: Callable[..., float]) -> None:
    torch.manual_seed(0)
    assert score_gap(FoPE(4, 8, max_length=1000, normalize=True), None) < 1e-10


def test_without_noise_fast_pairs_are_those_of_rope() -> None:
    x, at = torch.randn(1, 4, 5, 64, dtype=torch.float64), Coordinates.span(5, start=300)
    fope = FoPE(4, 64, max_length=128, gain=0.0)
    fast = [dimension for c, pair in enumerate(fope.dimensions()) for dimension in pair if c < fope.fast]
    found, plain = fope.prepare(x, at), RoPE(64, layout="half").prepare(x, at)
    torch.testing.assert_close(found[..., fast], plain[..., fast])
    assert len(fast) < 64


def test_coefficients_are_random_and_belong_to_the_state() -> None:
    torch.manual_seed(0)
    one, other = FoPE(4, 64), FoPE(4, 64)
    assert not torch.equal(one.cos_coefficients, other.cos_coefficients)
    other.load_state_dict(one.state_dict())
    assert torch.equal(one.cos_coefficients, other.cos_coefficients)
    assert all(parameter.requires_grad for parameter in one.parameters())
    deviation = (one.cos_coefficients - torch.eye(one.fast)).std().item()
    assert deviation == pytest.approx(0.3 * (2 / (one.fast**2 + 4 * one.fast)) ** 0.5, rel=0.1)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"max_length": 6}, "max_length is 6: no pair completes a rotation"),
        ({"gain": -1.0}, r"gain is -1\.0: give 0 or more"),
    ],
)
def test_wrong_arguments_are_named(arguments: dict[str, float], said: str) -> None:
    with pytest.raises(HeadwayError, match=said):
        FoPE(4, 8, **arguments)  # type: ignore[arg-type]
