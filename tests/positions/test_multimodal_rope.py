"""Rotary positions of text, images and videos: the orders of axes, the authors' numbers."""

import math

import pytest
import torch
from torch import Tensor

from headway.coordinates import Coordinates
from headway.errors import HeadwayError
from headway.positions import InterleavedMRoPE, MRoPE, MultimodalRoPE, RoPE

IDS = torch.tensor([[3, 2, 4], [3, 4, 1], [5, 9, 7]])
"""The positions of three tokens, as (time, row, column)."""
# in float64, the last of these three tokens, head_dim 16 and base 10000, of sections (2, 3, 3):
# apply_m_modify_multimodal_rotary_pos_emb of Wiselnn570/VideoRoPE, modeling_videorope.py at 7712ca3, and
# apply_hybrid_multimodal_rotary_pos_emb of hrlics/HoPE, modeling_hope.py at 85b76c0
THEIRS = {
    "videorope": [
        0.25057973055551,
        0.867124930766273,
        0.102915710995004,
        -0.364464753844022,
        0.118860253556862,
        0.69213590283881,
        0.99110150827001,
        0.82575167029434,
        -0.41067050777428,
        -0.46900313311247,
        -1.32227281465741,
        -1.07392037669481,
        -0.569336313364891,
        0.0993186178919897,
        0.711133833228153,
        0.997548803176505,
    ],
    "vlm-hope": [
        0.25057973055551,
        0.867124930766273,
        0.102915710995004,
        -0.364464753844022,
        0.118860253556862,
        0.69213590283881,
        0.994644773877838,
        0.827327900595381,
        -0.41067050777428,
        -0.46900313311247,
        -1.32227281465741,
        -1.07392037669481,
        -0.569336313364891,
        0.0993186178919897,
        0.706169457180329,
        0.996241928754864,
    ],
}


def wave(*shape: int, a: float) -> Tensor:
    return torch.sin(a * torch.arange(math.prod(shape), dtype=torch.float64)).view(shape)


def letters(order: str | tuple[int, ...], head_dim: int = 128) -> str:
    (axes,) = MultimodalRoPE(head_dim, order).axis_of_pair
    return "".join("THW-"[axis] for axis in axes)


@pytest.mark.parametrize("order", THEIRS)
def test_the_authors_numbers(order: str) -> None:
    found = MultimodalRoPE(16, order, base=1e4).prepare(wave(1, 1, 3, 16, a=0.7), Coordinates.of(IDS[None], 3))
    torch.testing.assert_close(found[0, 0, 2], torch.tensor(THEIRS[order], dtype=torch.float64), atol=1e-12, rtol=0)


def test_the_released_orders() -> None:
    """Besides the two above: MM-RoPE and MHRoPE as JJJYmmm/Multimodal-RoPEs has them at cd413b9 (the authors of
    MHRoPE), VRoPE as johncaged/VRoPE at 6a7adbc has it."""
    assert letters("videorope") == 24 * "HW" + 16 * "T"
    assert letters("vlm-hope") == 24 * "HW" + 16 * "-"
    assert letters("mm-rope", 32) == 2 * "TTHWHWHW"
    assert MultimodalRoPE(12, "vrope").axis_of_pair == [[0, 1, 2, 3, 0, 1]]
    by_head = MultimodalRoPE(4, "mhrope", num_heads=32, num_kv_heads=8).axis_of_pair
    assert by_head == [[0, 0], [0, 0], [1, 1], [1, 1], [1, 1], [2, 2], [2, 2], [2, 2]]


def test_an_order_of_ones_own() -> None:
    at = Coordinates.of(torch.randint(50, (1, 5, 3)), 5)
    x = torch.randn(1, 2, 5, 128, dtype=torch.float64)
    for plain in (MRoPE(), InterleavedMRoPE(base=1e6)):
        assert torch.equal(MultimodalRoPE(128, plain.axis_of_pair).prepare(x, at), plain.prepare(x, at))


@pytest.mark.parametrize("order", ["videorope", "mm-rope", "vrope", "mhrope"])
def test_text_is_turned_as_by_rope(order: str) -> None:
    encoding = MultimodalRoPE(16, order, num_heads=4, base=1e4)
    numbers, x = torch.tensor([0, 1, 7, 4000]), torch.randn(1, 4, 4, 16, dtype=torch.float64)
    same = Coordinates.of(numbers[None, :, None].expand(1, 4, encoding.axes), 4)
    expected = RoPE(16, layout="half").prepare(x, Coordinates.of(numbers, 4))
    assert torch.equal(encoding.prepare(x, same), expected)


def test_heads_of_mhrope_read_one_axis_each() -> None:
    encoding = MultimodalRoPE(4, "mhrope", num_heads=6, num_kv_heads=3)
    x = torch.randn(1, 6, 1, 4, dtype=torch.float64)
    at = [Coordinates.of(torch.tensor([[p]]), 1) for p in ([5, 0, 0], [0, 5, 0], [0, 0, 5])]
    changed = [[not torch.equal(encoding.prepare(x, p)[0, h], x[0, h]) for h in range(6)] for p in at]
    assert changed == [[h // 2 == axis for h in range(6)] for axis in range(3)]
    keys = x[:, ::2]
    assert torch.equal(encoding.prepare(keys, at[1])[0, 1], encoding.prepare(x, at[1])[0, 2])


def test_time_has_no_effect_in_vlm_hope() -> None:
    x, later = torch.randn(1, 1, 3, 16), IDS + torch.tensor([100, 0, 0])
    encoding = MultimodalRoPE(16, "vlm-hope")
    first, second = (encoding.prepare(x, Coordinates.of(ids[None], 3)) for ids in (IDS, later))
    assert torch.equal(first, second)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"order": "video"}, "there is no order 'video': did you mean 'videorope'?"),
        ({"order": (0, 1, 2)}, "order has 3 axes: give one for each of the 4 pairs"),
        ({"order": (0, 1, 2, -2)}, r"order is \(0, 1, 2, -2\): give axes from 0 on"),
        ({"order": "mhrope"}, "num_heads is None with order='mhrope'"),
        ({"order": "mhrope", "num_heads": 4, "num_kv_heads": 3}, "num_kv_heads is 3: give a divisor of num_heads, 4"),
    ],
)
def test_wrong_arguments_are_named(arguments: dict[str, object], said: str) -> None:
    with pytest.raises(HeadwayError, match=said):
        MultimodalRoPE(8, **arguments)  # type: ignore[arg-type]
