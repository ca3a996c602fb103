"""Every encoding by every method on several processes: the numbers of one process."""

from __future__ import annotations

from typing import Any

import cases
import pytest
import torch
from processes import DEVICES, FailedError, Pool

from headway import masks as M
from headway.parallel import METHODS, Explanation, Shards
from headway.parallel._call import drawing_with
from headway.parallel.methods import Traffic

pytestmark = pytest.mark.xdist_group("parallel")

CLOSE = 1e-10
WHOLE = ("cope", "path", "path-fox", "wall", "stick-breaking", "dape", "dape-v2", "tra", "grape-ap")
"""Encodings whose terms are functions of all keys, which can only be gathered."""
SHAPES = ("contiguous", "zigzag", "balanced")


def far(found: dict[str, Any]) -> dict[str, Any]:
    """Those that differ, or were refused."""
    return {name: one for name, one in found.items() if isinstance(one, str) or not one < CLOSE}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("method", METHODS)
def test_every_encoding_on_two_processes(pool: Pool, method: str, shape: str) -> None:
    """Output, log-sum-exp and every gradient, with a sink and dropout."""
    for found in pool.run(2, cases.sweep, method, shape, cases.IN_ATTENTION):
        refused = WHOLE if method != "gather" else ()
        assert far(found).keys() == set(refused)
        for name in refused:
            assert "function" in found[name]
            assert found[name].endswith("give method='gather'")


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("method", METHODS)
def test_masks_paddings_heads_and_sinks_on_two_processes(pool: Pool, method: str, shape: str) -> None:
    for found in pool.run(2, cases.sweep_cases, method, shape, list(cases.CASES)):
        assert far(found) == {}


def test_heads_in_groups(pool: Pool) -> None:
    """As a ring computes them for long shards, whose buffers are smaller so."""
    encodings = ["t5", "fire", "forgetting", "shaw", "deberta", "transformer-xl", "mixed-rope", "rotary-values"]
    names = ["Boolean by head", "function", "grouped heads", "sink by query", "dropout", "padded gates"]
    for found in pool.run(2, cases.in_groups, names, encodings):
        assert far(found) == {}


@pytest.mark.parametrize("method", METHODS)
def test_a_process_of_one_token(pool: Pool, method: str) -> None:
    """Whose tensors of its token have the shape of those that all tokens share."""
    names = ["rope", "t5", "forgetting", "log-n", "selective-rope"]
    for found in pool.run(2, cases.sweep, method, "one token", names):
        refused = {name for name in names if "a rank has one token" in str(found[name])}
        assert far(found).keys() == refused
        assert bool(refused) == (method == "heads")


def test_masks_of_observed_calls(pool: Pool) -> None:
    assert max(max(found) for found in pool.run(2, cases.observed_masks)) < CLOSE


ON_MORE = ["packed gates", "padded convolutions", "window", "grouped heads"]


@pytest.mark.parametrize("count", [3, 4])
@pytest.mark.parametrize("method", METHODS)
def test_a_cross_section_on_more_processes(pool: Pool, method: str, count: int) -> None:
    for found in pool.run(count, cases.sweep_cases, method, "zigzag", ON_MORE):
        refused = {} if method != "heads" else {3: set(ON_MORE), 4: {"grouped heads"}}[count]
        assert far(found).keys() == set(refused)
        assert all("do not divide by" in found[name] for name in refused)


@pytest.mark.parametrize("method", METHODS)
def test_a_context_of_another_length(pool: Pool, method: str) -> None:
    for shape in SHAPES:
        assert max(pool.run(2, cases.crossed, method, shape)) < CLOSE


@pytest.mark.parametrize("method", METHODS)
def test_kinds_of_encodings_on_a_cpu(pool: Pool, method: str) -> None:
    for found in pool.run(2, cases.on_devices, method, "cpu"):
        assert far(found) == {}


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs, which nccl takes one of for each process")
def test_kinds_of_encodings_on_two_gpus() -> None:
    two = Pool(2, backend="nccl")
    try:
        for method in METHODS:
            for found in two.run(2, cases.on_devices, method, DEVICES["nccl"]):
                assert far(found) == {}
    finally:
        two.close()


