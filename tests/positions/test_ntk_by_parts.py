"""The ramp in the turns within the trained length."""

import math

import pytest
import torch

from headway.coordinates import Coordinates
from headway.errors import HeadwayError
from headway.positions import RoPE
from headway.positions._encodings.llama3 import Llama3
from headway.positions._encodings.ntk_by_parts import NTKByParts

AT = Coordinates.span(1)


def test_fast_pairs_stay_slow_ones_are_divided() -> None:
    plain, found = RoPE(128).frequencies(AT), NTKByParts(128, 8.0, 4096).frequencies(AT)
    turns = 4096 * plain / (2 * math.pi)
    assert torch.equal(found[turns >= 32], plain[turns >= 32])
    torch.testing.assert_close(found[turns <= 1], plain[turns <= 1] / 8, rtol=1e-14, atol=0)
    between = (turns > 1) & (turns < 32)
    assert between.sum() > 20
    assert ((found[between] < plain[between]) & (found[between] > plain[between] / 8)).all()


def test_half_way_in_turns_is_half_way() -> None:
    """At r = (α + β)/2 turns the frequency is the mean of the two, as the paper writes it."""
    encoding = NTKByParts(8, 4.0, 1000, base=100.0)
    theta = torch.tensor([2 * math.pi * 16.5 / 1000], dtype=torch.float64)
    assert encoding.kept(theta).item() == pytest.approx(0.5, rel=1e-14)


def test_it_is_llama_3_with_another_beta() -> None:
    ours = NTKByParts(64, 8.0, 8192, 5e5, beta_fast=4.0).frequencies(AT)
    assert torch.equal(ours, Llama3(64).frequencies(AT))


def test_it_is_hugging_faces_llama_3_with_its_own_betas() -> None:
    package = pytest.importorskip("transformers.modeling_rope_utils")
    llama = pytest.importorskip("transformers.models.llama.modeling_llama")
    parameters = {
        "rope_type": "llama3",
        "rope_theta": 10000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 32.0,
        "original_max_position_embeddings": 4096,
    }
    config = llama.LlamaConfig(hidden_size=128, num_attention_heads=1, rope_parameters=parameters)
    theirs, _ = package.ROPE_INIT_FUNCTIONS["llama3"](config)
    torch.testing.assert_close(NTKByParts(128, 8.0, 4096).frequencies(AT).float(), theirs, rtol=2e-6, atol=0)


@pytest.mark.parametrize(("fast", "slow"), [(1.0, 1.0), (1.0, 2.0), (4.0, -1.0), (math.inf, 1.0)])
def test_wrong_turns_raise(fast: float, slow: float) -> None:
    with pytest.raises(HeadwayError, match=f"beta_fast is {fast} and beta_slow {slow}: give turns"):
        NTKByParts(8, beta_fast=fast, beta_slow=slow)
