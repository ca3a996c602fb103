"""Layers and whole models over several processes: the numbers of one process, and what is refused."""

from __future__ import annotations

import context_cases as cases
import pytest
from processes import Pool

from headway.parallel import METHODS

pytestmark = pytest.mark.xdist_group("parallel")

CLOSE = 1e-10

ENTERING = {
    "no model": "model is 'model': give a torch.nn.Module",
    "no shards": "shards is 23: give headway.parallel.Shards.zigzag(n, mesh)",
    "shards of another group": "context_shards are of another group of processes than shards",
    "unknown method": "rings",
    "no attention": "Linear has no attention of headway: there is nothing to share",
    "torch's attention": "decoder.layers.0.self_attn (MultiheadAttention) is torch's own attention: call headway.integ",
    "an attend of its own": "0 (MultiHeadAttention) has an attend of its own",
    "torch's function": "1 (Scaled) calls scaled_dot_product_attention by itself",
    "headway's function": "1 (Own) calls headway's attention by itself",
    "a recurrent layer": "1 (LSTM) carries a state from token to token",
    "a layer of the encoder and the decoder": "decoder.layers.0.self_attn (HeadwayAttention) is a layer of the encoder",
    "compiled": "Decoder is compiled",
    "add_bias_kv": "0 (HeadwayAttention) has add_bias_kv, a key that belongs to no token",
    "another thread": "the model is in a context of another thread",
}
OUTSIDE = "the positions belong to a shard"
CALLING = {
    "outside": OUTSIDE,
    "outside, without an encoding": OUTSIDE,
    "outside, an encoding that embeds": OUTSIDE,
    "outside, a layer": OUTSIDE,
    "cache": "a cache that processes share has no gradients: decode within torch.no_grad()",
    "a cache of outside": "the cache was filled in another headway.parallel.context, or outside of one",
    "a shared cache outside": "the cache was filled in another headway.parallel.context, or outside of one",
    "cropping a shared cache": "crop removes tokens whose keys several processes share",
    "a window in a cache": "a layer with a window drops keys, which processes that share them cannot",
    "gates in a cache": "ForgettingGate reads the layer's input of all tokens",
    "observed steps": "steps with a cache that processes share cannot be observed: leave capture",
    "moved tokens in a cache": "Compose (StreamingLLM, RoPE) moves tokens by the keys of all tokens",
    "drawing in a cache": "is in training mode, in which each process may draw other positions",
    "functions in a cache": "ContextualPositions is a function of all keys at once",
    "memory": "stack is called with memory= in headway.parallel.context",
    "generate": "has 22 tokens along",
    "cache of a layer": "MultiHeadAttention is called with cache=",
    "all tokens": "there are 23 tokens but rank",
    "coordinates of no shard": "positions are not coordinates of a shard",
    "coordinates of other shards": "positions are those of other shards",
    "a mask of the shard": "mask",
    "different contexts": "MultiHeadAttention attends to a context that differs between the processes",
    "numbers in a mask": "a mask adds numbers to the scores of the whole sequence",
    "weights": "layers.0.self_attn is called with need_weights=",
    "statistics": "ForgettingGate reads the layer's input and takes the queries as the last of the keys",
    "torch.func": "runs only in eager mode",
    "second derivatives": "attention over several processes has no second derivatives",
}
HUGGING_FACE = {
    "another implementation": "has attn_implementation='sdpa': call model.set_attn_implementation('headway') first",
    "encoder-decoder": "is part of an encoder–decoder",
    "no positions": "does not take position_ids",
    "labels": "labels is given in headway.parallel.context: shift the targets before Shards.take",
    "padding": "attention_mask is given",
    "a cache": "past_key_values is given",
    "vectors": "inputs_embeds is given",
    "weights": "is called with output_attentions=",
    "all tokens": "positions",
}


def test_outputs_and_gradients_are_those_of_one_process(pool: Pool) -> None:
    for found in pool.run(2, cases.every, list(cases.CASES)):
        assert {name: one for name, one in found.items() if one > CLOSE} == {}


def test_three_processes(pool: Pool) -> None:
    names = ["packed, ring", "sharded context", "drawn positions"]
    for found in pool.run(3, cases.every, names):
        assert {name: one for name, one in found.items() if one > CLOSE} == {}


