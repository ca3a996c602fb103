"""Swapped layers are torch's to 1e-5, forward and backward; an added encoding acts wherever torch would go past it."""

import contextlib
import copy
import io
import itertools
import math
import pickle
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import headway as hw
from headway.integrations.torch import (
    HeadwayAttention,
    restore_attention,
    swap_attention,
    swapped_attention,
    swapped_linear,
)
from headway.nn.linear import Linear

pytestmark = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")

BATCH, HEADS, L, S, WIDTH = 2, 4, 5, 7, 16
INF = math.inf

# What the layer is built with.
LAYERS: dict[str, dict[str, Any]] = {
    "plain": {},
    "kdim": {"kdim": 12},
    "vdim": {"vdim": 20},
    "kdim and vdim": {"kdim": 12, "vdim": 20},
    "no bias": {"bias": False},
    "bias_kv": {"add_bias_kv": True},
    "zero_attn": {"add_zero_attn": True},
    "bias_kv, zero_attn, kdim": {"add_bias_kv": True, "add_zero_attn": True, "kdim": 12},
}


def causal(n: int, m: int) -> Tensor:
    return torch.ones(n, m, dtype=torch.bool).triu(1)


def masks(n: int, m: int, batch: int | None) -> dict[str, dict[str, Any]]:
    """What the layer is called with; batch: None where there is none."""
    rows = batch or 1
    padding = torch.zeros(rows, m, dtype=torch.bool)
    padding[-1, m - 2 :] = True
    some = torch.rand(n, m) < 0.3
    some[:, 0] = False
    by_head = torch.rand(rows * HEADS, n, m) < 0.3
    by_head[..., 0] = False
    numbers = torch.randn(n, m).masked_fill(some, -INF)
    ending = torch.zeros(rows, m).masked_fill(padding, -INF)
    padding, ending, numbers_by_key = (
        (x if batch else x[0]) for x in (padding, ending, torch.randn(rows, m).masked_fill(padding, -INF))
    )
    return {
        "none": {},
        "padding": {"key_padding_mask": padding},
        "float padding": {"key_padding_mask": numbers_by_key.requires_grad_()},
        "[n, m]": {"attn_mask": some},
        "[n, m] and padding": {"attn_mask": some, "key_padding_mask": padding},
        "[batch·heads, n, m]": {"attn_mask": by_head},
        "[batch·heads, n, m] and padding": {"attn_mask": by_head, "key_padding_mask": padding},
        "floats": {"attn_mask": numbers.requires_grad_()},
        "floats by head": {"attn_mask": torch.randn(rows * HEADS, n, m).requires_grad_()},
        "floats and padding": {"attn_mask": numbers.clone(), "key_padding_mask": ending},
        "causal": {"attn_mask": causal(n, m), "is_causal": True},
        "causal in floats": {"attn_mask": torch.zeros(n, m).masked_fill(causal(n, m), -INF), "is_causal": True},
        "causal and padding": {"attn_mask": causal(n, m), "is_causal": True, "key_padding_mask": padding},
    }


MASKS = list(masks(L, S, BATCH))


def a_layer(batch_first: bool = False, **arguments: Any) -> nn.MultiheadAttention:
    """A layer of torch's with no bias at zero."""
    layer = nn.MultiheadAttention(WIDTH, HEADS, batch_first=batch_first, **arguments)
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.4)
    return layer


def inputs(layer: nn.MultiheadAttention, n: int, m: int, batch: int | None = BATCH) -> list[Tensor]:
    """query, key, value in the layer's layout; all the same tensor where n == m and widths allow."""

    def tokens(count: int, width: int) -> Tensor:
        sizes = [count] if batch is None else [batch, count] if layer.batch_first else [count, batch]
        return torch.randn(*sizes, width).requires_grad_()

    query = tokens(n, WIDTH)
    if n == m and layer.kdim == layer.vdim == WIDTH:
        return [query, query, query]
    return [query, tokens(m, layer.kdim), tokens(m, layer.vdim)]


def results(layer: nn.Module, tokens: list[Tensor], **call: Any) -> tuple[Tensor, Tensor | None, dict[str, Tensor]]:
    """The output, the weights, and every gradient of a loss over both."""
    leaves = dict(layer.named_parameters())
    for name, x in [*zip(("query", "key", "value"), tokens, strict=True), *call.items()]:
        if isinstance(x, Tensor) and x.requires_grad:
            leaves[name] = x
    out, weights = layer(*tokens, **call)
    loss = (out * torch.linspace(-1, 1, out.numel()).view(out.shape)).sum()
    if weights is not None:
        loss = loss + (weights * torch.linspace(-1, 2, weights.numel()).view(weights.shape)).sum()
    found = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
    return (
        out,
        weights,
        {n: torch.zeros_like(x) if g is None else g for (n, x), g in zip(leaves.items(), found, strict=True)},
    )


