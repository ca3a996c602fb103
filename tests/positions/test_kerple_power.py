"""KERPLE's power, with and without its weight kernel."""

import math

import pytest
import torch
from torch import Tensor

import headway as hw
from headway.coordinates import Coordinates
from headway.errors import HeadwayError
from headway.positions._encodings.kerple_power import KERPLEPower
from headway.properties import Pairs


def given(**values: list[float]) -> KERPLEPower:
    encoding = KERPLEPower(2, weight_kernel="decay" in values).double()
    for name, value in values.items():
        raw = KERPLEPower.raw_power if name.endswith("exponent") else KERPLEPower.raw
        getattr(encoding, f"raw_{name}").data = raw(torch.tensor(value, dtype=torch.float64))
    return encoding


def scores(encoding: KERPLEPower, content: Tensor) -> Tensor:
    """The scores of 5 tokens that score ``content`` without an encoding."""
    at, q = Coordinates.span(5), torch.eye(5, dtype=torch.float64).expand(2, 5, 5)
    return Pairs(encoding, q * math.sqrt(5), content.mT, at, at).scores().detach()


BIAS = {"weight": [0.4, 0.9], "exponent": [1.5, 0.25]}
DECAY = {"decay": [0.1, 0.6], "decay_exponent": [0.5, 1.2]}


def test_the_authors_bias() -> None:
    """ParallelKerplePower of chijames/KERPLE, megatron/mpu/layers.py at 25be3d7, pos_emb kerple_power_ap_."""
    expected = [[-3.2, -2.07846097, -1.13137085, -0.4, 0.0], [-1.27279221, -1.18446661, -1.0702864, -0.9, 0.0]]
    found = scores(given(**BIAS), torch.zeros(2, 5, 5, dtype=torch.float64))
    torch.testing.assert_close(found[:, -1], torch.tensor(expected, dtype=torch.float64), atol=1e-8, rtol=0)
    torch.testing.assert_close(found, found.mT)


def test_the_authors_scores_with_the_weight_kernel() -> None:
    """The same with pos_emb kerple_power_ap_ap, where the content scores are sin(0.7·k), k = 0 … 49."""
    expected = [
        [-2.38895929, -1.36721737, -0.8682267, -0.74571251, -0.88756703],
        [-1.26925374, -1.10946275, -0.81926151, -0.45120036, 0.25468233],
    ]
    content = torch.sin(0.7 * torch.arange(50, dtype=torch.float64)).view(2, 5, 5)
    found = scores(given(**BIAS, **DECAY), content)
    torch.testing.assert_close(found[:, -1], torch.tensor(expected, dtype=torch.float64), atol=1e-8, rtol=0)


def test_which_kernels_take_it() -> None:
    q = torch.zeros(1, 2, 4, 8)
    assert not hw.explain(q, q, q, encoding=KERPLEPower(2)).reasons["reference"]
    other = hw.explain(q, q, q, encoding=KERPLEPower(2, weight_kernel=True)).reasons
    assert [name for name, reasons in other.items() if not reasons] == ["reference"]


def test_it_starts_where_the_authors_start() -> None:
    torch.manual_seed(0)
    (term,) = KERPLEPower(4000).terms(Coordinates.span(1), Coordinates.span(1))
    for effective, top in ((term.values.weight, 1), (term.values.exponent, 2)):
        assert 0.0099 < effective.min() < 0.02
        assert 0.99 * top < effective.max() <= top
        assert abs(effective.mean() - top / 2) < 0.03 * top


def test_no_heads_raise() -> None:
    with pytest.raises(HeadwayError, match="num_heads is 0: give at least 1"):
        KERPLEPower(0)