def test_narrow_numbers_are_as_near_as_on_one_process(pool: Pool) -> None:
    for found in pool.run(2, cases.kinds_of_numbers):
        assert {name: one for name, one in found.items() if one > (2e-6 if "float32" in name else 0.02)} == {}


def test_gradients_of_many_parts_are_rounded_once(pool: Pool) -> None:
    assert max(pool.run(2, cases.rounded_queries)) < 1


def test_drawing_on_a_cpu_leaves_other_devices_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    seeded: list[int] = []
    monkeypatch.setattr(torch.cuda, "manual_seed_all", seeded.append)
    state = torch.get_rng_state()
    with drawing_with(1, torch.device("cpu")):
        drawn = torch.rand(3)
    assert torch.equal(drawn, torch.rand(3, generator=torch.Generator().manual_seed(1)))
    assert torch.equal(torch.get_rng_state(), state)
    assert not seeded


@pytest.mark.parametrize("method", METHODS)
def test_the_same_bits_in_every_run(pool: Pool, method: str) -> None:
    assert pool.run(2, cases.repeats, method) == [True, True]


@pytest.mark.parametrize("method", METHODS)
def test_all_ranks_draw_what_the_first_one_draws(pool: Pool, method: str) -> None:
    """Dropout and positions of an encoding in training."""
    assert max(pool.run(2, cases.drawn, method)) < 1e-5


def test_masks_of_a_users_subclass(pool: Pool) -> None:
    for method in METHODS:
        assert max(map(max, pool.run(2, cases.masks_of_subclasses, method))) < CLOSE


def test_a_mask_may_be_written_to_between_calls(pool: Pool) -> None:
    for method in METHODS:
        assert max(pool.run(2, cases.written_mask, method)) < CLOSE


def test_rows_of_taken_coordinates(pool: Pool) -> None:
    assert max(pool.run(2, cases.chosen_rows)) < CLOSE


def test_shards_of_inference_serve_in_training(pool: Pool) -> None:
    for method in METHODS:
        assert max(pool.run(2, cases.trained_after_inference, method)) < CLOSE


def test_what_is_taken_is_joined(pool: Pool) -> None:
    for count in (2, 3):
        assert all(pool.run(count, cases.joined))


def test_a_group_of_one_process_makes_plain_calls() -> None:
    assert cases.one_process(None)


def test_an_encoding_of_a_user_is_gathered_unless_it_declares_more(pool: Pool) -> None:
    for chosen, gap in pool.run(2, cases.of_a_user):
        assert chosen == "gather"
        assert gap < 1e-6


# ---------------------------------------------------------------- bytes


@pytest.mark.parametrize(
    ("can", "said"), [({"gather": Traffic(1, 2)}, "that which is asked for cannot"), ({}, "none can")]
)
def test_an_explanation_without_a_method(can: dict[str, Traffic], said: str) -> None:
    reasons = {name: "a reason" for name in METHODS if name not in can}
    shards = Shards.contiguous(4, None)
    assert str(Explanation(None, can, reasons, shards)).startswith(f"method: {said} compute this call")


def test_bytes_are_what_explain_says(pool: Pool) -> None:
    shard = 2 * 4 * 32 * 8 * 4  # keys and values of one of two ranks
    for method in METHODS:
        for shape in SHAPES:
            for mask in (None, M.Causal(), M.Window(8, 0)):
                for forward, backward, said in pool.run(2, cases.sent, method, shape, mask):
                    assert (forward, backward) == (said.forward, said.backward)
                    if method == "ring" and mask is None:
                        assert (forward, backward) == (shard, 2 * shard)
                    if method == "gather":
                        assert (forward, backward) == (shard, shard)