def check_same(
    layer: nn.MultiheadAttention, tokens: list[Tensor], theirs: dict[str, Any], ours: dict[str, Any]
) -> None:
    expected, expected_weights, expected_gradients = results(layer, tokens, **theirs)
    out, weights, gradients = results(swap_attention(copy.deepcopy(layer)), tokens, **ours)
    torch.testing.assert_close(out, expected, atol=1e-5, rtol=1e-5)
    assert out.stride() == expected.stride() or layer.batch_first
    torch.testing.assert_close(weights, expected_weights, atol=1e-5, rtol=1e-5)
    assert gradients.keys() == expected_gradients.keys()
    for name, gradient in gradients.items():
        torch.testing.assert_close(
            gradient, expected_gradients[name], atol=1e-5, rtol=1e-4, msg=lambda s, n=name: f"{n}: {s}"
        )


@pytest.mark.one_in(3)
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("built", LAYERS)
def test_it_is_torch_s(built: str, mask: str) -> None:
    """Over self- and cross-attention, both layouts, without a batch; with the weights, averaged or not, and without."""
    for m, (batch_first, batch) in itertools.product((L, S), [(False, BATCH), (True, BATCH), (True, None)]):
        layer = a_layer(batch_first, **LAYERS[built])
        tokens = inputs(layer, L, m, batch)
        call = masks(L, m, batch)[mask]
        for wanted in ({}, {"average_attn_weights": False}, {"need_weights": False}):
            theirs = call | wanted
            if layer.bias_k is not None or layer.add_zero_attn:
                # torch's fused path takes the hint and hides the added keys that attn_mask shows
                theirs = theirs | {"is_causal": False}
            check_same(layer, tokens, theirs, call | wanted)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_in_other_dtypes(dtype: torch.dtype) -> None:
    layer = a_layer(batch_first=True).to(dtype)
    x = torch.randn(BATCH, L, WIDTH, dtype=dtype)
    swapped = swap_attention(copy.deepcopy(layer))
    for need_weights in (True, False):
        (out, weights), (expected, expected_weights) = (
            each(x, x, x, attn_mask=causal(L, L), need_weights=need_weights) for each in (swapped, layer)
        )
        close = {"atol": 0.05, "rtol": 0.05} if dtype == torch.bfloat16 else {"atol": 1e-12, "rtol": 1e-12}
        torch.testing.assert_close(out, expected, **close)
        torch.testing.assert_close(weights, expected_weights, **close)


def test_under_autocast() -> None:
    layer = a_layer()
    x = torch.randn(L, BATCH, WIDTH)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        expected = layer(x, x, x, key_padding_mask=torch.tensor([[False] * L, [True] + [False] * (L - 1)]))[0]
        out = swap_attention(layer)(x, x, x, key_padding_mask=torch.tensor([[False] * L, [True] + [False] * (L - 1)]))[
            0
        ]
    assert out.dtype == expected.dtype == torch.bfloat16
    torch.testing.assert_close(out, expected, atol=0.1, rtol=0.05)


# ---------------------------------------------------------------- dropout, nothing in sight


def test_dropout_with_weights_is_torch_s_own_draw() -> None:
    """The weights that are returned are those that made the output, some of them 0."""
    layer = a_layer(dropout=0.5)
    x = torch.randn(L, BATCH, WIDTH)
    results = []
    for each in (layer, swap_attention(copy.deepcopy(layer))):
        torch.manual_seed(3)
        results.append(each(x, x, x, average_attn_weights=False))
    assert (results[0][1] == 0).any()
    torch.testing.assert_close(results[1], results[0], atol=1e-5, rtol=1e-5)


