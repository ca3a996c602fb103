"""A part of each head turned: which dimensions, and which denominator."""

import pytest
import torch

from headway.coordinates import Coordinates
from headway.errors import HeadwayError
from headway.positions import RoPE
from headway.positions._encodings.partial_rope import PartialRoPE


def test_the_denominator_is_what_is_turned() -> None:
    found = PartialRoPE(128, fraction=0.25).frequencies(Coordinates.span(1))
    assert found.shape == (16,)
    assert found[0] == 1
    assert found[-1].item() == pytest.approx(1.778e-4, rel=1e-3)  # not the 0.1155 of p-RoPE
    torch.testing.assert_close(found, RoPE(32).frequencies(Coordinates.span(1)))


def test_the_sizes_say_the_same() -> None:
    assert PartialRoPE(64).width == PartialRoPE(64, fraction=0.25).width == PartialRoPE(64, rotary_dim=16).width == 16
    assert repr(PartialRoPE(64, fraction=0.5)).startswith("PartialRoPE(head_dim=64, rotary_dim=None, fraction=0.5")


@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_only_the_first_dimensions_are_turned(layout: str) -> None:
    x, at = torch.randn(1, 1, 4, 8), Coordinates.of(torch.tensor([0, 1, 70, 4000]), 4)
    given = PartialRoPE(8, rotary_dim=4, layout=layout).prepare(x, at)
    assert torch.equal(given[..., 4:], x[..., 4:])
    assert torch.equal(given[..., :4], RoPE(4, layout=layout).prepare(x[..., :4], at))


def test_halves_are_gpt_neox() -> None:
    package = pytest.importorskip("transformers.models.gpt_neox.modeling_gpt_neox")
    parameters = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25}
    config = package.GPTNeoXConfig(hidden_size=64, num_attention_heads=2, rope_parameters=parameters)
    at = torch.tensor([[0, 1, 5, 60, 300]])
    q, k = torch.randn(2, 1, 2, 5, 32)
    cos, sin = package.GPTNeoXRotaryEmbedding(config)(q, at)
    theirs = package.apply_rotary_pos_emb(q[..., :8], k[..., :8], cos, sin)
    ours, where = PartialRoPE(32, layout="half"), Coordinates.of(at, 5)
    for x, turned in zip((q, k), theirs, strict=True):
        expected = torch.cat([turned, x[..., 8:]], dim=-1)
        torch.testing.assert_close(ours.prepare(x, where), expected, atol=5e-5, rtol=0)


def test_pairs_are_gpt_j() -> None:
    package = pytest.importorskip("transformers.models.gptj.modeling_gptj")
    sin, cos = package.create_sinusoidal_positions(6, 4).chunk(2, dim=-1)
    q = torch.randn(1, 6, 2, 8)
    expected = torch.cat([package.apply_rotary_pos_emb(q[..., :4], sin[None], cos[None]), q[..., 4:]], dim=-1)
    given = PartialRoPE(8, rotary_dim=4).prepare(q.transpose(1, 2), Coordinates.span(6))
    torch.testing.assert_close(given, expected.transpose(1, 2))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"rotary_dim": 4, "fraction": 0.5}, "rotary_dim is 4 and fraction is 0.5: give one of the two"),
        ({"fraction": 1.5}, "fraction is 1.5: give the part of each head to turn"),
        ({"fraction": 0.0}, "fraction is 0.0"),
        ({"fraction": 0.4}, "rotary_dim is 3 of a head_dim of 8: pairs are turned, give an even number, such as 2"),
        ({"rotary_dim": 10}, "rotary_dim is 10 of a head_dim of 8: pairs are turned, give an even number, such as 8"),
    ],
)
def test_wrong_arguments_raise(arguments: dict, said: str) -> None:
    with pytest.raises(HeadwayError, match=said):
        PartialRoPE(8, **arguments)
