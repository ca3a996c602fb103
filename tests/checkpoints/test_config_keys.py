"""Every key of a config, over the table: another value changes headway's model as it changes transformers' own.

A key that headway reads and transformers does not, or the other way round, is a silently different model. Each key that
either of them reads is given other values; then the outputs are equal, or headway refuses the config.
"""

import copy
import inspect
import json
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from headway import HeadwayError
from headway.checkpoints import ARCHITECTURES, FAMILIES, Config, _base, _load, load
from headway.checkpoints._files import read_tensors
from headway.testing.checkpoints import CLOSE, _output, distance, inputs, their_model

transformers = pytest.importorskip("transformers")

LINEAR = {"rope_type": "linear", "factor": 2.0, "rope_theta": 50.0}
PART = {"rope_type": "default", "rope_theta": 50.0, "partial_rotary_factor": 0.5}
FULL, NEAR = "full_attention", "sliding_attention"
VALUES: dict[str, list[Any]] = {
    "activation": ["relu", "silu"],
    "activation_function": ["relu", "silu"],
    "attention_bias": [True, False],
    "attention_head_size": [4],
    "attn_config": [{"softmax_scale": 0.3}, {"clip_qkv": 0.1}, {"qk_ln": True}, {"prefix_lm": True}, {"alibi": False}],
    "attn_logit_softcapping": [1.5],
    "attn_type": ["uni"],
    "classifier_activation": ["relu", "silu"],
    "clamp_len": [3],
    "dense_act_fn": ["silu"],
    "embedding_size": [20],
    "feed_forward_proj": ["gelu", "gated-silu"],
    "ff_activation": ["relu", "silu"],
    "final_logit_softcapping": [1.5],
    "global_attn_every_n_layers": [2],
    "head_dim": [4, 20],
    "hidden_size": [48],
    "hidden_act": ["relu", "silu"],
    "hidden_activation": ["relu", "gelu"],
    "layer_types": [[NEAR, FULL, FULL], [FULL, FULL, NEAR], [NEAR, FULL, FULL, NEAR], [FULL] * 3],
    "local_attention": [4],
    "logit_scale": [0.5],
    "max_position_embeddings": [16],
    "max_relative_positions": [3],
    "max_window_layers": [1],
    "model_max_length": [16],
    "n_inner": [40],
    "no_rope_layer_interval": [1, 2],
    "no_rope_layers": [[1, 0, 0]],
    "n_embed": [48],
    "norm_rel_ebd": ["none", "layer_norm"],
    "num_hidden_layers": [3, 4],
    "num_key_value_heads": [1],
    "num_ln_in_parallel_attn": [1, 2],
    "num_kv_heads": [1],
    "original_max_position_embeddings": [8, 16],
    "pad_token_id": [4, 2],
    "partial_rotary_factor": [0.5],
    "pos_att_type": ["c2p", ["p2c"], "p2c|c2p"],
    "position_buckets": [4],
    "position_embedding_type": ["relative_key"],
    "relative_attention_max_distance": [5],
    "rope_parameters": [LINEAR, PART, {FULL: LINEAR, NEAR: PART}],
    "rope_scaling": [{"type": "linear", "factor": 3.0}, LINEAR],
    "rope_local_base_freq": [20.0],
    "rope_theta": [77.0],
    "global_rope_theta": [77.0],
    "local_rope_theta": [77.0],
    "rotary_dim": [2],
    "rotary_emb_base": [50],
    "rotary_pct": [0.5],
    "scale_decoder_outputs": [True, False],
    "sliding_window": [3],
    "sliding_window_pattern": [3],
    "softmax_scale": [0.3],
    "use_bidirectional_attention": [True],
    "word_embed_proj_dim": [20],
}
"""Values of keys for which ``others`` finds none, or none that tells."""
ROTARY = {"partial_rotary_factor", "rope_parameters", "rope_scaling", "rope_theta", "original_max_position_embeddings"}
"""Keys that transformers reads without a field of the configuration."""
NEUTRAL = "drop|initializer|^use_cache$|^return_dict$|^[be]os_token_id$|^output_|^chunk_size|^id2label$|^label2id$"
"""The names of keys of training, of generation and of what a call returns."""
NAMES = {"architectures", "model_type", "dtype", "torch_dtype"}
"""Keys by which both choose the classes and the dtype."""


def others(key: str, value: Any) -> list[Any]:
    """Other values for a key, null among them."""
    if key in VALUES:
        found = VALUES[key]
    elif isinstance(value, bool) or value is None:
        found = [not value]
    elif isinstance(value, int):
        found = [2 * value or 1]
    else:
        found = [3 * value + 0.05] if isinstance(value, float) else []
    return [one for one in found if one != value] + [None] * (value is not None)