def test_dropout_without_weights_is_for_training_alone() -> None:
    """Of values of ones, in a layer that hands them through, the output is the share of weights kept, over 1 − p."""
    layer = nn.MultiheadAttention(WIDTH, HEADS, dropout=0.25, bias=False)
    with torch.no_grad():
        layer.in_proj_weight[2 * WIDTH :] = torch.eye(WIDTH)
        layer.out_proj.weight.copy_(torch.eye(WIDTH))
    swapped = swap_attention(layer)
    x, ones = torch.randn(64, 32, WIDTH), torch.ones(64, 32, WIDTH)
    out = swapped(x, x, ones, need_weights=False)[0]
    assert out.std() > 0.01
    assert abs(out.mean() - 1) < 0.01
    torch.testing.assert_close(swapped.eval()(x, x, ones, need_weights=False)[0], ones)


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("floats", [True, False])
def test_rows_that_see_nothing_are_zero(floats: bool, need_weights: bool) -> None:
    """Whatever stands at what nobody sees; torch gives NaN, in the gradients too."""
    layer = swap_attention(a_layer())
    hidden = torch.zeros(L, L, dtype=torch.bool)
    hidden[2] = True
    padding = torch.tensor([[False] * L, [True] * L])
    x = torch.randn(L, BATCH, WIDTH)
    x[:, 1] = math.nan
    x.requires_grad_()
    call = {"attn_mask": hidden, "key_padding_mask": padding}
    if floats:
        call = {name: torch.zeros(mask.shape).masked_fill(mask, -INF) for name, mask in call.items()}
    out, weights = layer(x, x, x, need_weights=need_weights, **call)
    nothing = layer.out_proj.bias.expand(L, WIDTH)
    torch.testing.assert_close(out[:, 1], nothing)
    torch.testing.assert_close(out[2], nothing[:BATCH])
    assert out[0, 0].isfinite().all()
    assert weights is None or (not weights[1].any() and not weights[0, 2].any())
    out.sum().backward()
    assert x.grad is not None
    assert x.grad.isfinite().all()


def test_added_keys_are_seen_where_is_causal_is_given() -> None:
    """attn_mask says so; torch's fused path, which goes by the hint, hides them."""
    layer = swap_attention(a_layer(add_bias_kv=True, add_zero_attn=True))
    x = torch.randn(L, BATCH, WIDTH)
    by_hint = layer(x, x, x, attn_mask=causal(L, L), is_causal=True, need_weights=False)[0]
    torch.testing.assert_close(by_hint, layer(x, x, x, attn_mask=causal(L, L))[0])


# ---------------------------------------------------------------- an encoding acts, and never vanishes

MODES: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "train": contextlib.nullcontext,
    "eval": contextlib.nullcontext,
    "eval, no_grad": torch.no_grad,
    "eval, inference_mode": torch.inference_mode,
}


