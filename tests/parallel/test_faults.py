"""A process that dies or raises alone: the others stop within the timeout of their group, and say where and why."""

from __future__ import annotations

from collections.abc import Iterator

import fault_cases as cases
import pytest
from processes import FailedError, Pool

pytestmark = pytest.mark.xdist_group("parallel")


@pytest.fixture(scope="module")
def two() -> Iterator[Pool]:
    """Two processes, which are all of their world, so that they can make groups at any time."""
    made = Pool(2)
    yield made
    made.close()


WHERE = {
    "forward": "the forward pass of stack.blocks.1.attention by {method}",
    "backward": "the backward pass of stack.blocks.1.attention by ring, step 0 of 1",
    "between": "",  # rank 1 was in no call, nor is it in the kernel's backward pass by heads and gather
    "between, backward": "",
}
"""Where rank 1 stops."""


@pytest.mark.parametrize(
    ("method", "place"),
    [
        *((method, place) for method in cases.METHODS for place in ("forward", "backward", "between, backward")),
        ("ring", "between"),  # where every method compares calls
    ],
)
def test_others_stop_when_one_raises_alone(two: Pool, method: str, place: str) -> None:
    """They name the layer, the method and the pass, and what the other one says; a later call mixes up nothing."""
    first, second = two.run(2, cases.stops, method, place)
    assert second[0] == "StopError: no memory"
    assert first[0].startswith("LostError: process 0 lost process 1 in the ")
    assert f"pass of stack.blocks.{'0' if place == 'between, backward' else '1'}.attention by {method}" in first[0]
    where = WHERE[place].format(method=method) if place == "forward" or method == "ring" else ""
    assert f"process 1 stopped{' in ' if where else ' by '}{where}" in first[0]
    assert first[0].endswith("by StopError: no memory")
    later = ("an error ended an earlier call of this process", "process 1 lost process 0 in the forward pass of")
    assert later[0] in first[1]
    assert any(one in second[1] for one in later)


@pytest.mark.slow
def test_a_call_that_is_refused_on_one_process_alone(two: Pool) -> None:
    first, second = two.run(2, cases.refused_alone)
    assert second.startswith("q has ")
    assert first.startswith("process 0 lost process 1 in the forward pass of attention by gather: ")
    assert f"process 1 stopped in the forward pass of attention by HeadwayError: {second}" in first


@pytest.mark.parametrize(
    ("layers", "said"),
    [
        (2, "the layer: stack.blocks.1.attention on rank 0; stack.blocks.0.attention on rank 1"),
        (1, "how many contexts were entered: 1 on rank 0; 2 on rank 1"),
    ],
)
def test_a_process_that_leaves_a_step_and_goes_on_is_noticed_at_once(two: Pool, layers: int, said: str) -> None:
    """Its next call would meet another layer, or another batch, of the others."""
    for one in two.run(2, cases.goes_on, layers):
        assert f"the processes of a sequence disagree on {said}" in one
        assert "StopError: no memory" in one or one.endswith("give all of them the same")


def test_an_error_that_all_survive_is_forgotten(two: Pool) -> None:
    for before, after in two.run(2, cases.survives):
        assert before.endswith("by StopError: no memory")
        assert after == ""


def test_others_stop_when_a_process_dies() -> None:
    dying = Pool(4, seconds=20)
    try:
        for count, method in ((4, "heads"), (3, "ring"), (2, "gather")):
            with pytest.raises(FailedError) as caught:
                dying.run(count, cases.dies, method)
            *others, last = caught.value.said
            assert last == "the process ended"
            assert others == [None] * (count - 1)
            for rank, said in enumerate(caught.value.results[:-1]):
                assert said.startswith(f"process {rank} lost process ")
                assert f" in the backward pass of attention by {method}" in said
    finally:
        dying.close()


def test_a_group_that_torch_destroys_is_not_kept() -> None:
    """Its threads would live on: a process that exits then may be aborted."""
    ended = Pool(3)
    try:
        first, _, third = ended.run(3, cases.destroyed)
    finally:
        ended.close()
    said = "the process group was destroyed: give a new one to Shards or context"
    assert first == {"pair": [True, True], "said": said, "world": [True, True]}
    assert third == {"world": [True, True]}
