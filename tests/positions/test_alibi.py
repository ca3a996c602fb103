"""ALiBi's slopes, and its bias."""

import pytest
import torch

from headway.coordinates import Coordinates
from headway.errors import HeadwayError
from headway.positions import ALiBi
from headway.terms import DistanceBias, Linear

EIGHT = [1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64, 1 / 128, 1 / 256]


def slopes(num_heads: int) -> torch.Tensor:
    at = Coordinates.span(2)
    (term,) = ALiBi(num_heads).terms(at, at)
    assert isinstance(term, DistanceBias)
    assert isinstance(term.values, Linear)
    assert torch.equal(term.values.past, term.values.future)
    return term.values.past


def test_slopes_of_a_power_of_two() -> None:
    assert slopes(8).tolist() == EIGHT
    assert slopes(1).tolist() == [1 / 256]
    torch.testing.assert_close(slopes(16), torch.tensor([2 ** (-(h + 1) / 2) for h in range(16)]).double())


def test_slopes_of_twelve_heads_are_the_authors() -> None:
    between = [2**-0.5, 2**-1.5, 2**-2.5, 2**-3.5]
    torch.testing.assert_close(slopes(12), torch.tensor([*EIGHT, *between], dtype=torch.float64))
    assert [round(m, 4) for m in slopes(12)[8:].tolist()] == [0.7071, 0.3536, 0.1768, 0.0884]
    one_formula = torch.tensor([2 ** (-8 * (h + 1) / 12) for h in range(12)], dtype=torch.float64)
    assert not torch.allclose(slopes(12), one_formula)


@pytest.mark.parametrize("num_heads", [3, 5, 6, 7, 20, 40, 71])
def test_any_number_of_heads(num_heads: int) -> None:
    power = max(p for p in (1, 2, 4, 8, 16, 32, 64) if p <= num_heads)
    found = slopes(num_heads)
    assert found.shape == (num_heads,)
    torch.testing.assert_close(found[:power], slopes(power), rtol=1e-14, atol=0)
    torch.testing.assert_close(found[power:], slopes(2 * power)[0::2][: num_heads - power], rtol=1e-14, atol=0)
    assert len(set(found.tolist())) == num_heads


def test_no_heads_raise() -> None:
    with pytest.raises(HeadwayError, match="num_heads is 0: give at least 1"):
        ALiBi(0)
