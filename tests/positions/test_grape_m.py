"""Learned frequencies: where they start, which way they turn, the authors' numbers."""

import math

import pytest
import torch
from torch import Tensor

from headway.coordinates import Coordinates
from headway.errors import HeadwayError
from headway.positions import RoPE
from headway.positions._encodings.grape_m import GRAPEM


def wave(*shape: int, a: float) -> Tensor:
    return torch.sin(a * torch.arange(math.prod(shape), dtype=torch.float64)).view(shape)


def last_row(encoding: GRAPEM) -> list[float]:
    q, k = (encoding.prepare(wave(1, 6, 2, 4, a=a).transpose(1, 2), Coordinates.span(6)) for a in (0.7, 1.1))
    return (q @ k.mT)[0, :, 5].flatten().tolist()


def test_the_authors_code() -> None:
    """Numbers of MSGRAPECommuting, model-architectures/GRAPE model/llama-mha-grape-m-nonctx.py @ f5b539f."""
    shared = GRAPEM(4)
    assert shared.log_frequencies.tolist() == pytest.approx([0.0, -73.682724])
    shared.log_frequencies.data += torch.tensor([3.0, -5.0])
    expected = [-0.901172, 1.005842, -0.196889, -0.271372, 0.338014, -0.91712]
    expected += [1.763979, -1.199306, 0.786095, -0.177088, -1.085168, 1.713477]
    assert last_row(shared) == pytest.approx(expected, abs=5e-6)
    apart = GRAPEM(4, num_heads=2, log_scale=1.0, per_head=True)
    apart.log_frequencies.data += torch.tensor([[0.3, -0.5], [0.1, 0.2]])
    expected = [-0.993683, 1.501758, -0.678789, -0.1704, 0.347911, -0.91712]
    expected += [1.772883, -1.105921, 0.692462, 0.00496, -1.195991, 1.713477]
    assert last_row(apart) == pytest.approx(expected, abs=5e-6)


def test_starts_as_rope_turned_the_other_way() -> None:
    x, at = torch.randn(2, 3, 5, 8, dtype=torch.float64), torch.tensor([0, 1, 5, 90, 2000])
    mirrored = RoPE(8, layout="half").prepare(x, Coordinates.of(-at, 5))
    torch.testing.assert_close(GRAPEM(8).prepare(x, Coordinates.of(at, 5)), mirrored, atol=1e-4, rtol=0)
    exact = GRAPEM(8).double()
    exact.log_frequencies.data.copy_(16 * (10000.0 ** (-torch.arange(0, 8, 2).double() / 8)).log())
    torch.testing.assert_close(exact.prepare(x, Coordinates.of(at, 5)), mirrored)


def test_bad_arguments() -> None:
    with pytest.raises(HeadwayError, match="num_heads is None with per_head=True"):
        GRAPEM(8, per_head=True)
    with pytest.raises(HeadwayError, match="log_scale is 0"):
        GRAPEM(8, log_scale=0)
