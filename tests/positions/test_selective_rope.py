"""Selective phases: the authors' numbers, where the convolution ends, the gate."""

import math

import pytest
import torch
from torch import Tensor

from headway.coordinates import Coordinates
from headway.errors import HeadwayError
from headway.positions._encodings.selective_rope import SelectiveRoPE


def wave(*shape: int, a: float, b: float = 0.0) -> Tensor:
    return torch.sin(a * torch.arange(math.prod(shape), dtype=torch.float64) + b).view(shape)


def phases(encoding: SelectiveRoPE, x: Tensor, at: Coordinates | None = None) -> Tensor:
    return encoding.turns(encoding.read(x), Coordinates.span(x.shape[1]) if at is None else at)


@pytest.mark.parametrize(
    ("gate", "expected"),
    [
        (
            False,
            [
                -0.97097,
                1.542736,
                0.146007,
                0.638129,
                0.317681,
                -0.91712,
                1.52284,
                -1.188314,
                0.760215,
                -0.501078,
                -1.067486,
                1.713477,
            ],
        ),
        (
            True,
            [
                -0.061225,
                -0.138306,
                0.376061,
                -0.025413,
                0.075934,
                -0.91712,
                1.701456,
                -1.187594,
                0.345001,
                -0.431078,
                -1.83905,
                1.713477,
            ],
        ),
    ],
)
def test_the_authors_code(gate: bool, expected: list[float]) -> None:
    """Numbers of SelectiveRoPE, timurcarstensen/selective-rope src/selective_rope/modules/rotary.py @ d12e825, row 5.

    Its short convolution and its norm were torch's, in place of the Triton ones. nn.Conv1d counts taps the other way.
    """
    encoding = SelectiveRoPE(8, 2, rank=3, gate=gate).double()
    encoding.down.data.copy_(2 * wave(3, 8, a=0.4))
    encoding.up.data.copy_(2 * wave(4, 3, a=0.9))
    encoding.taps.data.copy_(wave(4, 4, a=1.4).flip(-1))
    if gate:
        encoding.gate_weight.data.copy_(wave(2, 8, a=0.8))
        encoding.gate_bias.data.copy_(wave(2, a=1.0, b=0.5))
    q, k = (wave(1, 6, 2, 4, a=a).transpose(1, 2) for a in (0.7, 1.1))
    x = wave(1, 6, 8, a=0.6)
    at = encoding.place(Coordinates.span(6))
    q_at, k_at = encoding.relocate(at, at, x, x)
    found = (encoding.prepare_query(q, q_at) @ encoding.prepare_key(k, k_at).mT)[0, :, 5]
    assert found.flatten().tolist() == pytest.approx(expected, abs=5e-6)


def test_starts_and_settings_of_the_authors() -> None:
    encoding = SelectiveRoPE(64, 4)
    assert encoding.down.shape == (32, 64)
    assert encoding.taps.shape == (32, 4)
    assert encoding.base == 500000
    assert encoding.gate_weight is None


def test_the_convolution_stops_at_a_document_and_at_padding() -> None:
    encoding, x = SelectiveRoPE(8, 2).double(), torch.randn(1, 7, 8, dtype=torch.float64)
    torch.nn.init.normal_(encoding.taps)
    alone = phases(encoding, x[:, 2:])
    packed = phases(encoding, x, Coordinates.packed([2, 5]))
    torch.testing.assert_close(packed[:, :, 2:] - packed[:, :, 2:3], alone - alone[:, :, :1])
    torch.testing.assert_close(phases(encoding, x, Coordinates.padded([5], 7))[:, :, 2:], alone)
    whole = phases(encoding, x)
    assert not torch.allclose(whole[:, :, 2:] - whole[:, :, 2:3], alone - alone[:, :, :1])


def test_how_large_an_input_is_plays_no_part() -> None:
    """Each head's share is normed by itself."""
    encoding, x = SelectiveRoPE(8, 2).double(), torch.randn(1, 5, 8, dtype=torch.float64)
    scaled = x * torch.tensor([3.0] * 4 + [50.0] * 4)
    torch.testing.assert_close(phases(encoding, scaled), phases(encoding, x), atol=1e-5, rtol=1e-4)


def test_bad_arguments() -> None:
    with pytest.raises(HeadwayError, match="embed_dim is 9"):
        SelectiveRoPE(9, 2)
    with pytest.raises(HeadwayError, match="width is 0"):
        SelectiveRoPE(8, 2, width=0)
    with pytest.raises(HeadwayError, match="base is 1"):
        SelectiveRoPE(8, 2, base=1)