class Bare(nn.Module):
    """Self-attention by the layer alone, all three inputs the same tensor: what torch's own fast path asks for."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = a_layer(batch_first=True)

    def forward(self, x: Tensor, **masks: Tensor) -> Tensor:
        return self.attention(x, x, x, **masks)[0]


def layer_of(kind: type[nn.Module], **arguments: Any) -> nn.Module:
    return kind(WIDTH, HEADS, dim_feedforward=32, dropout=0.0, batch_first=True, **arguments)


def encoder(**arguments: Any) -> nn.Module:
    return nn.TransformerEncoder(layer_of(nn.TransformerEncoderLayer, **arguments), 2)


PADDED = torch.tensor([[False] * L, [False] * (L - 2) + [True] * 2])  # to the right, as nested tensors want it
STACKS: dict[str, tuple[Callable[[], nn.Module], Callable[[nn.Module, Tensor], Tensor]]] = {
    "MultiheadAttention": (Bare, lambda model, x: model(x, key_padding_mask=PADDED)),
    "TransformerEncoderLayer": (lambda: layer_of(nn.TransformerEncoderLayer), lambda model, x: model(x)),
    "TransformerEncoderLayer, norm first, padded": (
        lambda: layer_of(nn.TransformerEncoderLayer, norm_first=True, activation="gelu"),
        lambda model, x: model(x, src_key_padding_mask=PADDED),
    ),
    "TransformerEncoderLayer, causal": (
        lambda: layer_of(nn.TransformerEncoderLayer),
        lambda model, x: model(x, causal(L, L), is_causal=True),
    ),
    "TransformerEncoder": (encoder, lambda model, x: model(x)),
    "TransformerEncoder, padded": (encoder, lambda model, x: model(x, src_key_padding_mask=PADDED)),
    "TransformerEncoder, causal, padded": (
        encoder,
        lambda model, x: model(x, causal(L, L), src_key_padding_mask=PADDED),
    ),
    "TransformerDecoderLayer": (lambda: layer_of(nn.TransformerDecoderLayer), lambda model, x: model(x, x[:, :3])),
    "Transformer": (
        lambda: layer_of(nn.Transformer, num_encoder_layers=1, num_decoder_layers=1),
        lambda model, x: model(x, x[:, :4], src_key_padding_mask=PADDED, memory_key_padding_mask=PADDED),
    ),
}


@pytest.mark.parametrize("stack", STACKS)
def test_an_encoding_acts_in_every_mode(stack: str) -> None:
    """Without one, the model is torch's in every mode; with one, it is another and the same in all of them."""
    build, call = STACKS[stack]
    model = build()
    with_encoding = swap_attention(copy.deepcopy(model), "rope(base=10.0)")
    without = swap_attention(copy.deepcopy(model))
    x = torch.randn(BATCH, L, WIDTH)
    in_training = None
    for mode, context in MODES.items():
        for each in (model, with_encoding, without):
            each.train(mode == "train")
        with context():
            theirs, ours, encoded = (call(each, x) for each in (model, without, with_encoding))
        real = slice(L - 2)  # torch's nested tensors put zeros at padding
        torch.testing.assert_close(ours[:, real], theirs[:, real], atol=1e-5, rtol=1e-5)
        assert (encoded[:, real] - ours[:, real]).abs().max() > 0.01, mode
        in_training = encoded if in_training is None else in_training
        torch.testing.assert_close(encoded, in_training, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("built", ["of a swapped layer", "of layers that are swapped then", "of unpickled layers"])
def test_a_stack_whose_padded_input_becomes_a_nested_tensor(built: str) -> None:
    if built == "of a swapped layer":
        stack = nn.TransformerEncoder(swap_attention(layer_of(nn.TransformerEncoderLayer), "rope"), 2).eval()
    else:
        stack = nn.TransformerEncoder(layer_of(nn.TransformerEncoderLayer), 2).eval()
        swap_attention(stack.layers, "rope")
    if built == "of unpickled layers":
        stack = pickle.loads(pickle.dumps(stack))
    assert stack.use_nested_tensor
    x = torch.randn(BATCH, L, WIDTH)
    with torch.no_grad():
        padded = stack(x, src_key_padding_mask=PADDED)
        alone = stack(x[1:, : L - 2])
    torch.testing.assert_close(padded[1:, : L - 2], alone, atol=1e-5, rtol=1e-5)
    assert not padded[PADDED].any()


def test_a_nested_tensor_beside_a_mask_or_another_tensor_is_refused() -> None:
    layer = swap_attention(a_layer(batch_first=True))
    x = torch.nested.nested_tensor([torch.randn(3, WIDTH), torch.randn(5, WIDTH)])
    weights = layer(x, x, x)[1]
    assert weights is not None
    assert not weights[0, :, 3:].any()
    for keys, masks in ((x.clone(), {}), (x, {"key_padding_mask": torch.zeros(2, 5)})):
        with pytest.raises(hw.HeadwayError, match=r"nested tensor, .*: pad it and give key_padding_mask"):
            layer(x, keys, keys, **masks)


# ---------------------------------------------------------------- other libraries around a layer


class WithAdapter(nn.Module):
    """What peft makes of a layer: it hands on the layer's attributes, and adds to its weight for each call."""

    def __init__(self, layer: nn.MultiheadAttention, added: Tensor) -> None:
        if not layer._qkv_same_embed_dim:
            raise ValueError("Only same embed for query/key/value is supported")
        super().__init__()
        self.base_layer, self.added = layer, nn.Parameter(added)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("base_layer"), name)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        weight = self.base_layer.in_proj_weight
        del self.base_layer.in_proj_weight
        self.base_layer.in_proj_weight = weight + self.added
        try:
            return self.base_layer(*args, **kwargs)
        finally:
            del self.base_layer.in_proj_weight
            self.base_layer.register_parameter("in_proj_weight", weight)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("first", ["swap", "adapt"])