class Recorded(Config):
    """A config that records which keys are asked for."""

    asked: set[str]

    def __getitem__(self, key: str) -> Any:
        self.asked.add(key)
        return super().__getitem__(key)

    def __contains__(self, key: object) -> bool:
        self.asked.add(str(key))
        return super().__contains__(key)

    def get(self, key: str, default: Any = None) -> Any:
        self.asked.add(key)
        return super().get(key, default)


SHOWN: dict[str, set[str]] = {}
CASES = []
for name, family in FAMILIES.items():
    for number, example in enumerate(family.examples if family.oracle is None else ()):
        covered = SHOWN.setdefault(f"{name}-{example['model_type']}", set())
        new = {key for key in example if key not in covered} if covered else None  # None: all keys there are
        rope_type = example.get("rope_parameters", {}).get("rope_type", "")
        if new is not None and rope_type not in covered:
            new |= ROTARY
        if new != set():
            CASES.append(pytest.param(example, new, id=f"{name}-{number}-{example['model_type']}"))
        covered |= {*example, rope_type}


@contextmanager
def recorded() -> Iterator[set[str]]:
    """The attributes of configurations that the code of models reads inside."""
    found: set[str] = set()
    plain = transformers.PreTrainedConfig.__getattribute__

    def record(self: Any, key: str) -> Any:
        if not key.startswith("_") and ".model" in sys._getframe(1).f_globals["__name__"]:
            found.add(key)  # also if the configuration has no such attribute
        return plain(self, key)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transformers.PreTrainedConfig, "__getattribute__", record)
        yield found


def configuration(values: dict[str, Any]) -> Any:
    rest = copy.deepcopy(values)
    return transformers.AutoConfig.for_model(rest.pop("model_type"), **rest)


def read(config: Any, key: str) -> Any:
    found = getattr(config, key, None)
    return None if callable(found) else found


def their_output(values: dict[str, Any], state: dict[str, Tensor], given: dict[str, Tensor]) -> Tensor | None:
    """The output of transformers' model with these parameters; None if they do not fit, so that no file is read."""
    model = their_model(values)
    if any(state[name].shape != x.shape for name, x in model.state_dict().items() if name in state):
        return None
    model.load_state_dict(state)
    return _output(model(**given))


@torch.no_grad()
@pytest.mark.one_in(5)
@pytest.mark.parametrize(("example", "keys"), CASES)
def test_a_key_changes_what_it_changes_in_transformers(
    example: dict[str, Any], keys: set[str] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with recorded() as theirs_read:
        base = their_model(example)
        given = inputs(base)
        expected = _output(base(**given))
    base.save_pretrained(tmp_path)
    tensors, state = read_tensors(tmp_path), base.state_dict()
    values = example
    monkeypatch.setattr(_load, "read_config", lambda path: values)
    monkeypatch.setattr(_load, "read_tensors", lambda path: tensors)
    monkeypatch.setattr(_base, "Config", type("Recorded", (Recorded,), {"asked": (ours_read := set())}))
    assert distance(load(tmp_path)(*given.values()), expected) <= CLOSE
    ours_read = ours_read.union(ARCHITECTURES[example["architectures"][0]].aliases) - NAMES
    if keys is None:
        popped = re.findall(r'kwargs\.(?:pop|get|setdefault)\("(\w+)"', inspect.getsource(type(base.config)))
        common = vars(transformers.PreTrainedConfig())
        held = {key for key in vars(base.config) if not key.startswith("_") and key not in common}
        keys = {*example, *held, *base.config.attribute_map, *popped, *ours_read, *theirs_read, *ROTARY}
    apart, untold = [], set()
    for key in sorted(key for key in keys - NAMES if not re.search(NEUTRAL, key)):
        values_of_key = others(key, example.get(key, getattr(base.config, key, None)))
        values_of_key = [one for one in values_of_key if one is not None or key in ours_read]
        if key in ours_read and not values_of_key:
            untold.add(key)
        for value in values_of_key:
            values = {**example, key: value}
            try:
                known = configuration(values)
            except Exception:  # transformers refuses the value
                continue
            changed = any(read(known, one) != read(base.config, one) for one in theirs_read)
            try:
                found = load(tmp_path)(*given.values()) if key in ours_read else expected
            except HeadwayError:
                continue
            try:
                wanted = their_output(values, state, given) if changed else expected
            except Exception:
                continue
            if wanted is not None and (far := distance(found, wanted)) > CLOSE:
                apart.append(f"{key}={json.dumps(value)}: {far:.1g}")
    assert not apart, "\n".join(apart)
    assert not untold, f"give VALUES other values of {', '.join(sorted(untold))}"
