"""Rotary positions of time, row and column, in chunks and taking turns."""

import pytest
import torch

from headway.coordinates import Coordinates
from headway.errors import HeadwayError
from headway.positions._encodings.interleaved_m_rope import InterleavedMRoPE
from headway.positions._encodings.m_rope import MRoPE
from headway.positions._encodings.rope import RoPE


def letters(encoding: MRoPE) -> str:
    return "".join("THW"[axis] for axis in encoding.axis_of_pair)


def test_the_released_sections() -> None:
    assert letters(MRoPE()) == 16 * "T" + 24 * "H" + 24 * "W"
    assert letters(InterleavedMRoPE()) == 20 * "THW" + "TTTT"


def test_sections_that_go_beyond_the_last_pair_count_for_less() -> None:
    assert letters(InterleavedMRoPE(64, (8, 12, 12))) == 10 * "THW" + "TH"


@pytest.mark.parametrize("kind", [MRoPE, InterleavedMRoPE])
@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_text_is_turned_as_by_rope(kind: type[MRoPE], layout: str) -> None:
    """A perfect test: the same number on every axis gives RoPE to the last bit."""
    x, n = torch.randn(2, 3, 5, 128, dtype=torch.float64), torch.tensor([0, 1, 7, 4000, 100_000])
    expected = RoPE(128, base=1e6, layout=layout).prepare(x, Coordinates.of(n, 5))
    same = Coordinates.of(n[None, :, None].expand(-1, -1, 3), 5)
    encoding = kind(base=1e6, layout=layout)
    assert torch.equal(encoding.prepare(x, same), expected)
    assert not torch.allclose(encoding.prepare(x, Coordinates.of(torch.randint(9, (1, 5, 3)), 5)), expected)


@pytest.mark.parametrize("sections", [(1, 2), (1, 2, 2), (5, -2, 1)])
def test_wrong_sections_raise(sections: tuple) -> None:
    with pytest.raises(HeadwayError, match="give three numbers of pairs that add up to head_dim/2, 4"):
        MRoPE(8, sections)


def test_positions_on_one_axis_raise() -> None:
    with pytest.raises(HeadwayError, match="positions have 1 axis but MRoPE reads 3"):
        MRoPE().prepare(torch.zeros(1, 1, 2, 128), Coordinates.span(2))


@pytest.mark.parametrize("sections", [(2, 3, 3), (4, 2, 2)])
def test_transformers_agrees(sections: tuple) -> None:
    pytest.importorskip("transformers")
    from transformers.models.qwen2_vl import modeling_qwen2_vl as chunked
    from transformers.models.qwen2_vl.configuration_qwen2_vl import Qwen2VLTextConfig
    from transformers.models.qwen3_vl import modeling_qwen3_vl as interleaved
    from transformers.models.qwen3_vl.configuration_qwen3_vl import Qwen3VLTextConfig

    ids, x = torch.randint(0, 900, (3, 1, 6)), torch.randn(1, 2, 6, 16)
    at = Coordinates.of(ids.permute(1, 2, 0), 6)
    common = {"hidden_size": 32, "num_attention_heads": 2, "num_key_value_heads": 2}
    rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": list(sections)}
    for ours, module, theirs in (
        (MRoPE, chunked, chunked.Qwen2VLRotaryEmbedding(Qwen2VLTextConfig(**common, rope_parameters=rope))),
        (
            InterleavedMRoPE,
            interleaved,
            interleaved.Qwen3VLTextRotaryEmbedding(Qwen3VLTextConfig(**common, head_dim=16, rope_parameters=rope)),
        ),
    ):
        expected, _ = module.apply_rotary_pos_emb(x, x, *theirs(x, ids))
        torch.testing.assert_close(ours(16, sections, base=1e4).prepare(x, at), expected, atol=2e-4, rtol=0)
