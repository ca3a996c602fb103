"""The positions of texts with images and videos: the authors' numbers by scheme."""

from typing import Any

import pytest
import torch

from headway import attention
from headway.errors import HeadwayError
from headway.positions import MultimodalRoPE, multimodal_positions

PARTS = [3, (1, 2, 3), 2, (3, 2, 2), 2]
"""Three words, an image of 2 × 3 patches, two words, a video of 3 frames of 2 × 2, two words."""
# get_t_scale_rope_index of Wiselnn570/VideoRoPE at 7712ca3; VRoPE of johncaged/VRoPE at 6a7adbc; the others from
# JJJYmmm/Multimodal-RoPEs at cd413b9, in float32: get_mrope_index, get_mmrope_index, get_omnirope_index (as
# get_mrope_interleave_index with spatial_reset), get_circlerope_index with the options of lose4578/CircleRoPE,
# and get_v2pe_index
THEIRS: dict[str, tuple[dict[str, Any], str]] = {
    "m-rope": (
        {"stride": 2.0},
        (
            "0 0 0, 1 1 1, 2 2 2, 3 3 3, 3 3 4, 3 3 5, 3 4 3, 3 4 4, 3 4 5, 6 6 6, 7 7 7, 8 8 8, 8 8 9, 8 9 "
            "8, 8 9 9, 10 8 8, 10 8 9, 10 9 8, 10 9 9, 12 8 8, 12 8 9, 12 9 8, 12 9 9, 13 13 13, 14 14 14"
        ),
    ),
    "m-rope by axis": (
        {"stride": (2.0, 0.5, 1.5)},
        (
            "0 0 0, 1 1 1, 2 2 2, 3 3 3, 3 3 4.5, 3 3 6, 3 3.5 3, 3 3.5 4.5, 3 3.5 6, 7 7 7, 8 8 8, 9 9 9, 9 "
            "9 10.5, 9 9.5 9, 9 9.5 10.5, 11 9 9, 11 9 10.5, 11 9.5 9, 11 9.5 10.5, 13 9 9, 13 9 10.5, 13 9.5 "
            "9, 13 9.5 10.5, 14 14 14, 15 15 15"
        ),
    ),
    "reset": (
        {},
        (
            "0 0 0, 1 1 1, 2 2 2, 3 0 0, 3 0 1, 3 0 2, 3 1 0, 3 1 1, 3 1 2, 6 6 6, 7 7 7, 8 0 0, 8 0 1, 8 1 "
            "0, 8 1 1, 9 0 0, 9 0 1, 9 1 0, 9 1 1, 10 0 0, 10 0 1, 10 1 0, 10 1 1, 11 11 11, 12 12 12"
        ),
    ),
    "videorope": (
        {"stride": 2.0},
        (
            "0 0 0, 1 1 1, 2 2 2, 3 3 2, 3 3 3, 3 3 4, 3 4 2, 3 4 3, 3 4 4, 4 4 4, 5 5 5, 6 6 6, 6 6 7, 6 7 "
            "6, 6 7 7, 8 8 8, 8 8 9, 8 9 8, 8 9 9, 10 10 10, 10 10 11, 10 11 10, 10 11 11, 11 11 11, 12 12 12"
        ),
    ),
    "circle": (
        {},
        (
            "0 0 0, 1 1 1, 2 2 2, 3 10.0710678 -4.07106781, 10.5274734 1.97540021 -3.50287342, 8.83187103 "
            "-4.86487103 5.03299999, -5.16496658 7.08248329 7.08248329, -5.10042381 6.16288471 7.9375391, "
            "-4.90781832 5.19327927 8.71453857, 11.5274734 11.5274734 11.5274734, 12.5274734 12.5274734 "
            "12.5274734, 13.5274734 20.5985413 6.45640564, 21.4142265 7.7539711 11.4142237, 5.36250687 "
            "17.6099567 17.6099567, 5.64072132 15.6407232 19.3009758, 14.5274734 21.5985413 7.45640564, "
            "22.4142265 8.7539711 12.4142237, 6.36250687 18.6099567 18.6099567, 6.64072132 16.6407242 "
            "20.3009758, 15.5274734 22.5985413 8.45640564, 23.4142265 9.7539711 13.4142237, 7.36250687 "
            "19.6099567 19.6099567, 7.64072132 17.6407242 21.3009758, 24.4142265 24.4142265 24.4142265, "
            "25.4142265 25.4142265 25.4142265"
        ),
    ),
    "vrope": (
        {},
        (
            "0 0 0 0, 1 1 1 1, 2 2 2 2, 3 5 4 6, 4 4 5 5, 5 3 6 4, 4 6 3 5, 5 5 4 4, 6 4 5 3, 7 7 7 7, 8 8 8 "
            "8, 9 10 10 11, 10 9 11 10, 10 11 9 10, 11 10 10 9, 12 13 13 14, 13 12 14 13, 13 14 12 13, 14 13 "
            "13 12, 15 16 16 17, 16 15 17 16, 16 17 15 16, 17 16 16 15, 18 18 18 18, 19 19 19 19"
        ),
    ),
    "v2pe of the image": (
        {"stride": 0.6666666666666666},
        ("0, 1, 2, 2.66666675, 3.33333325, 4, 4.66666651, 5.33333349, 6, 7, 8"),
    ),
}


