"""One factor on the scores of a model without positions."""

import pytest
import torch

from headway import attention
from headway.coordinates import Coordinates
from headway.errors import HeadwayError
from headway.masks import Causal
from headway.positions._encodings.nope_scaling import NoPEScaling


def test_it_is_another_scale() -> None:
    q, k = torch.randn(2, 1, 2, 5, 16)
    found = attention(q, k, k, encoding=NoPEScaling(1.5), mask=Causal())
    torch.testing.assert_close(found, attention(q, k, k, scale=1.5 / 4, mask=Causal()))


def test_each_head_has_its_own_once_it_learns() -> None:
    encoding = NoPEScaling(1.2, num_heads=2)
    assert encoding.learned is not None
    assert encoding.learned.tolist() == pytest.approx([1.2, 1.2])
    encoding.learned.data = torch.tensor([1.0, 1.8])
    q, k = torch.randn(2, 1, 2, 5, 16)
    found = attention(q, k, k, encoding=encoding, mask=Causal())
    for head, factor in enumerate((1.0, 1.8)):
        one = slice(head, head + 1)
        expected = attention(q[:, one], k[:, one], k[:, one], scale=factor / 4, mask=Causal())
        torch.testing.assert_close(found[:, one], expected)


def test_it_reads_no_positions() -> None:
    encoding = NoPEScaling()
    here, there = Coordinates.span(3), Coordinates.of(torch.randn(2, 3, 4), 3)
    assert torch.equal(encoding.terms(here, here)[0].factor, encoding.terms(there, there)[0].factor)
    assert not list(encoding.parameters())


@pytest.mark.parametrize(("arguments", "said"), [((0.0,), "factor is 0.0"), ((1.2, 0), "num_heads is 0")])
def test_wrong_arguments_raise(arguments: tuple, said: str) -> None:
    with pytest.raises(HeadwayError, match=said):
        NoPEScaling(*arguments)