@pytest.mark.one_in(6)
@pytest.mark.parametrize("shape", ["zigzag", "a run of one token"])
@pytest.mark.parametrize("method", METHODS)
def test_bytes_of_every_encoding_are_what_explain_says(pool: Pool, method: str, shape: str) -> None:
    """To the byte, forward and backward: of terms, moved positions, sums over shards and the log-sum-exp, too."""
    names = [None, *cases.IN_ATTENTION]
    for found in pool.run(2, cases.bytes_of_encodings, method, shape, names):
        differ = {name: one for name, one in found.items() if one[0] != one[1]}
        # which read the input of queries alone, so that the gathered one of keys has no gradient
        assert sorted(differ) == (["relative-projection", "tra"] if method == "gather" else [])
        assert all(sent[0] == said[0] and sent[1] < said[1] for sent, said in differ.values())
        assert len(found) == len(names) - (len(WHOLE) if method != "gather" else 0)


@pytest.mark.parametrize("method", METHODS)
def test_bytes_of_terms_and_grouped_heads_are_what_explain_says(pool: Pool, method: str) -> None:
    for found in pool.run(2, cases.bytes_of_terms, method):
        assert {name: one for name, one in found.items() if one[0] != one[1]} == {}


def test_bytes_of_terms_of_some_heads(pool: Pool) -> None:
    for sent, said in pool.run(2, cases.sent_of_some_heads):
        assert sent == said


def test_a_ring_sends_no_key_that_nobody_sees(pool: Pool) -> None:
    first, second = pool.run(2, cases.sent, "ring", "contiguous", M.Causal())
    assert first[0] > 0
    assert second[0] == 0  # the first rank sees nothing of the last
    assert first[2].skipped + second[2].skipped > 0
    windowed = pool.run(4, cases.sent, "ring", "contiguous", M.Window(4, 0))
    assert [forward > 0 for forward, _, _ in windowed] == [True, True, True, False]
    whole = pool.run(4, cases.sent, "ring", "contiguous", None)
    assert [one[0] for one in windowed[:3]] == [one[0] // 3 for one in whole[:3]]


# ---------------------------------------------------------------- faults

TWICE = "attention over several processes has no second derivatives: leave create_graph out"
SAID = {
    "plain": "positions belong to a shard",
    "plain masked": "positions belong to a shard",
    "appended": "cannot append to a shard",
    "other shards": "tokens but rank",
    "no tokens": "a rank or a run without tokens",
    "some of a shard": "those of other shards",
    "unknown method": "rign",
    "replaced positions": "position was replaced in the coordinates of a shard",
    "encoding outside": "positions belong to a shard",
    "undeclared": "does not declare across_shards = True",
    "pairs": "a tensor of all pairs",
    "whole": "give the result of Shards.take",
    "method": "rings",
    "no argument of statistics": "there is no argument 'method'",
    "head_shard": "head_shard is a tuple: give HeadShard(first, count, total)",
    "twice": TWICE,
    "twice, by heads": TWICE,
    "twice, by gather": TWICE,
    "twice, of a sum": TWICE,
    "batched gradients": "cannot be batched: leave is_grads_batched out",
    "forward mode": "runs only in eager mode",
    "torch.func": "runs only in eager mode",
    "compiled": "runs only in eager mode",
}


@pytest.mark.parametrize("what", SAID)
def test_a_wrong_call_is_refused(pool: Pool, what: str) -> None:
    with pytest.raises(FailedError) as caught:
        pool.run(2, cases.refuses, what)
    assert all(one is not None and SAID[what] in one for one in caught.value.said)


@pytest.mark.parametrize(
    "what",
    [
        *("the number of tokens", "layout", "dtype", "encoding", "mask", "heads", "gradients", "capture"),
        *("documents", "ids of documents", "seed", "version"),
    ],
)
def test_ranks_that_disagree_are_named(pool: Pool, what: str) -> None:
    with pytest.raises(FailedError) as caught:
        pool.run(2, cases.disagrees, what)
    for one in caught.value.said:
        assert one is not None
        said = {
            "heads": "shape of k", "dtype": "dtype of q", "capture": "what capture and other inspection observe",
            "documents": "positions and documents of the queries", "ids of documents": "numbers in the mask",
            "seed": "dropout_seed",
        }  # fmt: skip
        assert f"the processes of a sequence disagree on {said.get(what, what)}: " in one
        assert "on rank 0" in one
        assert "on rank 1" in one
