"""A base that follows the length of the sequence."""

import pytest
import torch

from headway.coordinates import Coordinates
from headway.errors import HeadwayError
from headway.positions._encodings.dynamic_ntk import DynamicNTK
from headway.positions._encodings.ntk_aware import NTKAware

# jquesnelle/yarn (the author's), scaled_rope/LlamaDynamicScaledRotaryEmbedding.py at 995db5b, run in float64:
# dim 16, 64 positions, base 10000, ntk 2, then a sequence of 100; dim 8, ntk 1, a sequence of 300
AUTHORS = [
    1.0,
    0.283945138848,
    0.0806248418756,
    0.022893031921,
    0.00650036512746,
    0.00184574707868,
    0.000524090910535,
    0.000148813066361,
]
AUTHORS_1 = [1.0, 0.0597520632874, 0.0035703090671, 0.000213333333333]


def spectrum(encoding: DynamicNTK, length: int) -> torch.Tensor:
    return encoding.frequencies(Coordinates.span(1, length=length)).flatten()


def test_numbers_of_the_authors_code() -> None:
    assert spectrum(DynamicNTK(16, 2.0, 64), 100).tolist() == pytest.approx(AUTHORS, rel=1e-11)
    assert spectrum(DynamicNTK(8, 1.0, 64), 300).tolist() == pytest.approx(AUTHORS_1, rel=1e-11)


def test_it_is_ntk_aware_of_a_factor_that_follows() -> None:
    """factor·T/L − (factor − 1): 2·160/64 − 1 = 4"""
    fixed = NTKAware(16, 4.0).frequencies(Coordinates.span(1))
    torch.testing.assert_close(spectrum(DynamicNTK(16, 2.0, 64), 160), fixed, rtol=1e-13, atol=0)


def test_a_longer_sequence_before_leaves_no_trace() -> None:
    """Where Hugging Face's keeps the frequencies of the longest sequence until one below L comes."""
    package = pytest.importorskip("transformers.models.llama.modeling_llama")
    config = package.LlamaConfig(
        hidden_size=16,
        num_attention_heads=1,
        max_position_embeddings=64,
        rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0},
    )
    theirs, ours = package.LlamaRotaryEmbedding(config), DynamicNTK(16, 2.0, 64, layout="half")
    x = torch.ones(1, 1, 200, 16)
    seen = []
    for n in (100, 200, 100):
        cos, sin = theirs(x, torch.arange(n)[None])
        (expected, _) = package.apply_rotary_pos_emb(x[:, :, :n], x[:, :, :n], cos, sin)
        given = ours.prepare(x[:, :, :n], Coordinates.span(n))
        seen.append((given - expected).abs().max().item())
    assert seen[0] < 1e-4
    assert seen[1] < 1e-4
    assert seen[2] > 0.1


def test_one_pair_alone_has_no_slower_one() -> None:
    with pytest.raises(HeadwayError, match="2 dimensions are turned"):
        DynamicNTK(2)
