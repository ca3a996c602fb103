"""KERPLE's logarithm."""

import pytest
import torch
from torch import Tensor

from headway.coordinates import Coordinates
from headway.errors import HeadwayError
from headway.positions._encodings.kerple_log import KERPLELog
from headway.properties import Pairs


def bias(encoding: KERPLELog, n: int) -> Tensor:
    at = Coordinates.span(n)
    zeros = torch.zeros(encoding.num_heads, n, 4, dtype=torch.float64)
    return Pairs(encoding.double(), zeros, zeros, at, at).scores().detach()


def given(weight: list[float], rate: list[float]) -> KERPLELog:
    encoding = KERPLELog(len(weight)).double()
    encoding.raw_weight.data = KERPLELog.raw(torch.tensor(weight, dtype=torch.float64))
    encoding.raw_rate.data = KERPLELog.raw(torch.tensor(rate, dtype=torch.float64))
    return encoding


def test_the_authors_numbers() -> None:
    """ParallelKerpleLog of chijames/KERPLE, megatron/mpu/layers.py at 25be3d7: the last of 6 queries, 2 heads."""
    expected = [
        [-1.17835021, -0.99923733, -0.79900617, -0.5720028, -0.30994665, 0.0],
        [-0.51142443, -0.45781689, -0.39249985, -0.30888583, -0.19255617, 0.0],
    ]
    found = bias(given([1.7, 0.3], [0.2, 0.9]), 6)
    torch.testing.assert_close(found[:, -1], torch.tensor(expected, dtype=torch.float64), atol=1e-8, rtol=0)
    torch.testing.assert_close(found, found.mT)  # both directions alike


def test_it_starts_where_the_paper_starts() -> None:
    torch.manual_seed(0)
    encoding = KERPLELog(4000)
    (term,) = encoding.terms(Coordinates.span(1), Coordinates.span(1))
    for effective, top in ((term.values.weight, 2), (term.values.rate, 1)):
        assert 0.0099 < effective.min() < 0.02
        assert 0.99 * top < effective.max() <= top
        assert abs(effective.mean() - top / 2) < 0.03 * top


def test_a_step_never_makes_a_weight_negative() -> None:
    encoding = KERPLELog(3)
    torch.nn.init.constant_(encoding.raw_weight, -80.0)
    (term,) = encoding.terms(Coordinates.span(1), Coordinates.span(1))
    assert (term.values.weight > 0).all()
    term.values.rate.sum().backward()
    assert (encoding.raw_rate.grad > 0).all()


def test_no_heads_raise() -> None:
    with pytest.raises(HeadwayError, match="num_heads is 0: give at least 1"):
        KERPLELog(0)