def test_an_adapter_acts_in_either_order(first: str, mode: str) -> None:
    layer, added = layer_of(nn.TransformerEncoderLayer), torch.randn(3 * WIDTH, WIDTH)
    merged = copy.deepcopy(layer)
    with torch.no_grad():
        merged.self_attn.in_proj_weight += added
    for step in (first, "adapt" if first == "swap" else "swap"):
        if step == "swap":
            swap_attention(layer)
        else:
            layer.self_attn = WithAdapter(layer.self_attn, added)
    layer.requires_grad_(mode == "train").train(mode == "train")
    x = torch.randn(BATCH, L, WIDTH)
    with MODES[mode]():
        torch.testing.assert_close(layer(x), merged(x), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("first", ["swap", "adapt"])
def test_peft(first: str, tmp_path: Path) -> None:
    """Adapters act in every mode, are saved and loaded, and are merged."""
    peft = pytest.importorskip("peft")

    def built(encoder: nn.Module, how: Callable[[nn.Module], nn.Module]) -> nn.Module:
        torch.manual_seed(0)
        return how(swap_attention(encoder)) if first == "swap" else swap_attention(how(encoder))

    config = peft.LoraConfig(r=4, target_modules=["self_attn"], init_lora_weights=False)
    plain, x = encoder(), torch.randn(BATCH, L, WIDTH)
    model = built(copy.deepcopy(plain), lambda one: peft.get_peft_model(one, config))
    torch.manual_seed(0)
    expected = peft.get_peft_model(copy.deepcopy(plain), config)(x)  # in training, where torch has no fast path
    assert (expected - plain(x)).abs().max() > 0.1
    model.save_pretrained(tmp_path)
    loaded = built(copy.deepcopy(plain), lambda one: peft.PeftModel.from_pretrained(one, str(tmp_path)))
    for one in (model, loaded, loaded.merge_and_unload()):
        for mode, context in MODES.items():
            with context():
                torch.testing.assert_close(one.train(mode == "train")(x), expected, atol=1e-5, rtol=1e-5)
    assert len(swapped_attention(one)) == 2


def by_hand(layer: HeadwayAttention, query: Tensor, key: Tensor, encoding: Any, mask: Tensor) -> Tensor:
    """The same with headway's own layer, for inputs with the batch first."""
    ours = hw.nn.MultiHeadAttention(WIDTH, HEADS, encoding=encoding)
    with torch.no_grad():
        for letter, weight, bias in zip("qkv", layer.in_proj_weight.chunk(3), layer.in_proj_bias.chunk(3), strict=True):
            getattr(ours, f"{letter}_proj").weight.copy_(weight)
            getattr(ours, f"{letter}_proj").bias.copy_(bias)
        ours.out_proj.load_state_dict(layer.out_proj.state_dict())
    return ours(query, key, mask=mask)


@pytest.mark.parametrize("name", ["rope", "alibi", "t5", "shaw", "transformer-xl", "forgetting", "cope", "repo-rope"])
def test_an_encoding_is_the_one_headway_has(name: str) -> None:
    """In both layouts, with the weights and without, in cross-attention as well."""
    for batch_first, m in itertools.product((False, True), (L, S)):
        layer = swap_attention(a_layer(batch_first), name)
        encoding = layer.encoding
        for parameter in encoding.parameters():
            nn.init.normal_(parameter)
        if m != L and (encoding.reads_input or encoding.causal_only):
            continue
        query, key = torch.randn(BATCH, L, WIDTH), torch.randn(BATCH, m, WIDTH)
        key = query if m == L else key
        expected = by_hand(layer, query, key, encoding, ~causal(L, m))
        turned = query if batch_first else query.transpose(0, 1)
        other = turned if m == L else key if batch_first else key.transpose(0, 1)
        for need_weights in (True, False):
            out = layer(turned, other, other, attn_mask=causal(L, m), is_causal=True, need_weights=need_weights)[0]
            out = out if batch_first else out.transpose(0, 1)
            torch.testing.assert_close(out, expected, atol=1e-5, rtol=1e-5)


def test_the_added_encoding_learns_under_its_own_name() -> None:
    model = swap_attention(encoder(), "t5")
    x = torch.randn(BATCH, L, WIDTH)
    model(x, src_key_padding_mask=PADDED).square().sum().backward()
    added = {name: p for name, p in model.named_parameters() if ".encoding." in name}
    assert list(added) == [f"layers.{i}.self_attn.encoding.table" for i in range(2)]
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in added.values())


@pytest.mark.parametrize("name", ["shaw", "rotary-values"])
def test_dropped_weights_cannot_tell_what_changes_values(name: str) -> None:
    layer = swap_attention(a_layer(dropout=0.5), name)
    x = torch.randn(L, BATCH, WIDTH)
    with pytest.raises(hw.HeadwayError, match="need_weights=False in training"):
        layer(x, x, x)
    layer(x, x, x, need_weights=False)
    layer.eval()(x, x, x)


# ---------------------------------------------------------------- which encoding a layer gets


def test_a_name_is_built_for_each_layer_and_an_object_is_shared() -> None:
    own = [layer.self_attn.encoding for layer in swap_attention(encoder(), "t5").layers]
    assert own[0] is not own[1]
    shared = hw.encoding("t5", num_heads=HEADS)
    assert all(layer.self_attn.encoding is shared for layer in swap_attention(encoder(), shared).layers)


