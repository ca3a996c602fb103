"""Position coupling: ids as in the authors' code, a start of its own for each sequence in training."""

import pytest
import torch

from headway.coordinates import Coordinates
from headway.errors import HeadwayError
from headway.positions._encodings.position_coupling import PositionCoupling

addition = PositionCoupling.addition

# HanseulJo/position-coupling, src/data/addition.py, commit b9cad94: AdditionDatasetWithCoupledPositions with
# randomize=False, the ids of "653+49=702" and "95+8=103"
AUTHORS = [
    (addition(3, 2, 3), [4, 3, 2, 1, 3, 2, 1, 2, 3, 4]),
    (addition(3, 2, 3, reverse_answer=False), [4, 3, 2, 1, 3, 2, 5, 4, 3, 2]),
    (addition(3, 2, 3, reverse_operands=True), [2, 3, 4, 1, 2, 3, 1, 2, 3, 4]),
    (addition(2, 1, 3, reverse_operands=True, reverse_answer=False), [2, 3, 1, 2, 5, 4, 3, 2]),
]


@pytest.mark.parametrize(("found", "expected"), AUTHORS)
def test_ids_of_an_addition(found: torch.Tensor, expected: list[int]) -> None:
    assert found.tolist() == expected


def test_tokens_of_one_id_share_a_vector() -> None:
    coupling, ids = PositionCoupling(4).eval(), addition(3, 2, 3)[None]
    torch.testing.assert_close(coupling.embed(torch.zeros(1, 10, 4), ids), coupling.table[ids])
    assert coupling.table.shape == (133, 4)


@pytest.mark.parametrize(("ids", "starts"), [(AUTHORS[0][0], 20), (AUTHORS[1][0], 19)])
def test_training_starts_anywhere_the_table_allows(ids: torch.Tensor, starts: int) -> None:
    """With max_position=23 the authors' code starts at 1 … 20, and at 1 … 19 where '=' has the largest id."""
    torch.manual_seed(0)
    ids = torch.cat([torch.tensor([0]), ids, torch.tensor([0])]).expand(2000, -1)
    located = PositionCoupling(4, max_length=23).train().coordinates_for(ids[..., None], ids).axis()
    shift = (located - ids)[:, 1:-1]
    assert torch.equal(shift, shift[:, :1].expand_as(shift))
    assert (located[:, [0, -1]] == 0).all()
    assert shift[:, 0].unique().tolist() == list(range(starts))
    assert shift[:, 0].bincount().min() > 60
    assert located.max() == 23


def test_packed_documents_start_apart_and_evaluation_draws_nothing() -> None:
    at = Coordinates(torch.tensor([[[1], [2], [1], [2], [0]]]), torch.arange(5)[None], torch.tensor([[0, 0, 1, 1, 1]]))
    torch.manual_seed(0)
    found = PositionCoupling(4).train().locate(at).axis()[0].tolist()
    assert found[1] - found[0] == found[3] - found[2] == 1
    assert found[0] != found[2]
    assert found[4] == 0
    coupling, before = PositionCoupling(4).eval(), torch.get_rng_state()
    assert coupling.locate(at) is at
    assert torch.equal(torch.get_rng_state(), before)


def test_a_seed_repeats_it_and_it_compiles_in_training() -> None:
    coupling, ids = PositionCoupling(4).train(), addition(3, 2, 3).expand(2, -1)
    x = torch.zeros(2, 10, 4)
    torch.manual_seed(1)
    first = coupling.embed(x, ids)
    assert not torch.equal(coupling.embed(x, ids), first)
    torch.manual_seed(1)
    assert torch.equal(coupling.embed(x, ids), first)
    compiled = torch.compile(lambda ids: coupling.embed(x, ids), fullgraph=True, backend="eager")
    assert not torch.equal(compiled(ids), compiled(ids))


def test_ids_beyond_the_table_raise() -> None:
    with pytest.raises(HeadwayError, match="place 4 is not in the table, which has 0 to 3"):
        PositionCoupling(4, max_length=3).eval().embed(torch.zeros(1, 10, 4), addition(3, 2, 3)[None])
    with pytest.raises(HeadwayError, match="max_length is 0"):
        PositionCoupling(4, max_length=0)
