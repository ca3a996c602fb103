"""A decoder trains with headway's layers in torch's ways of dividing a model, and resumes on other processes."""

from __future__ import annotations

from pathlib import Path

import pytest
import training_cases
from processes import FailedError, Pool
from torch.distributed.checkpoint import CheckpointException

pytestmark = pytest.mark.xdist_group("parallel")

CLOSE = 1e-9


def test_training_in_two_processes_is_that_of_one(pool: Pool) -> None:
    for found in pool.run(2, training_cases.two):
        assert len(found) == 4
        assert {name: one for name, one in found.items() if one > CLOSE} == {}


@pytest.mark.slow
def test_training_on_a_mesh_of_two_by_two(pool: Pool) -> None:
    for found in pool.run(4, training_cases.four):
        assert {name: one for name, one in found.items() if one > CLOSE} == {}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_a_checkpoint_resumes_on_one_and_two_processes(pool: Pool, tmp_path: Path) -> None:
    for found in pool.run(2, training_cases.saved, tmp_path):
        assert len(found) == 6
        assert {name: one for name, one in found.items() if one > CLOSE} == {}
    found = training_cases.alone(tmp_path)
    assert {name: one for name, one in found.items() if one > CLOSE} == {}


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_a_process_that_dies_leaves_the_last_checkpoint_whole(tmp_path: Path) -> None:
    """One that was being written is refused, and the one before resumes."""
    dying = Pool(2, seconds=20)
    try:
        with pytest.raises(FailedError) as caught:
            dying.run(2, training_cases.dies_while_saving, tmp_path)
        assert caught.value.said == [None, "the process ended"]
        assert caught.value.results[0] != "nothing"
    finally:
        dying.close()
    model = training_cases.decoder()
    loaded, further = training_cases.resume(model, tmp_path / "1", training_cases.IDS, no_dist=True)
    assert training_cases.farthest(loaded, training_cases.one_process(1)) < CLOSE
    assert training_cases.farthest(further, training_cases.one_process(2)) < CLOSE
    with pytest.raises(CheckpointException, match="metadata read failed"):
        training_cases.resume(model, tmp_path / "2", training_cases.IDS, no_dist=True)
