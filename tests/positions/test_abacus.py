"""Abacus: places within numbers as in the authors' code, one offset for the batch in training."""

import pytest
import torch

from headway.errors import HeadwayError
from headway.positions._encodings.abacus import Abacus

DIGITS = range(10)
IDS = [
    [1, 2, 3, 11, 4, 5, 12, 9, 8, 7, 6, 10],
    [10, 10, 0, 0, 11, 5, 11, 1, 1, 1, 1, 1],
    [7, 11, 7, 11, 7, 7, 7, 7, 7, 7, 7, 7],
]
# mcleish7/arithmetic, abacus.py, commit 86022a5: Abacus(range(10), …).helper of these ids
PLACES = [
    [1, 2, 3, 0, 1, 2, 0, 1, 2, 3, 4, 0],
    [0, 0, 1, 2, 0, 1, 0, 1, 2, 3, 4, 5],
    [1, 0, 1, 0, 1, 2, 3, 4, 5, 6, 7, 8],
]


def test_places_are_the_authors() -> None:
    assert Abacus.places(torch.tensor(IDS), DIGITS).tolist() == PLACES
    assert Abacus.places(torch.zeros(2, 0, dtype=torch.long), DIGITS).shape == (2, 0)
    assert Abacus.places(torch.tensor(IDS, dtype=torch.int32), DIGITS).tolist() == PLACES


def test_a_number_ends_where_its_document_does() -> None:
    ids, document = torch.tensor([[1, 2, 3, 4, 10, 5]]), torch.tensor([[0, 0, 1, 1, 2, 3]])
    assert Abacus.places(ids, DIGITS, document).tolist() == [[1, 2, 1, 2, 0, 1]]


def test_digits_of_one_place_share_a_vector() -> None:
    abacus = Abacus(4).eval()
    places = Abacus.places(torch.tensor(IDS), DIGITS)
    found = abacus.embed(torch.zeros(3, 12, 4), places)
    torch.testing.assert_close(found, abacus.table[torch.tensor(PLACES)])
    assert abacus.table.shape == (1024, 4)


def test_training_offsets_all_digits_of_the_batch_by_one_number_from_0_to_max_offset() -> None:
    abacus, places = Abacus(4, max_length=8, max_offset=2).train(), torch.tensor(PLACES)
    seen = set()
    for _ in range(60):
        located = abacus.coordinates_for(places[..., None], places).axis()
        offsets = (located - places)[places > 0].unique().tolist()
        assert len(offsets) == 1
        assert (located[places == 0] == 0).all()
        seen |= set(offsets)
    assert seen == {0, 1, 2}
    before = torch.get_rng_state()
    assert abacus.eval().coordinates_for(places[..., None], places).axis().tolist() == PLACES
    assert torch.equal(torch.get_rng_state(), before)


def test_any_offset_fits_the_table_and_more_raises() -> None:
    abacus = Abacus(4, max_length=8, max_offset=2)
    for _ in range(20):
        abacus.embed(torch.zeros(1, 1, 4), torch.tensor([[8]]))
    with pytest.raises(HeadwayError, match=r"place 11 is not in the table, which has 0 to 10: .* larger max_length"):
        abacus.eval().embed(torch.zeros(1, 1, 4), torch.tensor([[11]]))
    with pytest.raises(HeadwayError, match="place -1 is not in the table"):
        abacus.eval().embed(torch.zeros(1, 1, 4), torch.tensor([[-1]]))
    with pytest.raises(HeadwayError, match="max_offset is -1: give at least 0"):
        Abacus(4, max_offset=-1)
    with pytest.raises(HeadwayError, match="embed_dim is 0"):
        Abacus(0)


def test_it_compiles_in_training() -> None:
    abacus = Abacus(4).train()
    ids = torch.tensor(IDS)
    run = lambda ids: abacus.embed(torch.zeros(3, 12, 4), Abacus.places(ids, DIGITS))  # noqa: E731
    compiled = torch.compile(run, fullgraph=True, backend="eager")
    assert compiled(ids).shape == (3, 12, 4)
