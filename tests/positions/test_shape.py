"""SHAPE: one whole shift for each sequence, only in training."""

import pytest
import torch

from headway.coordinates import Coordinates
from headway.errors import HeadwayError
from headway.positions import Compose, Sinusoidal
from headway.positions._encodings.shape import SHAPE

# butsugiri/shape, onmt/modules/embeddings.py, commit a2b04a2: PositionalEncoding(0.0, 6, pe_noise_size=20) of zeros
# [3, 2, 6]. In training after torch.manual_seed(5), which shifts the two sequences by 11 and 14; and in evaluation.
TRAINING = [
    [
        [-0.99999, 0.004426, 0.488679, 0.872464, 0.023697, 0.999719],
        [-0.536573, 0.843854, 0.528634, 0.84885, 0.02585, 0.999666],
        [0.420167, 0.907447, 0.567451, 0.823407, 0.028004, 0.999608],
    ],
    [
        [0.990607, 0.136737, 0.605045, 0.796191, 0.030158, 0.999545],
        [0.650288, -0.759688, 0.641336, 0.76726, 0.032311, 0.999478],
        [-0.287903, -0.957659, 0.676246, 0.736676, 0.034464, 0.999406],
    ],
]
EVALUATION = [
    [0.912945, 0.408082, 0.800613, 0.599182, 0.043075, 0.999072],
    [0.836656, -0.547729, 0.827552, 0.561388, 0.045228, 0.998977],
    [-0.008851, -0.999961, 0.852709, 0.522386, 0.04738, 0.998877],
]


def rows(count: int, n: int) -> Coordinates:
    return Coordinates.of(torch.arange(n).expand(count, n), n)


def test_the_authors_code() -> None:
    """They draw from {0, …, K − 1} and evaluate from K on."""
    both = Compose(SHAPE(max_shift=19, start=20), Sinusoidal(6))
    torch.manual_seed(5)
    found = both.train().embed(torch.zeros(2, 3, 6), rows(2, 3))
    torch.testing.assert_close(found, torch.tensor(TRAINING), atol=2e-6, rtol=0)
    found = both.eval().embed(torch.zeros(1, 3, 6))
    torch.testing.assert_close(found[0], torch.tensor(EVALUATION), atol=2e-6, rtol=0)


def test_one_whole_shift_from_0_to_K_for_each_sequence() -> None:
    found = SHAPE(max_shift=3).train().locate(rows(400, 4)).axis() - torch.arange(4)
    assert found.dtype == torch.int64
    assert torch.equal(found, found[:, :1].expand(-1, 4))
    count = found[:, 0].bincount()
    assert len(count) == 4
    assert count.min() > 60


def test_one_shift_for_each_packed_document() -> None:
    at = Coordinates.packed([3, 1, 400])
    shift = (SHAPE().train().locate(at).axis() - at.axis())[0]
    assert [len(part.unique()) for part in shift.split([3, 1, 400])] == [1, 1, 1]
    assert len(shift.unique()) == 3


def test_evaluation_draws_nothing() -> None:
    before, at = torch.get_rng_state(), rows(2, 5)
    assert SHAPE().eval().locate(at) is at
    assert torch.equal(torch.get_rng_state(), before)


def test_one_row_of_coordinates_has_one_shift_and_a_seed_repeats_it() -> None:
    both = Compose(SHAPE(), Sinusoidal(6)).train()
    x = torch.zeros(3, 5, 6)
    torch.manual_seed(0)
    first = both.embed(x)
    assert torch.equal(first[0], first[2])
    assert not torch.equal(both.embed(x), first)
    torch.manual_seed(0)
    assert torch.equal(both.embed(x), first)


def test_it_compiles_in_training() -> None:
    both = Compose(SHAPE(), Sinusoidal(6)).train()
    compiled = torch.compile(lambda x: both.embed(x), fullgraph=True, backend="eager")
    assert not torch.equal(compiled(torch.zeros(1, 5, 6)), compiled(torch.zeros(1, 5, 6)))


def test_bad_arguments_raise() -> None:
    for name in ("max_shift", "start"):
        with pytest.raises(HeadwayError, match=f"{name} is -2: give at least 0"):
            SHAPE(**{name: -2})
