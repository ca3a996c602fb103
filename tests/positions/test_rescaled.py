"""What holds for every encoding that changes RoPE's frequencies: exact angles far out, lengths that are data."""

import copy
import math

import pytest
import torch

from headway.coordinates import Coordinates
from headway.errors import HeadwayError
from headway.positions import PositionEncoding, RoPE
from headway.positions._encodings.dynamic_interpolation import DynamicInterpolation
from headway.positions._encodings.dynamic_ntk import DynamicNTK
from headway.positions._encodings.hope import HoPE
from headway.positions._encodings.llama3 import Llama3
from headway.positions._encodings.longrope import LongRoPE
from headway.positions._encodings.ntk_aware import NTKAware
from headway.positions._encodings.ntk_by_parts import NTKByParts
from headway.positions._encodings.p_rope import ProportionalRoPE
from headway.positions._encodings.partial_rope import PartialRoPE
from headway.positions._encodings.position_interpolation import PositionInterpolation
from headway.positions._encodings.yarn import YaRN
from headway.positions._rescaled import Rescaled

FAMILY = (
    PartialRoPE,
    ProportionalRoPE,
    PositionInterpolation,
    NTKAware,
    NTKByParts,
    DynamicNTK,
    DynamicInterpolation,
    YaRN,
    LongRoPE,
    Llama3,
    HoPE,
)
EXAMPLES = [pytest.param(e, id=f"{kind.__name__}-{i}") for kind in FAMILY for i, e in enumerate(kind.examples())]
SCALINGS = [pytest.param(kind, id=kind.__name__) for kind in FAMILY if kind.kind == "scaling"]
FOLLOW_THE_LENGTH = [
    DynamicNTK(8, 2.5, 7),
    DynamicInterpolation(8, 7),
    LongRoPE(8, [1.0, 1.1, 1.3, 1.7], [1.0, 2.0, 3.5, 8.0], factor=8.0, max_length=7),
]


def spectrum(encoding: Rescaled, length: int = 1) -> torch.Tensor:
    return encoding.frequencies(Coordinates.span(1, length=length)).flatten()


@pytest.mark.parametrize("encoding", EXAMPLES)
def test_angles_are_exact_at_ten_million(encoding: Rescaled) -> None:
    """Cosines and sines of the prepared query, to 1e-6, whatever the encoding was cast to and under autocast."""
    far = 10_000_000
    where = Coordinates.of(torch.tensor([far]), 1)
    angles = [far * encoding.oracle_frequency(c, where) for c in range(encoding.pairs)]
    q = torch.zeros(1, 1, 1, encoding.head_dim)
    for first, _ in encoding.dimensions():
        q[..., first] = 1
    expected = q.flatten().double()
    for (first, second), angle in zip(encoding.dimensions(), angles, strict=True):
        expected[first], expected[second] = (encoding.magnitude * f(angle) for f in (math.cos, math.sin))
    for cast in (copy.deepcopy(encoding), copy.deepcopy(encoding).half(), copy.deepcopy(encoding).bfloat16()):
        torch.testing.assert_close(cast.prepare(q, where).flatten().double(), expected, atol=1e-6, rtol=0)
        with torch.autocast("cpu", torch.bfloat16):
            torch.testing.assert_close(cast.prepare(q, where).flatten().double(), expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("encoding", EXAMPLES)
def test_every_frequency_is_the_oracles(encoding: Rescaled) -> None:
    for length in (1, 7, 8, 40, 5000):
        where = Coordinates.span(1, length=length)
        expected = [encoding.oracle_frequency(c, where) for c in range(encoding.pairs)]
        assert spectrum(encoding, length).tolist() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("kind", SCALINGS)
def test_no_stretch_is_rope(kind: type[Rescaled]) -> None:
    encoding = kind(8) if kind in (DynamicNTK, DynamicInterpolation) else kind(8, factor=1.0)
    torch.testing.assert_close(spectrum(encoding), spectrum(RoPE(8, base=encoding.base)), rtol=1e-14, atol=0)
    assert encoding.magnitude == 1


@pytest.mark.parametrize("kind", SCALINGS)
def test_a_part_of_a_head_is_turned_as_a_whole_one(kind: type[Rescaled]) -> None:
    part, whole = kind(16, rotary_dim=8, layout="half"), kind(8, layout="half")
    x, at = torch.randn(1, 2, 3, 16), Coordinates.of(torch.tensor([0, 5, 9000]), 3)
    given = part.prepare(x, at)
    assert torch.equal(given[..., :8], whole.prepare(x[..., :8], at))
    assert torch.equal(given[..., 8:], x[..., 8:])


@pytest.mark.parametrize("encoding", FOLLOW_THE_LENGTH, ids=lambda e: type(e).__name__)
def test_the_length_is_data(encoding: Rescaled, score_gap) -> None:
    """One for the batch, one for each row, one for each token: documents of another length turn otherwise."""
    assert encoding.cache_prepared is False
    x = torch.randn(1, 1, 11, 8)
    packed = encoding.prepare(x, Coordinates.packed([3, 8]))
    alone = [encoding.prepare(part, Coordinates.span(part.shape[2])) for part in (x[:, :, :3], x[:, :, 3:])]
    assert torch.equal(packed, torch.cat(alone, dim=2))
    rows = encoding.prepare(x[:, :, :8].expand(2, 1, 8, 8), Coordinates.padded([5, 8], 8))
    assert torch.equal(rows[:1, :, 3:], encoding.prepare(x[:, :, 3:8], Coordinates.span(5)))
    assert torch.equal(rows[1:], encoding.prepare(x[:, :, :8], Coordinates.span(8)))
    assert score_gap(encoding, n=12) < 1e-12
    assert score_gap(encoding, torch.tensor([0, 3, 90, 91, 12, 1000])) < 1e-12


@pytest.mark.parametrize("encoding", FOLLOW_THE_LENGTH, ids=lambda e: type(e).__name__)
def test_up_to_the_trained_length_nothing_stretches(encoding: Rescaled) -> None:
    within = spectrum(encoding, 7)
    assert torch.equal(spectrum(encoding, 1), within)
    assert not torch.allclose(spectrum(encoding, 8), within)


def test_wrong_arguments_raise() -> None:
    for kind in (PositionInterpolation, NTKAware, NTKByParts, DynamicNTK, YaRN, LongRoPE, Llama3):
        with pytest.raises(HeadwayError, match=r"factor is 0\.5: give at least 1"):
            kind(8, factor=0.5)
        with pytest.raises(HeadwayError, match="factor is inf"):
            kind(8, factor=math.inf)
    for kind in (NTKByParts, DynamicNTK, DynamicInterpolation, YaRN, LongRoPE, Llama3, HoPE):
        with pytest.raises(HeadwayError, match="max_length is 0"):
            kind(8, max_length=0)
    for parameter in EXAMPLES:
        kind = type(parameter.values[0])
        with pytest.raises(HeadwayError, match=r"base is 1\.0: give a number above 1"):
            kind(8, base=1.0)
        with pytest.raises(HeadwayError, match="layout is 'neox'"):
            kind(8, layout="neox")


@pytest.mark.parametrize("encoding", EXAMPLES)
def test_a_name_and_sizes_are_enough(encoding: PositionEncoding) -> None:
    kind = type(encoding)
    for arguments in (kind(64).arguments(), encoding.arguments()):
        assert kind(**arguments).arguments() == arguments
