"""The position itself as a number."""

import torch

from headway.coordinates import Coordinates
from headway.positions import IntegerIndex


def test_the_first_token_is_one() -> None:
    code = IntegerIndex().embed(torch.zeros(1, 4, 3))
    assert torch.equal(code[0], torch.tensor([1.0, 2, 3, 4])[:, None].expand(4, 3))


def test_packed_documents_start_again() -> None:
    code = IntegerIndex().embed(torch.zeros(1, 5, 1), Coordinates.packed([3, 2]))
    assert code.flatten().tolist() == [1, 2, 3, 1, 2]


def test_padding_in_front_counts_for_nothing() -> None:
    code = IntegerIndex().embed(torch.zeros(2, 4, 1), Coordinates.padded([2, 4], 4))
    assert code[0, 2:].flatten().tolist() == [1, 2]
    assert code[1].flatten().tolist() == [1, 2, 3, 4]
