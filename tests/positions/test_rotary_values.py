"""Values turned by their position and the output turned back: the formula, DeepSeek-V4's numbers, what is refused."""

from __future__ import annotations

import cmath
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import headway as hw
from headway.masks import Causal, Window
from headway.positions import (
    DAPE,
    GRAPEM,
    Compose,
    DINOv3RoPE,
    MixedRoPE,
    NoPE,
    PartialRoPE,
    PositionEncoding,
    RoPE,
    RotaryValues,
    SelectiveRoPE,
    Shaw,
    XPos,
    YaRN,
    drop_positions,
)

AT = torch.tensor([0.0, 1.0, 5.0, 5.5, 40.0])


def qkv(heads: int = 2, kv_heads: int = 2, n: int = 5, width: int = 8) -> list[Tensor]:
    return [torch.randn(1, h, n, width, dtype=torch.float64) for h in (heads, kv_heads, kv_heads)]


def literally(weights: Tensor, v: Tensor, at: Tensor, pairs: list[tuple[int, int, float]]) -> Tensor:
    """Σ_j A_ij·R(p_j − p_i)·v_j, pair by pair as complex numbers; pairs: two dimensions and their frequency."""
    out = torch.einsum("bhij,bhjd->bhid", weights, v)
    for a, b, frequency in pairs:
        numbers = torch.complex(v[..., a], v[..., b])
        for i in range(len(at)):
            total = torch.zeros_like(numbers[..., 0])
            for j in range(len(at)):
                total += weights[..., i, j] * numbers[..., j] * cmath.exp(1j * frequency * float(at[j] - at[i]))
            out[..., i, a], out[..., i, b] = total.real, total.imag
    return out


INTERLEAVED = [(2 * c, 2 * c + 1, 10000.0 ** (-c / 4)) for c in range(4)]
SLICES: dict[str, tuple[Any, list[tuple[int, int, float]]]] = {
    "all": (None, INTERLEAVED),
    "last": (RoPE(4, layout="half"), [(4, 6, 1.0), (5, 7, 0.01)]),
    "first": (PartialRoPE(8, rotary_dim=4), [(0, 1, 1.0), (2, 3, 0.01)]),
}


@pytest.mark.parametrize("name", SLICES)
def test_the_output_is_the_formula(name: str) -> None:
    rotary, pairs = SLICES[name]
    q, k, v = qkv()
    arguments: dict[str, Any] = {"encoding": RotaryValues(8, rotary), "q_positions": AT, "k_positions": AT}
    weights = hw.attention_weights(q, k, v)
    assert torch.equal(hw.attention_weights(q, k, v, **arguments), weights)
    torch.testing.assert_close(hw.attention(q, k, v, **arguments), literally(weights, v, AT, pairs))


def test_composed_with_rope_it_is_rope_and_its_values() -> None:
    q, k, v = qkv()
    encoding = hw.encoding("rope + rotary-values", head_dim=8)
    where: dict[str, Any] = {"q_positions": AT, "k_positions": AT}
    weights = hw.attention_weights(q, k, v, encoding=RoPE(8), **where)
    out = hw.attention(q, k, v, encoding=encoding, **where)
    torch.testing.assert_close(out, literally(weights, v, AT, INTERLEAVED))


def test_a_magnitude_plays_no_part() -> None:
    rotary = YaRN(8, factor=4.0, max_length=16)
    assert rotary.magnitude != 1
    q, k, v = qkv()
    frequencies = rotary.frequencies(hw.Coordinates.span(5)).tolist()
    pairs = [(2 * c, 2 * c + 1, frequency) for c, frequency in enumerate(frequencies)]
    out = hw.attention(q, k, v, encoding=RotaryValues(8, rotary))
    torch.testing.assert_close(out, literally(hw.attention_weights(q, k, v), v, torch.arange(5.0), pairs))


