"""The position as a share of the sequence."""

import pytest
import torch

from headway.coordinates import Coordinates
from headway.positions import Compose, Sinusoidal, UnitIndex


@pytest.mark.parametrize("n", [2, 3, 11])
def test_from_nought_to_one(n: int) -> None:
    code = UnitIndex().embed(torch.zeros(1, n, 1)).flatten()
    torch.testing.assert_close(code, torch.linspace(0, 1, n))


def test_a_single_token_is_at_nought() -> None:
    assert UnitIndex().embed(torch.zeros(1, 1, 2)).tolist() == [[[0, 0]]]


def test_each_document_has_its_own_length() -> None:
    code = UnitIndex().embed(torch.zeros(1, 7, 1), Coordinates.packed([3, 1, 3]))
    assert code.flatten().tolist() == [0, 0.5, 1, 0, 0, 0.5, 1]


def test_padded_rows_end_at_one() -> None:
    code = UnitIndex().embed(torch.zeros(2, 5, 1), Coordinates.padded([3, 5], 5))
    assert code[0, 2:].flatten().tolist() == [0, 0.5, 1]
    assert code[1].flatten().tolist() == [0, 0.25, 0.5, 0.75, 1]


def test_it_depends_on_the_length_alone_where_tokens_come_one_by_one() -> None:
    step = UnitIndex().embed(torch.zeros(1, 1, 1), Coordinates.span(1, start=3, length=4))
    assert step.item() == 1
    assert UnitIndex().embed(torch.zeros(1, 1, 1), Coordinates.span(1, start=3, length=7)).item() == 0.5


def test_the_others_of_a_composition_read_the_divided_positions() -> None:
    x = torch.zeros(1, 5, 8)
    both = Compose(UnitIndex(), Sinusoidal(8)).embed(x)
    share = torch.linspace(0, 1, 5)
    torch.testing.assert_close(both, share[None, :, None] + Sinusoidal(8).embed(x, share))
