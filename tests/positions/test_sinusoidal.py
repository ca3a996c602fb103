"""Sinusoids: the formula, its variants, and what the formula implies."""

import math

import pytest
import torch
from torch import Tensor

from headway.errors import HeadwayError
from headway.positions import Sinusoidal


def codes(n: int, embed_dim: int, variant: str = "paper") -> Tensor:
    """PE(0 … n − 1) in float64: [n, embed_dim]"""
    return Sinusoidal(embed_dim, variant=variant).embed(torch.zeros(1, n, embed_dim, dtype=torch.float64))[0]


def test_numbers_by_hand() -> None:
    expected = [[0, 1, 0, 1], [math.sin(1), math.cos(1), math.sin(0.01), math.cos(0.01)]]
    torch.testing.assert_close(codes(2, 4), torch.tensor(expected, dtype=torch.float64))


def test_a_code_depends_on_its_own_position_alone() -> None:
    at = torch.tensor([7, 0, 7, 3])
    code = Sinusoidal(8).embed(torch.zeros(1, 4, 8, dtype=torch.float64), at)[0]
    torch.testing.assert_close(code, codes(10, 8)[at])


def test_the_second_variant_by_hand() -> None:
    """Concatenated; with two frequencies they are 1 and 1/base."""
    expected = [math.sin(1), math.sin(1e-4), math.cos(1), math.cos(1e-4)]
    torch.testing.assert_close(codes(2, 4, "tensor2tensor")[1], torch.tensor(expected, dtype=torch.float64))


def test_the_last_wavelength_of_the_second_variant_is_that_of_the_base() -> None:
    sine = codes(3, 64, "tensor2tensor")[2, 31]
    assert sine.item() == pytest.approx(math.sin(2 / 10000), abs=1e-15)


def test_the_two_grids_differ_by_seven_tenths() -> None:
    """At 512 dimensions and within 512 positions, in the sines at the same place of the grid."""
    difference = codes(512, 512)[:, 0::2] - codes(512, 512, "tensor2tensor")[:, :256]
    assert difference.abs().max().item() == pytest.approx(0.71, abs=0.005)


@pytest.mark.parametrize("k", [1, 7, 300])
def test_a_step_is_a_fixed_rotation(k: int) -> None:
    """PE(p + k) = R(k)·PE(p): one R for all p, which turns each pair of sine and cosine by k·ω."""
    pe = codes(400, 64)
    turns = [k * 10000 ** (-2 * c / 64) for c in range(32)]
    blocks = [[[math.cos(t), math.sin(t)], [-math.sin(t), math.cos(t)]] for t in turns]
    rotation = torch.block_diag(*torch.tensor(blocks, dtype=torch.float64))
    torch.testing.assert_close(rotation @ rotation.T, torch.eye(64, dtype=torch.float64))
    torch.testing.assert_close(pe[k:], pe[: 400 - k] @ rotation.T, atol=1e-11, rtol=0)


@pytest.mark.parametrize("variant", ["paper", "tensor2tensor"])
def test_products_know_the_distance_alone(variant: str) -> None:
    """⟨PE(p), PE(p + k)⟩ = Σ cos(kω), at every p, and the same for ±k."""
    n, width = 200, 32
    pe = codes(n, width, variant)
    rates = [10000 ** (-(2 * c / width if variant == "paper" else c / (width / 2 - 1))) for c in range(width // 2)]
    products = pe @ pe.T
    for k in (0, 1, 5, 60, 150):
        expected = sum(math.cos(k * w) for w in rates)
        for distance in (k, -k):
            along = products.diagonal(distance)
            torch.testing.assert_close(along, torch.full_like(along, expected), atol=1e-11, rtol=0)


@pytest.mark.parametrize(("width", "reach"), [(32, 4), (64, 5), (128, 11), (512, 43)])
def test_nearness_falls_only_so_far(width: int, reach: int) -> None:
    """The product with position 0 falls with every step up to this one."""
    products = codes(100, width) @ codes(1, width)[0]
    assert int((products.diff() >= 0).nonzero()[0]) == reach


def test_half_precision_has_exact_angles() -> None:
    """In bfloat16 the code is the rounded exact one, at positions that bfloat16 does not have."""
    at = torch.tensor([257, 4097, 100_003])
    exact = Sinusoidal(64).embed(torch.zeros(1, 3, 64, dtype=torch.float64), at)
    with torch.autocast("cpu", torch.bfloat16):
        given = Sinusoidal(64).bfloat16().embed(torch.zeros(1, 3, 64, dtype=torch.bfloat16), at)
    assert torch.equal(given, exact.bfloat16())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"embed_dim": 7}, "embed_dim is 7: .* an even one, such as 8"),
        ({"embed_dim": 0}, "embed_dim is 0: give at least 1"),
        ({"embed_dim": 8, "base": 1}, "base is 1: give a number above 1"),
        ({"embed_dim": 8, "base": math.nan}, "base is nan"),
        (
            {"embed_dim": 8, "variant": "fairseq"},
            "variant is 'fairseq': give 'paper', 'tensor2tensor' or 'concatenated'",
        ),
    ],
)
def test_wrong_arguments_raise(arguments: dict, said: str) -> None:
    with pytest.raises(HeadwayError, match=said):
        Sinusoidal(**arguments)


