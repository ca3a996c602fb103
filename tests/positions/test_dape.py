"""Scores and biases through one network: the authors' numbers, other biases, gradients to them."""

import math

import pytest
import torch
from torch import Tensor

from headway import attention, attention_steps
from headway.coordinates import Coordinates
from headway.errors import HeadwayError
from headway.kernels import reference
from headway.masks import Boolean, Causal
from headway.positions import ENCODINGS, FIRE, ALiBi, KERPLELog, PositionEncoding, RoPE
from headway.positions._encodings.dape import DAPE
from headway.terms import DistanceBias
from headway.testing import ENCODING_CHECKS


def wave(*shape: int, a: float) -> Tensor:
    return torch.sin(a * torch.arange(math.prod(shape), dtype=torch.float64)).view(shape)


def mapped(encoding: PositionEncoding, z: Tensor) -> Tensor:
    """The scores that come of scores z [1, heads, n, n] under a causal mask."""
    q, k = z, torch.eye(z.shape[-1], dtype=z.dtype).expand(z.shape)
    return attention_steps(q, k, k, encoding=encoding, mask=Causal(), scale=1.0).scaled


def filled(encoding: DAPE) -> DAPE:
    encoding = encoding.double()
    for parameter, a in (
        (encoding.into, 0.3),
        (encoding.into_bias, 0.5),
        (encoding.out, 0.8),
        (encoding.out_bias, 0.6),
    ):
        parameter.data.copy_(wave(*parameter.shape, a=a))
    return encoding


def test_the_authors_code() -> None:
    """Numbers of AliBi_DAPE, chuanyang-Zheng/DAPE DAPE.py @ bde344a, pairs (3, 2) and (5, 2)."""
    found = mapped(filled(DAPE(4, hidden=5)), wave(1, 4, 6, 6, a=1.3))[0, :, [3, 5], 2]
    expected = [2.326092, 0.482374, -0.213613, 0.767908, -0.419597, -1.106363, 3.30407, 3.240377]
    assert found.flatten().tolist() == pytest.approx(expected, abs=2e-6)


def test_starts_as_linear_layers_do() -> None:
    encoding = DAPE(8)
    assert encoding.into.shape == (32, 16, 1)
    assert encoding.into.abs().max() <= 1 / 4
    assert encoding.out.abs().max() <= 1 / math.sqrt(32)


def speaks_distance_biases_alone(encoding: PositionEncoding) -> bool:
    if "terms" not in encoding.acts or encoding.acts - {"terms", "locate"} or encoding.reads_input:
        return False
    at = encoding.place(Coordinates.span(4, axes=encoding.axes or 1))
    return all(isinstance(term, DistanceBias) for term in encoding.terms(at, at))


BIASES = [name for name, kind in ENCODINGS.items() if speaks_distance_biases_alone(kind.examples()[0])]


@pytest.mark.parametrize("name", BIASES)
def test_a_network_of_zeros_leaves_the_bias(name: str) -> None:
    """Then it is the other encoding, packed documents, rows of a batch and blocks of rows included."""
    bias = ENCODINGS[name].examples()[0]
    heads = bias.num_heads
    for parameter in bias.parameters():
        torch.nn.init.normal_(parameter)
    encoding = DAPE(heads, bias=bias)
    torch.nn.init.zeros_(encoding.out)
    torch.nn.init.zeros_(encoding.out_bias)
    q, k, v = torch.randn(3, 2, heads, 7, 8)
    at = torch.stack([torch.arange(7), torch.tensor([0, 1, 2, 0, 1, 2, 30])])
    positions = at[..., None].expand(-1, -1, bias.axes or 1)
    found, expected = (
        attention(q, k, v, encoding=e, mask=Causal(), q_positions=positions, k_positions=positions, scale=1.0)
        for e in (encoding, bias)
    )
    torch.testing.assert_close(found, expected)


def test_a_mask_of_its_own_for_each_head_is_heard() -> None:
    """What a head may not see reads as 0, whatever it holds."""
    allowed = torch.ones(1, 4, 6, 6, dtype=torch.bool)
    allowed[:, 2, 4:, 1] = False
    encoding, z = filled(DAPE(4, hidden=5)), wave(1, 4, 6, 6, a=1.3)
    other = z.clone()
    other[:, 2, 4:, 1] += 3
    k = torch.eye(6, dtype=z.dtype).expand(z.shape)
    mask = Causal() & Boolean(allowed)
    a, b = (attention(q, k, k, encoding=encoding, mask=mask, scale=1.0) for q in (z, other))
    torch.testing.assert_close(a, b)


@pytest.mark.parametrize("kind", [KERPLELog, FIRE])
def test_the_papers_other_biases(kind: type[PositionEncoding], monkeypatch: pytest.MonkeyPatch) -> None:
    bias = kind(num_heads=4)
    for check in ("matches_its_formula", "every_gradient_is_there", "packed_equals_separate"):
        ENCODING_CHECKS[check](DAPE(4, bias=bias, hidden=3))
    monkeypatch.setattr(reference, "BLOCK", 64)
    x = torch.randn(3, 1, 4, 9, 8, dtype=torch.float64)
    encoding = DAPE(4, bias=bias, hidden=3).double()
    blocks = attention(*x, encoding=encoding, mask=Causal())
    monkeypatch.setattr(reference, "BLOCK", 1 << 21)
    torch.testing.assert_close(blocks, attention(*x, encoding=encoding, mask=Causal()))


def test_bad_arguments() -> None:
    with pytest.raises(HeadwayError, match="adds only biases"):
        DAPE(4, bias=RoPE(8))
    with pytest.raises(HeadwayError, match="hidden is 0"):
        DAPE(4, hidden=0)
    q = torch.randn(1, 3, 5, 8)
    with pytest.raises(HeadwayError, match="num_heads=3"):
        attention(q, q, q, encoding=DAPE(4), mask=Causal())
    assert isinstance(DAPE(4).bias, ALiBi)
