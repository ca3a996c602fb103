"""Phi's traps: how much of a head is turned, and norms of queries and keys that only some configs have."""

from typing import Any

import pytest
import torch

from headway.checkpoints._base import Config
from headway.checkpoints.phi import Phi


@pytest.mark.parametrize(
    ("said", "width"),
    [({}, 4), ({"partial_rotary_factor": 0.25}, 2), ({"rope_parameters": {"partial_rotary_factor": 0.75}}, 6)],
)
def test_half_of_a_head_is_turned_unless_the_config_says_otherwise(said: dict[str, Any], width: int) -> None:
    with torch.device("meta"):
        model: Any = Phi().build(Config({**Phi.examples[0], **said}), head=False)
    assert model.stack.encodings[0].width == width


@pytest.mark.parametrize("normed", [False, True])
def test_queries_and_keys_are_normed_where_the_config_says_so(normed: bool) -> None:
    with torch.device("meta"):
        model: Any = Phi().build(Config({**Phi.examples[0], "qk_layernorm": normed}), head=False)
    assert (model.stack.blocks[0].attention.q_norm is not None) == normed