def test_training_by_ddp_and_fsdp(pool: Pool) -> None:
    """Loss and gradients in float32; encodings with parameters and without, padding, packed documents, a window."""
    for found in pool.run(2, cases.every_trained):
        assert {name: one for name, one in found.items() if max(one.values()) > 1e-6} == {}


@pytest.mark.parametrize("kind", ["entering", "calling"])
def test_refusals(pool: Pool, kind: str) -> None:
    expected = {"entering": ENTERING, "calling": CALLING}[kind]
    for said in pool.run(2, cases.refused, kind):
        assert said.keys() == expected.keys()
        assert {name: said[name] for name, part in expected.items() if part not in said[name]} == {}


def test_state_is_restored(pool: Pool) -> None:
    for found in pool.run(2, cases.states):
        table = found.pop("table")
        assert found.pop("left") == 0
        assert {name: one for name, one in found.items() if one > CLOSE} == {}
        assert "stack.blocks.1.attention  ring: " in table
        assert "KiB sent forward" in table


def test_a_model_is_explained_before_anything_is_sent(pool: Pool) -> None:
    for found in pool.run(2, cases.rehearsed):
        text = found.pop("text")
        assert "give those of Shards.take" in found.pop("tensors")
        assert found == {"sent": 0, "drawn": False, "differ": False, "alone": True}
        assert "decoder.blocks.0.attention  method: ring" in text
        assert "method: gather" in text
        assert "ring: ContextualPositions is a function of all keys at once" in text
        assert "KiB skipped" in text


@pytest.mark.parametrize("method", METHODS)
def test_statistics_and_weights_are_those_of_one_process(pool: Pool, method: str) -> None:
    """Of each query as one process has them; the sums over queries add up over the ranks."""
    for found in pool.run(2, cases.inspected_by, method):
        assert {name: one for name, one in found.items() if max(one.values()) > CLOSE} == {}


def test_captures_and_contexts_nest(pool: Pool) -> None:
    for found in pool.run(2, cases.nested):
        assert {name: one for name, one in found.items() if one > CLOSE} == {}


def test_heads_are_ablated_as_on_one_process(pool: Pool) -> None:
    """A mean is that over the queries of all processes; outputs and gradients."""
    for found in pool.run(2, cases.every_ablated):
        assert {name: one for name, one in found.items() if one > CLOSE} == {}


def test_statistics_of_a_call_on_shards(pool: Pool) -> None:
    """Of each query as one process has them, and the sums over all queries on every process."""
    for found in pool.run(2, cases.measured):
        assert {name: one for name, one in found.items() if one > CLOSE} == {}


def test_generation_is_that_of_one_process(pool: Pool) -> None:
    """The keys of a prompt stay where they are; ids are equal, and logits after several tokens, too."""
    for found in pool.run(2, cases.every_decoded):
        assert {name: one for name, one in found.items() if one > CLOSE} == {}
    for found in pool.run(3, cases.every_decoded, ["rope, padding"]):
        assert max(found.values()) < CLOSE


def test_processes_choose_the_same_ids_though_they_round_differently(pool: Pool) -> None:
    first, second = pool.run(2, cases.rounded)
    assert first == second


def test_generation_holds_only_the_keys_of_a_process(pool: Pool) -> None:
    for room, most in pool.run(2, cases.room):
        assert room <= most


def test_every_process_refuses_a_step_for_which_a_static_cache_has_no_room(pool: Pool) -> None:
    """Though only one of them appends its keys: the others would wait for it."""
    for steps, said in pool.run(2, cases.full):
        assert steps == 2
        assert "the cache holds 25 tokens of at most max_length=25 and 1 follow" in said


def test_compiled_code_is_refused(pool: Pool) -> None:
    for said in pool.run(2, cases.compiled):
        assert "leave torch.compile out within headway.parallel.context" in said["graph"]
        assert "whole graph" in said


def test_models_of_transformers(pool: Pool) -> None:
    pytest.importorskip("transformers")
    for found in pool.run(2, cases.every, list(cases.HUGGING_FACE)):
        assert {name: one for name, one in found.items() if one > CLOSE} == {}
    for said in pool.run(2, cases.hugging_face_refused):
        assert said.keys() == HUGGING_FACE.keys()
        assert {name: said[name] for name, part in HUGGING_FACE.items() if part not in said[name]} == {}