def test_embeddings_of_another_width_raise() -> None:
    with pytest.raises(HeadwayError, match="embed_dim=6"):
        Sinusoidal(8).embed(torch.zeros(1, 2, 6))


# ---------------------------------------------------------------- several axes


def grid(rows: int, columns: int) -> Tensor:
    """(row, column) of each patch, [1, rows·columns, 2], row by row."""
    return torch.cartesian_prod(torch.arange(rows), torch.arange(columns))[None]


def on_grid(encoding: Sinusoidal, at: Tensor) -> Tensor:
    x = torch.zeros(1, at.shape[1], encoding.embed_dim, dtype=torch.float64)
    return encoding.embed(x, at.double() if at.is_floating_point() else at)[0]


def test_each_axis_has_its_share_of_the_width() -> None:
    at = grid(5, 4)
    for variant in ("paper", "tensor2tensor", "concatenated"):
        found = on_grid(Sinusoidal(24, variant=variant, axes=2), at)
        for axis in range(2):
            alone = Sinusoidal(12, variant=variant).embed(torch.zeros(1, 20, 12, dtype=torch.float64), at[..., axis])[0]
            torch.testing.assert_close(found[:, 12 * axis : 12 * axis + 12], alone, atol=0, rtol=0)


def test_mae_literally() -> None:
    """He et al. 2022: on each axis [sin(p·ω) | cos(p·ω)], ω_c = 10000^(−c/(D/4)); columns first."""
    found = on_grid(Sinusoidal(16, variant="concatenated", axes=2), grid(3, 5).flip(-1))
    for patch in range(15):
        row, column = divmod(patch, 5)
        expected = []
        for p in (column, row):
            angles = [p * 10000 ** (-c / 4) for c in range(4)]
            expected += [*map(math.sin, angles), *map(math.cos, angles)]
        torch.testing.assert_close(found[patch], torch.tensor(expected, dtype=torch.float64))


def test_mae_is_that_of_transformers() -> None:
    package = pytest.importorskip("transformers.models.vit_mae.modeling_vit_mae")
    if not hasattr(package, "build_2d_sinusoidal_position_embedding"):
        pytest.skip("another version of transformers has it under another name")
    theirs = package.build_2d_sinusoidal_position_embedding(3, 5, 32, dtype=torch.float64)
    torch.testing.assert_close(on_grid(Sinusoidal(32, variant="concatenated", axes=2), grid(3, 5)), theirs)


@pytest.mark.parametrize("normalize", [False, True])
def test_detr_literally_and_as_in_transformers(normalize: bool) -> None:
    """Carion et al. 2020: on each axis sin, cos by turns, ω = 10000^(−2⌊t/2⌋/(D/2)); rows first, counted from 1."""
    rows, columns, share = 3, 5, 8
    at = grid(rows, columns).double() + 1
    if normalize:
        at = at / (torch.tensor([rows, columns]) + 1e-6) * 2 * math.pi
    found = on_grid(Sinusoidal(2 * share, axes=2), at)
    for patch in range(rows * columns):
        expected = []
        for p in at[0, patch].tolist():
            for t in range(share):
                angle = p / 10000 ** (2 * (t // 2) / share)
                expected.append(math.cos(angle) if t % 2 else math.sin(angle))
        torch.testing.assert_close(found[patch], torch.tensor(expected, dtype=torch.float64))
    package = pytest.importorskip("transformers.models.detr.modeling_detr")
    module = package.DetrSinePositionEmbedding(share, normalize=normalize)
    try:
        theirs = module(torch.Size([1, 2 * share, rows, columns]), torch.device("cpu"), torch.float64)
    except TypeError:
        pytest.skip("another version of transformers takes other arguments")
    torch.testing.assert_close(found, theirs[0].flatten(1).T)


@pytest.mark.parametrize(("width", "said"), [(30, "multiple of 4 for 2 axes, such as 32"), (31, "such as 32")])
def test_axes_that_do_not_divide_the_width(width: int, said: str) -> None:
    with pytest.raises(HeadwayError, match=said):
        Sinusoidal(width, axes=2)


def test_the_default_positions_have_one_axis() -> None:
    with pytest.raises(
        HeadwayError, match=r"positions have 1 axis but Sinusoidal reads 2: give positions \[batch, n, 2\]"
    ):
        Sinusoidal(16, axes=2).embed(torch.zeros(1, 9, 16))
