"""YaRN: the ramp that code has, the ramp that the paper writes, and what makes attention sharper."""

import math

import pytest
import torch

from headway.coordinates import Coordinates
from headway.errors import HeadwayError
from headway.positions import RoPE
from headway.positions._encodings.ntk_by_parts import NTKByParts
from headway.positions._encodings.yarn import YaRN

AT = Coordinates.span(1)
# jquesnelle/yarn (the authors'), scaled_rope/LlamaYaRNScaledRotaryEmbedding.py at 995db5b, run in float64:
# dim 16, base 10000, scale 16, original length 256; dim 32, base 500000, scale 4, length 4096, betas 16 and 2
AUTHORS = [
    1.0,
    0.242111883357,
    0.053125,
    0.00938801180362,
    0.000625,
    0.000197642353761,
    6.25e-05,
    1.97642353761e-05,
]
AUTHORS_MU = 1.2772588722239782
OTHERS = [
    1.0,
    0.440366602672,
    0.193922744749,
    0.0853971002858,
    0.0376060309309,
    0.0134553575658,
    0.00455791546076,
    0.0014050076227,
    0.000353553390593,
    0.000155693105479,
    6.85620439191e-05,
    3.01924343529e-05,
    1.32957397424e-05,
    5.85499974035e-06,
    2.5783463443e-06,
    1.13541762015e-06,
]
OTHERS_MU = 1.138629436111989


def test_numbers_of_the_authors_code() -> None:
    ours = YaRN(16, 16.0, 256)
    assert ours.frequencies(AT).tolist() == pytest.approx(AUTHORS, rel=1e-11)
    assert ours.magnitude == pytest.approx(AUTHORS_MU, rel=1e-14)
    ours = YaRN(32, 4.0, 4096, 5e5, beta_fast=16, beta_slow=2)
    assert ours.frequencies(AT).tolist() == pytest.approx(OTHERS, rel=1e-11)
    assert ours.magnitude == pytest.approx(OTHERS_MU, rel=1e-14)


