"""MPT's traps: slopes that transformers does not follow, and what it reads and leaves undone."""

from typing import Any

import pytest
import torch

from headway import HeadwayError
from headway.checkpoints._base import Config
from headway.checkpoints.mpt import MPT


def built(**said: Any) -> Any:
    with torch.device("meta"):
        return MPT().build(Config({**MPT.examples[0], **said}), head=True)


@pytest.mark.parametrize("largest", [8, 16])
@pytest.mark.parametrize("heads", [4, 6, 12])
def test_slopes_are_the_authors(heads: int, largest: int) -> None:
    # the authors' way: those of the next power of two, every second one first
    power = 1 << (heads - 1).bit_length()
    every = [2 ** (-largest * (h + 1) / power) for h in range(power)]
    expected = every if power == heads else (every[1::2] + every[::2])[:heads]
    model = built(n_heads=heads, d_model=8 * heads, attn_config={"alibi_bias_max": largest})
    torch.testing.assert_close(model.stack.encodings[0].slopes("cpu"), torch.tensor(expected, dtype=torch.float64))


@pytest.mark.parametrize("said", [{"no_bias": False}, {"expansion_ratio": 2}, {"logit_scale": 0.5}], ids=str)
def test_what_the_model_cannot_be(said: dict[str, Any]) -> None:
    with pytest.raises(HeadwayError, match=next(iter(said))):
        built(**said)


@pytest.mark.parametrize(
    "said",
    [
        {"attn_type": "multiquery_attention"},
        {"alibi": False},
        {"qk_ln": True},
        {"prefix_lm": True},
        {"attn_uses_sequence_id": True},
        {"clip_qkv": 6},
    ],
    ids=str,
)
def test_what_its_attention_cannot_be(said: dict[str, Any]) -> None:
    with pytest.raises(HeadwayError, match=next(iter(said))):
        built(attn_config=said)