def test_a_function_chooses_by_name_and_module() -> None:
    seen = []

    def choose(name: str, module: nn.MultiheadAttention) -> Any:
        seen.append((name, type(module), module.num_heads))
        return None if name == "multihead_attn" else hw.positions.ALiBi

    model = swap_attention(layer_of(nn.TransformerDecoderLayer).eval(), choose)
    assert seen == [("self_attn", nn.MultiheadAttention, HEADS), ("multihead_attn", nn.MultiheadAttention, HEADS)]
    assert isinstance(model.self_attn.encoding, hw.positions.ALiBi)
    assert not model.self_attn.encoding.training
    assert model.multihead_attn.encoding is None
    assert swapped_attention(model) == ["self_attn", "multihead_attn"]


@pytest.mark.parametrize(
    ("encoding", "error"),
    [
        ("roppe", "there is no encoding 'roppe'"),
        ("sinusoidal", "Sinusoidal does nothing in an attention layer"),
        ("learned", r"Learned does nothing in an attention layer .* make it by headway.encoding\('learned', …\)"),
        ("learned(max_length=9)", "Learned does nothing in an attention layer"),
        ("shape", r"compose it, as in 'shape \+ rope'"),
        ("randomized", r"RandomizedPositions does nothing .* as in 'randomized \+ rope'"),
        ("axial-rope", "AxialRoPE reads 2 axes"),
        (3, "encoding is 3"),
        (lambda name, module: "rope" if "0" in name else "sinusoidal", "Sinusoidal does nothing"),
    ],
)
def test_an_encoding_that_does_not_fit_changes_nothing(encoding: Any, error: str) -> None:
    model = encoder()
    with pytest.raises(hw.HeadwayError, match=error):
        swap_attention(model, encoding)
    assert not swapped_attention(model)
    assert model.use_nested_tensor


def test_an_added_key_stands_nowhere() -> None:
    with pytest.raises(hw.HeadwayError, match=r"the model has add_bias_kv, .*, which RoPE needs"):
        swap_attention(a_layer(add_bias_kv=True), "rope")
    swap_attention(a_layer(add_zero_attn=True), "rope")


# ---------------------------------------------------------------- there and back


def test_parameters_names_hooks_and_optimisers_stay() -> None:
    model = encoder()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before, names = list(model.parameters()), list(model.state_dict())
    called = []
    model.layers[0].self_attn.register_forward_hook(lambda *_: called.append(1))
    assert swap_attention(model) is model
    assert all(a is b for a, b in zip(model.parameters(), before, strict=True))
    assert list(model.state_dict()) == names
    model(torch.randn(BATCH, L, WIDTH)).sum().backward()
    old = model.layers[1].self_attn.in_proj_weight.detach().clone()
    optimizer.step()
    assert called
    assert not torch.equal(model.layers[1].self_attn.in_proj_weight, old)
    nn.TransformerEncoder(layer_of(nn.TransformerEncoderLayer), 2).load_state_dict(model.state_dict())


def test_training_is_torch_s_training() -> None:
    model = encoder()
    losses = []
    for each in (model, swap_attention(copy.deepcopy(model))):
        torch.manual_seed(1)
        optimizer = torch.optim.AdamW(each.parameters(), lr=0.01)
        losses.append([])
        for _ in range(5):
            loss = each(torch.randn(BATCH, L, WIDTH), src_key_padding_mask=PADDED)[0].square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses[-1].append(loss.item())
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)
    assert losses[0][-1] != pytest.approx(losses[0][0], rel=0.01)


def test_back_again_with_the_weights_as_they_are() -> None:
    model = encoder().eval()
    swap_attention(model)
    with torch.no_grad():
        model.layers[0].self_attn.in_proj_weight += 1
    x = torch.randn(BATCH, L, WIDTH)
    swapped = model(x)
    assert restore_attention(model) is model
    assert {type(layer.self_attn) for layer in model.layers} == {nn.MultiheadAttention}
    assert model.use_nested_tensor
    assert not swapped_attention(model)
    assert repr(model) == repr(encoder())
    assert vars(model).keys() == vars(encoder()).keys()
    torch.testing.assert_close(model(x), swapped, atol=1e-5, rtol=1e-5)
    assert torch.equal(restore_attention(model)(x), model(x))


def test_an_encoding_is_dropped_only_on_demand() -> None:
    model = encoder()
    names = list(model.state_dict())
    swap_attention(model, lambda name, module: "t5" if "1" in name else "none")
    with pytest.raises(hw.HeadwayError, match=r"layers.1.self_attn has the encoding t5, .* give drop=True"):
        restore_attention(model)
    assert len(swapped_attention(model)) == 2
    assert list(restore_attention(model, drop=True).state_dict()) == names
    swap_attention(model, "none")
    restore_attention(model)


