"""The learned table: its end, and what lies beyond."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.functional import interpolate

from headway.coordinates import Coordinates
from headway.errors import HeadwayError
from headway.positions import Learned


def test_each_position_has_its_row() -> None:
    encoding = Learned(10, 4)
    x = torch.randn(2, 3, 4)
    at = torch.tensor([[7, 0, 9], [1, 1, 2]])
    assert torch.equal(encoding.embed(x, at), x + encoding.table[at])


def test_initial_is_the_table_and_is_copied() -> None:
    given = torch.randn(5, 3)
    encoding = Learned(5, 3, initial=given)
    assert torch.equal(encoding.table, given)
    given.zero_()
    assert encoding.table.any()


@pytest.mark.parametrize("extend", [None, "interpolate"])
def test_within_the_table_extending_changes_nothing(extend: str | None) -> None:
    table = torch.randn(10, 4)
    encoding = Learned(10, 4, initial=table, extend=extend)
    for n in (1, 4, 10):
        assert torch.equal(encoding.embed(torch.zeros(1, n, 4))[0], table[:n])


@pytest.mark.parametrize("n", [11, 19, 40])
def test_beyond_its_end_the_table_is_stretched(n: int) -> None:
    table = torch.randn(10, 4)
    given = Learned(10, 4, initial=table, extend="interpolate").embed(torch.zeros(1, n, 4))[0]
    expected = interpolate(table.T[None], size=n, mode="linear", align_corners=True)[0].T
    torch.testing.assert_close(given, expected)
    torch.testing.assert_close(given[[0, -1]], table[[0, -1]])


def test_documents_are_stretched_by_their_own_length() -> None:
    table = torch.tensor([[0.0], [1.0], [2.0]])
    encoding = Learned(3, 1, initial=table, extend="interpolate")
    code = encoding.embed(torch.zeros(1, 7, 1), Coordinates.packed([2, 5]))
    torch.testing.assert_close(code.flatten(), torch.tensor([0, 1, 0, 0.5, 1, 1.5, 2]))


def test_a_table_of_one_row() -> None:
    assert Learned(1, 1, initial=torch.ones(1, 1), extend="interpolate").embed(torch.zeros(1, 3, 1)).all()


@pytest.mark.parametrize(
    ("positions", "said"),
    [
        (torch.tensor([0, 8]), r"position 8 \(a length of 9\) lies beyond .* max_length 8: .*extend='interpolate'"),
        (torch.tensor([0, -1]), "position -1 is below 0"),
        (torch.tensor([0.0, 0.5]), "positions are torch.float32 but a learned table has whole numbers"),
    ],
)
def test_positions_that_the_table_does_not_have_raise(positions: torch.Tensor, said: str) -> None:
    with pytest.raises(HeadwayError, match=said):
        Learned(8, 4).embed(torch.zeros(1, 2, 4), positions)


def test_the_look_at_positions_does_not_break_a_graph() -> None:
    encoding = Learned(8, 4)
    compiled = torch.compile(encoding.embed, fullgraph=True, backend="eager")
    x = torch.randn(1, 3, 4)
    at = torch.tensor([0, 7, 2])
    assert torch.equal(compiled(x, at), encoding.embed(x, at))
    program = torch.export.export(_Embeds(encoding), (x, at))
    assert torch.equal(program.module()(x, at), encoding.embed(x, at))


def test_nor_does_it_read_values_that_are_not_there() -> None:
    with FakeTensorMode() as mode:
        encoding = Learned(8, 4)
        given = encoding.embed(mode.from_tensor(torch.zeros(1, 3, 4)), mode.from_tensor(torch.arange(3)))
    assert given.shape == (1, 3, 4)


class _Embeds(torch.nn.Module):
    def __init__(self, encoding: Learned) -> None:
        super().__init__()
        self.encoding = encoding

    def forward(self, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        return self.encoding.embed(x, at)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"max_length": 0, "embed_dim": 4}, "max_length is 0: give at least 1"),
        ({"max_length": 4, "embed_dim": -1}, "embed_dim is -1"),
        ({"max_length": 4, "embed_dim": 2, "initial": torch.zeros(2, 4)}, r"initial has shape \(2, 4\): .*\[4, 2\]"),
        ({"max_length": 4, "embed_dim": 2, "extend": "clip"}, "extend is 'clip': give None or 'interpolate'"),
    ],
)
def test_wrong_arguments_raise(arguments: dict, said: str) -> None:
    with pytest.raises(HeadwayError, match=said):
        Learned(**arguments)