@pytest.mark.parametrize("scheme", THEIRS)
def test_the_authors_numbers(scheme: str) -> None:
    options, rows = THEIRS[scheme]
    expected = torch.tensor([[float(x) for x in row.split()] for row in rows.split(", ")], dtype=torch.float64)
    found = multimodal_positions(PARTS, scheme.partition(" ")[0], **options)[: len(expected)]
    torch.testing.assert_close(found.double(), expected, atol=4e-6, rtol=0)


@pytest.mark.parametrize("scheme", ["m-rope", "reset", "videorope", "v2pe", "circle", "vrope"])
def test_text_alone_is_counted(scheme: str) -> None:
    found = multimodal_positions([2, 3], scheme)
    assert torch.equal(found, torch.arange(5)[:, None].expand(5, found.shape[1]).to(found.dtype))
    assert found.dtype == (torch.float64 if scheme == "circle" else torch.int64)


def test_a_circle_is_at_a_right_angle_to_the_text() -> None:
    """The patches are at the radius from the point of the text's line where they begin, and at equal heights on it."""
    own = multimodal_positions([4, (1, 3, 5)], "circle", radius=7.0, alpha=1.0)[4:] - 4
    torch.testing.assert_close(own.norm(dim=-1), torch.full((15,), 7.0, dtype=torch.float64))
    torch.testing.assert_close(own.sum(-1), torch.zeros(15, dtype=torch.float64), atol=1e-12, rtol=0)


def test_text_after_an_image_of_v2pe_is_at_the_next_whole_number() -> None:
    assert multimodal_positions([2, (1, 1, 4), 1], "v2pe", 0.3)[-1].item() == 4
    assert multimodal_positions([1, (1, 2, 5), 1], "v2pe", 1.1)[-1].item() == 12  # 10 steps of 1.1 are 11


def test_a_single_patch_has_a_place_on_the_circle() -> None:
    assert bool(multimodal_positions([(2, 1, 1)], "circle").isfinite().all())


def test_a_call_takes_them() -> None:
    positions = multimodal_positions(PARTS, "videorope", stride=2.0)
    q, k, v = torch.randn(3, 1, 2, len(positions), 16)
    encoding = MultimodalRoPE(16)
    out = attention(q, k, v, encoding=encoding, q_positions=positions[None], k_positions=positions[None])
    assert out.shape == q.shape


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (([3], "circle-rope"), "there is no scheme 'circle-rope': did you mean 'circle'?"),
        (([3, (2, 2)],), r"a part is \(2, 2\): give a number of tokens, or frames, rows and columns"),
        (([3, (1, 0, 2)],), r"a part is \(1, 0, 2\): give numbers of at least 1"),
        (([True],), "a part is True: give a number of tokens, or frames"),
        (([1.5],), r"a part is 1\.5: give a number of tokens, or frames"),
        (([0],), "a part is 0: give numbers of at least 1"),
        (([3], "reset", (1.0, 1.0, 1.0)), r"stride is \(1\.0, 1\.0, 1\.0\) for 'reset': give one number"),
        (([3], "videorope", 0.0), r"stride is 0\.0, radius 10\.0 and alpha 0\.5: give a stride"),
    ],
)
def test_wrong_arguments_are_named(arguments: tuple, said: str) -> None:
    with pytest.raises(HeadwayError, match=said):
        multimodal_positions(*arguments)
