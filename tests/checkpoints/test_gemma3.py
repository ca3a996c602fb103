"""Gemma's traps: a factor rounded to the dtype, windows by an older pattern, two bases, caps that are not there."""

from typing import Any

import pytest
import torch

from headway import HeadwayError
from headway.checkpoints._base import Config
from headway.checkpoints.gemma3 import FULL, SLIDING, Gemma3, _Embedding
from headway.masks import Window

THIRD, OLDER, SECOND = Gemma3.examples


def built(config: dict[str, Any], **said: Any) -> Any:
    with torch.device("meta"):
        return Gemma3().build(Config({**config, **said}), head=True)


def test_the_factor_of_the_embeddings_has_their_dtype() -> None:
    embedding = _Embedding(2, 3072).to(torch.bfloat16)
    torch.nn.init.ones_(embedding.weight)
    assert embedding(torch.tensor([[1]])).unique().tolist() == [55.5]  # √3072 = 55.4256…
    assert embedding.float()(torch.tensor([[1]])).unique().item() == pytest.approx(3072**0.5, rel=1e-7)


@pytest.mark.parametrize(("config", "every"), [(THIRD, 6), (OLDER, 2), (SECOND, 2)])
def test_windows_by_the_pattern(config: dict[str, Any], every: int) -> None:
    model = built(config, num_hidden_layers=12, layer_types=None)
    windows = [isinstance(mask, Window) for mask in model.stack.masks]
    assert windows == [bool((layer + 1) % every) for layer in range(12)]


def test_windows_turn_by_a_base_of_their_own_that_no_scaling_reaches() -> None:
    full, near = (built(OLDER).stack.encodings[number] for number in (1, 0))
    assert (type(full).__name__, full.base) == ("PositionInterpolation", 5000.0)
    assert (type(near).__name__, near.base) == ("RoPE", 100.0)
    bare = {key: value for key, value in THIRD.items() if not key.startswith("rope")}
    near, full = built(bare, layer_types=[SLIDING, FULL, SLIDING]).stack.encodings
    assert (near.base, full.base) == (10_000.0, 1_000_000.0)
    newer = {FULL: {"rope_type": "default", "rope_theta": 7.0}, SLIDING: {"rope_type": "default", "rope_theta": 5.0}}
    near, full = built(bare, layer_types=[SLIDING, FULL, SLIDING], rope_parameters=newer).stack.encodings
    assert (near.base, full.base) == (5.0, 7.0)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (THIRD, {"use_bidirectional_attention": True}),
        (THIRD, {"attn_logit_softcapping": 50.0}),  # transformers reads it and does nothing
        (SECOND, {"use_bidirectional_attention": True}),
        (THIRD, {"sliding_window": 0}),
    ],
)
def test_what_is_refused(config: dict[str, Any], said: dict[str, Any]) -> None:
    with pytest.raises(HeadwayError, match=next(iter(said))):
        built(config, **said)
