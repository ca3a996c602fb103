"""Falcon's traps: which heads of keys there are, how its ALiBi is scaled, and shapes that its code cannot run."""

from typing import Any

import pytest
import torch

from headway import HeadwayError
from headway.checkpoints._base import Config
from headway.checkpoints.falcon import Falcon

OLDER, NEWER = Falcon.examples[0], Falcon.examples[1]


def built(config: dict[str, Any], **said: Any) -> Any:
    with torch.device("meta"):
        return Falcon().build(Config({**config, **said}), head=True)


@pytest.mark.parametrize(
    ("config", "said", "heads"),
    [
        (OLDER, {"num_kv_heads": 4}, 1),  # Falcon 7B says 71
        (OLDER, {"multi_query": False, "num_kv_heads": 1}, 4),
        (NEWER, {}, 2),
        (NEWER, {"num_kv_heads": None}, 4),
    ],
)
def test_heads_of_keys(config: dict[str, Any], said: dict[str, Any], heads: int) -> None:
    model = built(config, **said)
    assert model.stack.blocks[0].attention.num_kv_heads == heads
    (fused,) = (rule.change for rule in Falcon().body(Config({**config, **said})) if "query_key_value" in rule.theirs)
    assert fused.groups == heads


def test_the_bias_is_scaled_as_the_scores_are() -> None:
    model = built(OLDER, alibi=True, num_attention_heads=32, hidden_size=32 * 16)
    expected = torch.tensor([2 ** (-(h + 1) / 4) / 16**0.5 for h in range(32)], dtype=torch.float64)
    torch.testing.assert_close(model.stack.encodings[0].slopes("cpu"), expected)


@pytest.mark.parametrize(
    ("config", "said"), [(NEWER, {"parallel_attn": False}), (OLDER, {"num_ln_in_parallel_attn": 2})]
)
def test_what_is_refused(config: dict[str, Any], said: dict[str, Any]) -> None:
    with pytest.raises(HeadwayError, match=next(iter(said))):
        built(config, **said)