def test_the_numbers_of_deepseek_v4() -> None:
    """A whole layer of transformers: one head of keys that are the values too, a turned end of each head, sinks."""
    package = pytest.importorskip("transformers.models.deepseek_v4.modeling_deepseek_v4")
    torch.manual_seed(0)
    n, window, turned = 9, 4, 6
    config = package.DeepseekV4Config(
        hidden_size=32, num_attention_heads=4, head_dim=16, q_lora_rank=12, o_groups=2, o_lora_rank=10,
        num_hidden_layers=1, layer_types=["sliding_attention"], sliding_window=window,
        partial_rotary_factor=turned / 16, attn_implementation="eager",
    )  # fmt: skip
    layer = package.DeepseekV4Attention(config, 0).eval()
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.5)
    x = torch.randn(2, n, 32)
    slots = torch.arange(n)
    hidden = (slots > slots[:, None]) | (slots <= slots[:, None] - window)
    mask = torch.zeros(n, n).masked_fill(hidden, -math.inf)[None, None]
    rotation = package.DeepseekV4RotaryEmbedding(config)(x, slots[None], layer_type="main")
    theirs, _ = layer(x, {"main": rotation}, slots[None], mask)

    q = layer.q_b_norm(layer.q_b_proj(layer.q_a_norm(layer.q_a_proj(x))).view(2, n, 4, 16).transpose(1, 2))
    kv = layer.kv_norm(layer.kv_proj(x)).view(2, n, 1, 16).transpose(1, 2)
    encoding = Compose(PartialRoPE(16, rotary_dim=turned), RotaryValues(16, RoPE(turned)))
    last_first = q.roll(turned, -1), kv.roll(turned, -1)  # PartialRoPE turns the first dimensions of q and k
    out = hw.attention(*last_first, kv, encoding=encoding, mask=Causal() & Window(window - 1), sink=layer.sinks)
    ours = layer.o_b_proj(layer.o_a_proj(out.transpose(1, 2).reshape(2, n, 2, -1)).flatten(2))
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4 * theirs.abs().max().item())


def test_relative_values_are_turned_back_too() -> None:
    """out_i = T_i⁻¹·Σ_j A_ij·(T_j·v_j + r_ij); no pair's oracle adds that up, and it says so."""
    shaw = Shaw(8, max_distance=3).double()
    nn.init.normal_(shaw.values)
    q, k, v = qkv()
    both = Compose(RotaryValues(8), shaw)
    weights = hw.attention_weights(q, k, v, encoding=shaw)
    distance = (torch.arange(5) - torch.arange(5)[:, None]).clamp(-3, 3) + 3
    added = torch.einsum("bhij,ijd->bhid", weights, shaw.values.view(-1, 8)[distance])
    at = both.parts[0].place(hw.Coordinates.span(5))  # type: ignore[operator]
    expected = literally(weights, v, torch.arange(5.0), INTERLEAVED) + RotaryValues(8).restore_output(added, at)
    torch.testing.assert_close(hw.attention(q, k, v, encoding=both), expected)
    with pytest.raises(hw.HeadwayError, match="one part transforms values and another changes them"):
        both.oracle_value(None, v[0])  # type: ignore[arg-type]


def test_it_knows_distances_alone() -> None:
    rows = {row.demand: row for row in RotaryValues(8).properties()}
    assert [row.verdict for row in rows.values()] == ["not its job", "yes", "yes", "yes"]
    assert rows["the values stay bounded"].measured.startswith("largest change of a value")


def test_dropped_positions_are_dropped_from_values_too() -> None:
    model = nn.ModuleList([nn.ModuleDict({"turned": RoPE(8), "too": RotaryValues(8)})])
    assert drop_positions(model) == 2
    assert {type(one).__name__ for one in model.modules() if isinstance(one, PositionEncoding)} == {"NoPE"}
    model = nn.ModuleList([nn.ModuleDict({"turned": RoPE(8), "too": RotaryValues(8)})])
    assert drop_positions(model, (RoPE,)) == 1
    assert isinstance(model[0]["too"].rotary, RoPE)  # type: ignore[index]


class Doubled(RoPE):
    def prepare(self, x: Tensor, coordinates: hw.Coordinates) -> Tensor:
        return 2 * super().prepare(x, coordinates)


@pytest.mark.parametrize(
    "rotary",
    [NoPE(), XPos(8), SelectiveRoPE(16, 2), MixedRoPE(2, 8), GRAPEM(8), DINOv3RoPE(8, jitter=2.0), Doubled(8), "rope"],
    ids=lambda value: type(value).__name__,
)
def test_what_is_no_turn_by_positions_alone_is_refused(rotary: Any) -> None:
    with pytest.raises(hw.HeadwayError, match=r"rotary is .*such as RoPE\(8\)"):
        RotaryValues(8, rotary)


def test_widths_that_do_not_fit_are_refused() -> None:
    with pytest.raises(hw.HeadwayError, match="rotary turns heads of 16 but head_dim is 8"):
        RotaryValues(8, RoPE(16))
    q, k, _ = qkv()
    with pytest.raises(hw.HeadwayError, match="with head_dim=8 and is given a last dimension of 6"):
        hw.attention(q, k, k[..., :6], encoding=RotaryValues(8))
    with pytest.raises(hw.HeadwayError, match=r"bias is RotaryValues\(8, RoPE.*adds only biases"):
        DAPE(2, RotaryValues(8))