def test_a_shared_layer_stays_shared() -> None:
    layer = a_layer()
    model = nn.ModuleList([layer, nn.ModuleList([layer]), a_layer()])
    assert swapped_attention(swap_attention(model, "t5")) == ["0", "2"]
    assert model[0] is model[1][0]


def test_a_layer_alone_is_swapped_itself() -> None:
    layer = a_layer()
    assert swap_attention(layer) is layer
    assert swapped_attention(layer) == [""]
    assert isinstance(layer, HeadwayAttention)


class Own(nn.MultiheadAttention):
    pass


def parametrized() -> nn.Module:
    return nn.utils.parametrizations.weight_norm(a_layer(), "in_proj_weight")


@pytest.mark.parametrize(
    ("last", "error"),
    [
        (lambda: Own(WIDTH, HEADS), "1 is a Own, whose own forward would be lost"),
        (lambda: torch.ao.nn.quantizable.MultiheadAttention(WIDTH, HEADS), "1 is a MultiheadAttention, whose own"),
        (parametrized, "1 is a ParametrizedMultiheadAttention"),
        (lambda: swap_attention(a_layer()), "1 is headway's already: call restore_attention first"),
    ],
)
def test_what_is_not_torch_s_own_is_refused(last: Callable[[], nn.Module], error: str) -> None:
    model = nn.ModuleList([a_layer(), last()])
    with pytest.raises(hw.HeadwayError, match=error):
        swap_attention(model)
    assert not isinstance(model[0], HeadwayAttention)


def test_nothing_to_swap_is_said() -> None:
    with pytest.raises(hw.HeadwayError, match=r"Linear has no nn.MultiheadAttention"):
        swap_attention(nn.Linear(2, 2))


# ---------------------------------------------------------------- copies, files, the compiler


@pytest.mark.parametrize("copied", ["deepcopy", "pickle", "torch.save"])
def test_copies_stay_swapped(copied: str) -> None:
    model = swap_attention(encoder(), "t5").eval()
    if copied == "deepcopy":
        other = copy.deepcopy(model)
    elif copied == "pickle":
        other = pickle.loads(pickle.dumps(model))
    else:
        file = io.BytesIO()
        torch.save(model, file)
        file.seek(0)
        other = torch.load(file, weights_only=False)
    x = torch.randn(BATCH, L, WIDTH)
    assert torch.equal(other(x), model(x))
    assert swapped_attention(other) == swapped_attention(model)
    assert restore_attention(other, drop=True).use_nested_tensor


@pytest.mark.slow
@pytest.mark.parametrize("batch_first", [True, False])
def test_the_compiler_takes_it_whole(batch_first: bool) -> None:
    layer = swap_attention(a_layer(batch_first), "rope")
    compiled = copy.deepcopy(layer)
    compiled.compile(fullgraph=True, backend="aot_eager")
    for call in ({}, {"need_weights": False}, {"need_weights": False, "attn_mask": causal(L, L), "is_causal": True}):
        tokens = inputs(layer, L, L)
        torch.testing.assert_close(results(compiled, tokens, **call), results(layer, tokens, **call))


# ---------------------------------------------------------------- bad input

CALLS: dict[str, tuple[Callable[[Tensor], tuple[Any, ...]], dict[str, Any], str]] = {
    "four dimensions": (
        lambda x: (x[None],) * 3,
        {},
        r"query has shape \(1, 5, 2, 16\): give all three \[tokens, batch",
    ),
    "one without a batch": (lambda x: (x, x[:, 0], x), {}, r"key has shape \(5, 16\)"),
    "another width": (lambda x: (x, x, x[..., :3]), {}, "value with a width of 16"),
    "another batch": (lambda x: (x, x[:, :1], x[:, :1]), {}, "do not fit: give one batch"),
    "fewer values": (lambda x: (x, x, x[:3]), {}, "a value for each key"),
    "padding turned": (lambda x: (x,) * 3, {"key_padding_mask": torch.zeros(L, BATCH) > 0}, r"give \[2, 5\]"),
    "padding without a batch": (
        lambda x: (x,) * 3,
        {"key_padding_mask": torch.zeros(L) > 0},
        r"shape \(5,\): give \[2, 5\]",
    ),
    "another mask": (lambda x: (x,) * 3, {"attn_mask": torch.zeros(L, L + 1)}, r"give \[5, 5\] or \[8, 5, 5\]"),
    "whole numbers": (
        lambda x: (x,) * 3,
        {"attn_mask": torch.zeros(L, L, dtype=torch.uint8)},
        "attn_mask is torch.uint8",
    ),
    "a hint alone": (lambda x: (x,) * 3, {"is_causal": True}, r"attn_mask is None: give .*subsequent_mask\(5\)"),
}


