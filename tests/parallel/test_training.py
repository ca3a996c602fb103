"""A decoder trains with headway's layers in torch's ways of dividing a model, and resumes on other processes."""

from __future__ import annotations

from pathlib import Path

import pytest
import training_cases
from processes import Pool

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


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_a_checkpoint_resumes_on_one_and_two_processes(pool: Pool, tmp_path: Path) -> None:
    for found in pool.run(2, training_cases.saved, tmp_path):
        assert len(found) == 6
        assert {name: one for name, one in found.items() if one > CLOSE} == {}
    found = training_cases.alone(tmp_path)
    assert {name: one for name, one in found.items() if one > CLOSE} == {}
