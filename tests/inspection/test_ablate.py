"""Ablated heads against output projections whose columns are zeroed by hand, and means that are taken by hand."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import headway as hw
from headway.attention import observers
from headway.integrations import transformers as integration
from headway.integrations.torch import swap_attention
from headway.models import Decoder, TransformerConfig

transformers = pytest.importorskip("transformers")

IDS = torch.tensor([[3, 5, 7, 5, 9, 11], [2, 4, 6, 8, 10, 12]])
X = torch.linspace(-2, 2, 2 * 6 * 16).view(2, 6, 16).sin()
PADDING = torch.tensor([[False] * 4 + [True] * 2, [False] * 6])


def decoder() -> Decoder:
    return Decoder(TransformerConfig(vocab_size=40, embed_dim=16, num_heads=4, num_layers=2)).eval()


def gpt2(implementation: str) -> Any:
    if implementation == "headway":
        integration.register()
    config = transformers.GPT2Config(n_embd=16, n_head=4, n_layer=2, vocab_size=40, n_positions=8)
    model = transformers.GPT2Model(config).eval()
    model.set_attn_implementation(implementation)
    return model


class Own(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, 4, 4)).permute(2, 0, 3, 1, 4)
        y: Tensor = self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return y


class Torch(nn.Module):
    def __init__(self, need_weights: bool, swapped: bool = False, batch_first: bool = True) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 4, batch_first=batch_first)
        self.need_weights, self.batch_first = need_weights, batch_first
        if swapped:
            swap_attention(self.attention)

    def forward(self, x: Tensor) -> Tensor:
        x = x if self.batch_first else x.transpose(0, 1)
        y: Tensor = self.attention(x, x, x, need_weights=self.need_weights, key_padding_mask=PADDING)[0]
        return y if self.batch_first else y.transpose(0, 1)


Projection = Callable[[Any], Any]

CASES: dict[str, tuple[Callable[[], nn.Module], Callable[[Any], Tensor], str, Projection]] = {
    "headway": (decoder, lambda m: m(IDS), "stack.blocks.1.attention", lambda m: m.stack.blocks[1].attention.out_proj),
    "own": (Own, lambda m: m(X), "", lambda m: m.out),
}
for name in ("sdpa", "eager", "headway"):
    CASES[f"transformers {name}"] = (
        partial(gpt2, name), lambda m: m(IDS).last_hidden_state, "h.1.attn", lambda m: m.h[1].attn.c_proj
    )  # fmt: skip
for options in product((False, True), repeat=3):
    CASES[f"torch {options}"] = (
        partial(Torch, *options), lambda m: m(X), "attention", lambda m: m.attention.out_proj
    )  # fmt: skip


@pytest.mark.parametrize("name", CASES)
@torch.no_grad()
def test_zero_is_zeroed_columns_of_the_output_projection(name: str) -> None:
    build, call, layer, projection = CASES[name]
    model = build().eval()
    before = call(model)
    with hw.ablate(model, {(layer, 1): "zero", (layer, 3): "zero"}):
        ablated = call(model)
    assert torch.equal(call(model), before)
    assert not observers()
    part = projection(model)
    columns = part.weight if isinstance(part, transformers.pytorch_utils.Conv1D) else part.weight.T
    for head in (1, 3):
        columns[4 * head : 4 * head + 4] = 0
    torch.testing.assert_close(ablated, call(model), atol=2e-6, rtol=1e-5)
    assert not torch.allclose(ablated, before, atol=1e-3)


@pytest.mark.parametrize("name", [name for name in CASES if not name.startswith("torch")])
@torch.no_grad()
def test_a_mean_is_over_the_tokens_of_all_rows(name: str) -> None:
    build, call, layer, projection = CASES[name]
    model = build().eval()
    with hw.ablate(model, {(layer, 2): "mean"}):
        ablated = call(model)

    def replaced(_: nn.Module, given: tuple[Tensor]) -> Tensor:
        x = given[0].clone()
        x[..., 8:12] = x[..., 8:12].mean((0, 1))
        return x

    projection(model).register_forward_pre_hook(replaced)
    torch.testing.assert_close(ablated, call(model), atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("name", [name for name in CASES if name.startswith("torch")])
@torch.no_grad()
def test_a_mean_leaves_padding_out(name: str) -> None:
    model = CASES[name][0]().eval()
    attention = model.attention
    with hw.ablate(model, {(0 if "True, True" in name else "attention", 2): "mean"}):
        ablated = model(X)
    q, k, v = (y.unflatten(-1, (4, 4)).transpose(1, 2) for y in F.linear(X, attention.in_proj_weight).chunk(3, -1))
    scores = (q @ k.transpose(-1, -2) / 2).masked_fill(PADDING[:, None, None], -torch.inf)
    heads = scores.softmax(-1) @ v
    heads[:, 2] = heads[:, 2][~PADDING].mean(0)
    expected = F.linear(heads.transpose(1, 2).flatten(2), attention.out_proj.weight)
    torch.testing.assert_close(ablated, expected, atol=2e-6, rtol=1e-5)


@torch.no_grad()
def test_a_mean_is_summed_in_float32() -> None:
    layer = hw.nn.MultiHeadAttention(8, 2, bias=False, kernel="reference").half()
    for map_ in (layer.v_proj, layer.out_proj):
        map_.weight.copy_(torch.eye(8))
    x = torch.full((1, 600, 8), 300.0, dtype=torch.float16)  # whose sum is above 65,504
    for mask in (None, hw.masks.Padding(torch.tensor([500]))):
        with hw.ablate(layer, {("", 1): "mean"}):
            assert torch.equal(layer(x, mask=mask)[:, :500], x[:, :500])


@pytest.mark.parametrize("name", ["headway", "transformers sdpa", "own", "torch (True, False, False)"])
def test_gradients_flow_around_a_zero(name: str) -> None:
    build, call, layer, _ = CASES[name]
    model = build().eval()
    with hw.ablate(model, {(layer, 0): "zero"}):
        out = call(model)
    out.square().sum().backward()
    assert all(x.grad is not None for x in model.parameters() if x.requires_grad)


def test_ablation_and_capture_nest_in_any_order() -> None:
    model = gpt2("sdpa")
    with hw.ablate(model, {(0, 1): "zero"}):
        expected = model(IDS).last_hidden_state
    with hw.ablate(model, {(0, 1): "zero"}), hw.capture(model, "qk") as inner:
        first = model(IDS).last_hidden_state
    with hw.capture(model, "qk") as outer, hw.ablate(model, {(0, 1): "zero"}):
        second = model(IDS).last_hidden_state
    assert torch.equal(first, expected)
    assert torch.equal(second, expected)
    assert torch.equal(inner.weights(1), outer.weights(1))


def test_numbers_of_layers_are_those_of_the_modules() -> None:
    model = decoder()
    with hw.ablate(model, {(1, 0): "zero"}):
        by_number = model(IDS)
    with hw.ablate(model, {("stack.blocks.1.attention", 0): "zero"}):
        by_name = model(IDS)
    assert torch.equal(by_number, by_name)


def test_a_shared_layer_is_ablated_each_time_or_once() -> None:
    config = transformers.AlbertConfig(
        vocab_size=40,
        embedding_size=8,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=32,
    )
    model = transformers.AlbertModel(config).eval()
    with hw.capture(model) as seen:
        plain = model(IDS).last_hidden_state
    first, second = seen.layers
    found = []
    for layer in (first, second):
        with hw.ablate(model, {(layer, 0): "zero"}), hw.capture(model, "qk") as after:
            found.append(model(IDS).last_hidden_state)
        with hw.capture(model, "qk") as seen:
            model(IDS)
        same = torch.equal(after.weights(1), seen.weights(1))
        assert same is (layer == second)  # the name alone reaches the first time too
    assert not torch.equal(found[0], found[1])
    assert not torch.equal(found[1], plain)


@pytest.mark.parametrize(
    ("heads", "said"),
    [
        ({}, "heads is {}: give a dictionary"),
        ({(0, 4): "zero"}, "there is no head of 'stack.blocks.0.attention' 4: the nearest is 3"),
        ({(2, 0): "zero"}, "there is no layer 2: the nearest is 1, 'stack.blocks.1.attention'"),
        ({("stack.blocks.1.atention", 0): "zero"}, "the nearest is 'stack.blocks.1.attention'"),
        ({(0, 0): "half"}, "heads has 'half' for (0, 0): give 'zero' or 'mean'"),
        ({0: "zero"}, "heads has 0: give (layer, head)"),
    ],
)
def test_bad_heads_are_refused_before_the_block(heads: Any, said: str) -> None:
    entered = False
    with pytest.raises(hw.HeadwayError, match=re.escape(said)), hw.ablate(decoder(), heads):
        entered = True
    assert not entered


def test_what_is_known_only_when_it_runs() -> None:
    own = Own()
    with pytest.raises(hw.HeadwayError, match="no head of '' 4: the nearest is 3"), hw.ablate(own, {("", 4): "zero"}):
        own(X)
    with pytest.raises(hw.HeadwayError, match="mean over a single query"), hw.ablate(own, {("", 0): "mean"}):
        own(X[:1, :1])
    model = decoder()
    said = "'stack.norm' should be ablated but made no attention call: give one of 'stack.blocks.0.attention'"
    with pytest.raises(hw.HeadwayError, match=said), hw.ablate(model, {("stack.norm", 0): "zero"}):
        model(IDS)
    layer = Torch(need_weights=True, swapped=True).train()
    layer.attention.dropout = 0.5
    with pytest.raises(hw.HeadwayError, match=r"call model\.eval"), hw.ablate(layer, {("attention", 0): "zero"}):
        layer(X)
    assert not observers()