@pytest.mark.parametrize("case", CALLS)
def test_bad_calls_are_refused(case: str) -> None:
    turn, call, error = CALLS[case]
    with pytest.raises(hw.HeadwayError, match=error):
        swap_attention(a_layer())(*turn(torch.randn(L, BATCH, WIDTH)), **call)


# Linear maps ----------------------------------------------------------------------------------------------------------


class Adapted(nn.Linear):
    """A linear map of another library."""


def with_maps() -> nn.Module:
    """An encoder layer, and maps, some of them not torch's own."""
    other = nn.ModuleDict({"adapted": Adapted(WIDTH, WIDTH), "normed": nn.Linear(WIDTH, WIDTH)})
    nn.utils.parametrizations.weight_norm(other["normed"])
    quantized = torch.ao.nn.quantized.dynamic.Linear(WIDTH, WIDTH)
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 24, dropout=0.0, batch_first=True)
    return nn.ModuleDict({"layer": layer, "other": other, "quantized": quantized})


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_linear_maps_are_swapped_and_restored_and_others_counted() -> None:
    model = with_maps()
    kinds = {name: type(part) for name, part in model.named_modules()}
    names = list(model.state_dict())
    swap_attention(model, linear=True)
    found = swapped_linear(model)
    assert found.swapped == ["layer.linear1", "layer.linear2"]
    assert found.left == ["other.adapted", "other.normed", "quantized"]
    assert all(type(model.get_submodule(name)) is Linear for name in found.swapped)
    assert list(model.state_dict()) == names
    assert {name: type(part) for name, part in restore_attention(model).named_modules()} == kinds
    assert swapped_linear(model).swapped == []


@pytest.mark.parametrize("copied", ["deepcopy", "pickle", "state_dict"])
def test_a_swapped_model_trains_as_before(copied: str) -> None:
    model = nn.Sequential(nn.TransformerEncoderLayer(WIDTH, HEADS, 24, dropout=0.0), nn.Linear(WIDTH, 3))
    swapped = swap_attention(copy.deepcopy(model), linear=True)
    if copied == "deepcopy":
        swapped = copy.deepcopy(swapped)
    elif copied == "pickle":
        swapped = pickle.loads(pickle.dumps(swapped))
    else:
        swapped.load_state_dict(model.state_dict())
    assert type(swapped[1]) is Linear
    x = torch.randn(L, BATCH, WIDTH)
    for kernel in ("onednn", "torch"):
        with hw.nn.linear_kernel(kernel):
            found = [one(x) for one in (model, swapped)]
            torch.testing.assert_close(found[1], found[0])
            gradients = [
                torch.autograd.grad(out.square().sum(), [*one.parameters()])
                for out, one in zip(found, (model, swapped), strict=True)
            ]
        torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-4, atol=1e-5)


def test_a_model_without_attention_has_its_maps_swapped_alone() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    assert swap_attention(model, linear=True) is model
    assert swapped_linear(model).swapped == ["0", "2"]
    for given, said in (
        ({"linear": True}, "Sequential has no nn.MultiheadAttention or nn.Linear"),
        ({"linear": True, "encoding": "rope"}, "Sequential has no nn.MultiheadAttention: there"),
        ({}, "Sequential has no nn.MultiheadAttention: there"),
    ):
        with pytest.raises(hw.HeadwayError, match=said):
            swap_attention(model, **given)


def test_nothing_is_swapped_if_the_encoding_does_not_fit() -> None:
    model = nn.Sequential(nn.TransformerEncoderLayer(WIDTH, HEADS), nn.Linear(WIDTH, 3))
    with pytest.raises(hw.HeadwayError, match="does nothing in an attention layer"):
        swap_attention(model, "sinusoidal", linear=True)
    assert swapped_linear(model).swapped == []


def test_the_maps_of_a_transformers_model() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=20, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=24
    )
    model = transformers.LlamaForCausalLM(config).eval()
    ids = torch.arange(9)[None]
    wanted = model(ids).logits
    swap_attention(model, linear=True)
    assert len(swapped_linear(model).swapped) == 8
    with hw.nn.linear_kernel("onednn"):
        torch.testing.assert_close(model(ids).logits, wanted)