@pytest.mark.parametrize(
    ("width", "base", "length", "low", "high"),
    [(128, 1e4, 4096, 20, 46), (64, 1e4, 2048, 8, 21), (128, 1e6, 32768, 23, 40)],
)
def test_where_the_ramp_begins_and_ends(width: int, base: float, length: int, low: int, high: int) -> None:
    encoding = YaRN(width, 16.0, length, base)
    kept = encoding.kept(encoding.theta(AT))
    assert (kept == 1).tolist() == [c <= low for c in range(width // 2)]
    assert (kept == 0).tolist() == [c >= high for c in range(width // 2)]
    steps = kept[low : high + 1].diff()
    torch.testing.assert_close(steps, steps[:1].expand_as(steps), rtol=1e-9, atol=0)


def test_the_paper_s_ramp_is_another() -> None:
    code, paper = (YaRN(128, 16.0, 4096, ramp=ramp).frequencies(AT) for ramp in ("code", "paper"))
    assert torch.equal(paper, NTKByParts(128, 16.0, 4096).frequencies(AT))
    ratio = torch.maximum(code / paper, paper / code)
    assert ratio.max().item() == pytest.approx(3.04, abs=0.005)  # 204 % more
    assert (ratio > 1.01).sum() == 25


def test_the_magnitude_is_squared_in_a_score() -> None:
    q = torch.tensor([1.0, 0, 0, 0], dtype=torch.float64)[None, None, None]
    at = Coordinates.of(torch.tensor([3]), 1)
    turned = YaRN(4, 8.0, 64).prepare(q, at).flatten()
    assert (turned @ turned).item() == pytest.approx((0.1 * math.log(8) + 1) ** 2, rel=1e-14)


def test_what_is_not_turned_keeps_its_size() -> None:
    x = torch.randn(1, 1, 3, 16)
    assert torch.equal(YaRN(16, rotary_dim=8).prepare(x, Coordinates.span(3))[..., 8:], x[..., 8:])


def test_corners_without_rounding() -> None:
    """gpt-oss: low and high as they are, so that the ramp is narrower."""
    rounded, exact = (YaRN(64, 32.0, 4096, 150000.0, truncate=t) for t in (True, False))
    assert not torch.equal(rounded.frequencies(AT), exact.frequencies(AT))
    low, high = (64 * math.log(4096 / (2 * math.pi * b)) / (2 * math.log(150000.0)) for b in (32, 1))
    kept = exact.kept(exact.theta(AT))
    c = math.ceil(low)
    assert kept[c].item() == pytest.approx((high - c) / (high - low), rel=1e-12)


def test_a_ramp_beyond_the_last_pair_keeps_all() -> None:
    assert torch.equal(YaRN(8, 4.0, 10**6, base=10.0).frequencies(AT), RoPE(8, base=10.0).frequencies(AT))


def test_what_decides_the_magnitude() -> None:
    usual = 0.1 * math.log(40) + 1
    assert YaRN(8, 40.0).magnitude == usual
    assert YaRN(8, 40.0, attention_factor=1.5, mscale=2.0, mscale_all_dim=1.0).magnitude == 1.5
    assert YaRN(8, 40.0, mscale=0.707).magnitude == usual
    both = YaRN(8, 40.0, mscale=0.707, mscale_all_dim=0.5)
    assert both.magnitude == pytest.approx((0.0707 * math.log(40) + 1) / (0.05 * math.log(40) + 1), rel=1e-14)


@pytest.mark.parametrize("all_dim", [1.0, 0.707])
def test_scores_are_scaled_as_deepseeks(all_dim: float) -> None:
    package = pytest.importorskip("transformers.models.deepseek_v3.modeling_deepseek_v3")
    expected = package.yarn_apply_mscale({"rope_type": "yarn", "factor": 40.0, "mscale_all_dim": all_dim}, 192**-0.5)
    ours = YaRN(192, 40.0, rotary_dim=64, mscale=1.0, mscale_all_dim=all_dim, scale_scores=True)
    assert ours.default_scale(192) == pytest.approx(expected, rel=1e-14)
    assert YaRN(192, 40.0, mscale=1.0, mscale_all_dim=all_dim).default_scale(192) == 192**-0.5


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"ramp": "linear"}, "ramp is 'linear': give 'code' or 'paper'"),
        (
            {"max_length": 6},
            "max_length is 6 and beta_slow 1.0: no pair turns as often within the length, give",
        ),
        ({"beta_slow": 0.0}, "beta_slow 0.0: no pair turns"),
        ({"attention_factor": 0.0}, "attention_factor is 0.0: give a number above 0, or None"),
        ({"mscale": -1.0}, "mscale is -1.0"),
        ({"scale_scores": True}, "scale_scores is True and mscale_all_dim None: give mscale_all_dim, such as 1.0"),
        ({"beta_fast": 1.0}, "beta_fast is 1.0 and beta_slow 1.0"),
    ],
)
def test_wrong_arguments_raise(arguments: dict, said: str) -> None:
    with pytest.raises(HeadwayError, match=said):
        YaRN(8, **arguments)


def test_a_short_length_has_the_paper_s_ramp() -> None:
    assert torch.equal(YaRN(8, 4.0, 4, ramp="paper").frequencies(AT), RoPE(8).frequencies(AT) / 4)


def test_the_oracle_keeps_what_the_code_keeps_where_the_first_pairs_turn_fast() -> None:
    """The ramp begins behind the first pair, as in no example."""
    wide = YaRN(32, 4.0, 4096, 500000.0, beta_fast=16.0, beta_slow=2.0)
    kept = wide.kept(torch.ones(16, dtype=torch.float64)).tolist()
    assert kept.count(1.0) > 1
    assert [wide.oracle_gamma(c) for c in range(16)] == pytest.approx(kept)
