"""Llama 4's temperature, in steps of the position."""

import math

import pytest
import torch

from headway import attention_weights
from headway.coordinates import Coordinates
from headway.errors import HeadwayError
from headway.positions._encodings.llama4_temperature import Llama4Temperature


def factors(encoding: Llama4Temperature, positions: list[float]) -> list[float]:
    at = Coordinates.of(torch.tensor(positions), len(positions))
    (term,) = encoding.terms(at, at)
    return term.factor.flatten().tolist()


def test_the_steps_lie_one_before_multiples() -> None:
    found = factors(Llama4Temperature(), [0, 8190, 8191, 16382, 16383, 100_000])
    expected = [1, 1, 1 + 0.1 * math.log(2), 1 + 0.1 * math.log(2), 1 + 0.1 * math.log(3), 1 + 0.1 * math.log(13)]
    assert found == pytest.approx(expected)


@pytest.mark.parametrize("step", [0, -1, math.inf])
def test_no_step_raises(step: float) -> None:
    with pytest.raises(HeadwayError, match=f"step is {step}: give a number of tokens above 0"):
        Llama4Temperature(step=step)


def test_transformers_agrees() -> None:
    """In the layers of Llama 4 that have no positions."""
    pytest.importorskip("transformers")
    from transformers import Llama4TextConfig
    from transformers.models.llama4.modeling_llama4 import Llama4TextAttention

    config = Llama4TextConfig(
        hidden_size=32,
        intermediate_size=32,
        intermediate_size_mlp=32,
        num_hidden_layers=4,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=16,
        vocab_size=32,
        num_local_experts=2,
        attn_implementation="eager",
        floor_scale=2,
        attn_scale=0.3,
    )
    theirs, x = Llama4TextAttention(config, 3).eval(), torch.randn(1, 9, 32)
    q, k = (project(x).view(1, 9, 2, 16).transpose(1, 2) for project in (theirs.q_proj, theirs.k_proj))
    found = attention_weights(q, k, k, encoding=Llama4Temperature(amount=0.3, step=2))
    torch.testing.assert_close(found, theirs(x, None, None)[1], atol=1e-6, rtol=0)
    assert not torch.allclose(found, attention_weights(q, k, k), atol=1e-3)


def test_mistral_steps_one_token_later() -> None:
    pytest.importorskip("transformers")
    from transformers.models.ministral3.modeling_ministral3 import get_llama_4_attn_scale

    theirs = get_llama_4_attn_scale(torch.arange(1, 20)[None], 0.1, 4).flatten()
    assert factors(Llama4Temperature(step=4), list(range(19))) == pytest.approx(theirs.tolist())
