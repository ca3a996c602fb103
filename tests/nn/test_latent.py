"""Multi-head latent attention: its equation, its two forms, its cache, and DeepSeek-V3 of transformers."""

import math
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import headway
from headway import Coordinates, HeadwayError, masks
from headway.inspection import capture
from headway.models import Decoder, Stack
from headway.nn import Block, Embedding, Head, KeyValueCache, LatentAttention, SegmentMemory
from headway.positions import PositionEncoding

WIDTH, HEADS, LATENT, ROTARY, CONTENT, VALUE = 20, 3, 10, 4, 6, 5
FORMS = pytest.mark.parametrize("form", ["expanded", "absorbed"])
ENCODINGS: dict[str, PositionEncoding | None] = {
    "none": None,
    "rope": headway.encoding("rope", head_dim=ROTARY),
    "yarn": headway.encoding("yarn", head_dim=ROTARY, factor=4.0, max_length=16),
    "dynamic-ntk": headway.encoding("dynamic-ntk", head_dim=ROTARY, max_length=4),
    "alibi": headway.encoding("alibi", num_heads=HEADS),
    "t5": headway.encoding("t5", num_heads=HEADS, bidirectional=False),
    "rope and log-n": headway.positions.Compose(
        headway.encoding("rope", head_dim=ROTARY), headway.encoding("log-n", train_length=4)
    ),
}
EACH = pytest.mark.parametrize("encoding", ENCODINGS.values(), ids=ENCODINGS.keys())


def layer_with(encoding: Any = ENCODINGS["rope"], form: str = "auto", **options: Any) -> LatentAttention:
    """A layer in float64 whose parameters are of order one."""
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"latent_dim": LATENT, "rotary_dim": ROTARY, "head_dim": CONTENT, "value_dim": VALUE}
    layer = LatentAttention(WIDTH, HEADS, **sizes, encoding=encoding, form=form, **options).double()
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.5)
    return layer


def rms(x: Tensor, weight: Tensor) -> Tensor:
    eps = torch.finfo(x.dtype).eps
    return x / math.sqrt(sum(float(e) ** 2 for e in x) / len(x) + eps) * weight


def turned(x: Tensor, position: int) -> Tensor:
    """RoPE of neighbouring dimensions, by complex numbers."""
    pairs = torch.view_as_complex(x.reshape(-1, 2))
    angles = torch.tensor([position * 10000 ** (-2 * c / len(x)) for c in range(len(pairs))], dtype=torch.float64)
    return torch.view_as_real(pairs * torch.polar(torch.ones_like(angles), angles)).flatten()


def oracle(layer: LatentAttention, x: Tensor) -> Tensor:
    """The causal output for one sequence x [n, embed_dim], one pair of tokens at a time, with RoPE."""
    n, outputs = len(x), []
    weights = dict(layer.named_parameters())
    w_q = weights["q_proj.weight"].unflatten(0, (HEADS, -1))
    w_k, w_v = (weights[f"{name}_proj.weight"].unflatten(0, (HEADS, -1)) for name in "kv")
    latent = [rms(weights["latent_proj.weight"] @ row, weights["latent_norm.weight"]) for row in x]
    rotary = [turned(weights["rotary_proj.weight"] @ row, j) for j, row in enumerate(x)]
    for i in range(n):
        given = x[i]
        if layer.q_down_proj is not None:
            given = rms(weights["q_down_proj.weight"] @ x[i], weights["q_norm.weight"])
        heads = []
        for h in range(HEADS):
            q = w_q[h] @ given
            scores = []
            for j in range(i + 1):
                score = turned(q[:ROTARY], i) @ rotary[j] + q[ROTARY:] @ (w_k[h] @ latent[j])
                scores.append(score / math.sqrt(ROTARY + CONTENT))
            a = torch.stack(scores).softmax(0)
            heads.append(torch.stack([a[j] * (w_v[h] @ latent[j]) for j in range(i + 1)]).sum(0))
        outputs.append(weights["out_proj.weight"] @ torch.cat(heads))
    return torch.stack(outputs)


@FORMS
@pytest.mark.parametrize("query_latent_dim", [None, 7])
def test_the_equation(form: str, query_latent_dim: int | None) -> None:
    layer, x = layer_with(form=form, query_latent_dim=query_latent_dim), torch.randn(2, 5, WIDTH).double()
    with torch.no_grad():
        expected = torch.stack([oracle(layer, row) for row in x])
        torch.testing.assert_close(layer(x, mask=masks.Causal()), expected, rtol=1e-11, atol=1e-11)


@EACH
def test_both_forms_give_the_same_numbers_and_gradients(encoding: PositionEncoding | None) -> None:
    results = []
    for form in ("expanded", "absorbed"):
        layer, x = layer_with(encoding, form, query_latent_dim=7), torch.randn(2, 6, WIDTH).double()
        x.requires_grad_()
        out = layer(x, mask=masks.Causal() & masks.Window(4))
        gradients = torch.autograd.grad(out.square().sum(), [x, *layer.parameters()])
        assert all(gradient.abs().max() > 1e-9 for gradient in gradients)
        results.append([out, *gradients])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


@FORMS
def test_gradients(form: str) -> None:
    layer, x = layer_with(form=form), torch.randn(2, 4, WIDTH).double().requires_grad_()
    inputs = [x, *layer.parameters()]
    torch.autograd.gradcheck(lambda *_: layer(x, mask=masks.Causal()), inputs, fast_mode=True)


@pytest.mark.parametrize("encoding", [ENCODINGS[name] for name in ENCODINGS if name != "dynamic-ntk"], ids=repr)
@pytest.mark.parametrize("form", ["auto", "expanded", "absorbed"])
def test_decoding_equals_a_full_pass(encoding: PositionEncoding | None, form: str) -> None:
    """Rows of different lengths, padded on the left; a prompt, one token, and two at once."""
    layer, n = layer_with(encoding, form), 7
    x, lengths = torch.randn(2, n, WIDTH).double(), torch.tensor([7, 5])
    whole = layer(x, mask=masks.Causal(), positions=Coordinates.padded(lengths, n))
    cache, at = KeyValueCache(), Coordinates.padded(lengths - 3, n - 3)
    steps = [layer(x[:, :-3], mask=masks.Causal(), positions=at, cache=cache)]
    steps += [layer(x[:, i:j], mask=masks.Causal(), cache=cache) for i, j in ((n - 3, n - 2), (n - 2, n))]
    found = torch.cat(steps, 1)
    for row, length in enumerate(lengths.tolist()):
        torch.testing.assert_close(found[row, n - length :], whole[row, n - length :], rtol=1e-11, atol=1e-11)


def test_keys_that_a_cache_holds_unprepared() -> None:
    """Dynamic NTK changes the rotation of all keys with the length: the last row equals a full pass."""
    layer, x, cache = layer_with(ENCODINGS["dynamic-ntk"]), torch.randn(2, 7, WIDTH).double(), KeyValueCache()
    for i in range(7):
        last = layer(x[:, i : i + 1], mask=masks.Causal(), cache=cache)
    torch.testing.assert_close(last, layer(x, mask=masks.Causal())[:, -1:], rtol=1e-11, atol=1e-11)


def test_the_cache_holds_latents_alone() -> None:
    layer, cache = layer_with(), KeyValueCache()
    layer(torch.randn(2, 5, WIDTH).double(), cache=cache)
    assert cache.keys.shape == (2, 1, 5, LATENT + ROTARY)
    assert cache.values.numel() == 0
    assert f"{2 * 5 * (LATENT + ROTARY) * 8 / 1024:.4g} KiB" in repr(cache)


def test_auto_takes_the_cheaper_form() -> None:
    layer, taken = layer_with(), []
    for form in ("_expanded", "_absorbed"):
        compute = getattr(layer, form)
        setattr(layer, form, lambda *args, _f=form, _c=compute, **kw: taken.append(_f) or _c(*args, **kw))
    cache, x = KeyValueCache(), torch.randn(1, 64, WIDTH).double()
    layer(x, mask=masks.Causal())
    layer(x, mask=masks.Causal(), cache=cache)
    layer(x[:, :1], mask=masks.Causal(), cache=cache)
    layer(x, mask=masks.Causal(), cache=cache)
    assert taken == ["_expanded", "_expanded", "_absorbed", "_expanded"]
    layer.k_proj.register_forward_hook(lambda *_: None)  # which the absorbed form would not call
    layer(x[:, :1], mask=masks.Causal(), cache=cache)
    assert taken[-1] == "_expanded"


@pytest.mark.parametrize("parts", [("head-gate",), ("element-gate",), ("exclusive", "head-gate")], ids=str)
@FORMS
def test_parts_of_the_output(parts: tuple[str, ...], form: str) -> None:
    layer, x = layer_with(form=form, parts=parts), torch.randn(2, 5, WIDTH).double()
    whole, cache = layer(x, mask=masks.Causal()), KeyValueCache()
    steps = torch.cat([layer(x[:, i : i + 1], mask=masks.Causal(), cache=cache) for i in range(5)], 1)
    torch.testing.assert_close(steps, whole, rtol=1e-11, atol=1e-11)
    kept: list[Tensor] = []
    layer.out_proj.register_forward_pre_hook(lambda _, inputs: kept.append(inputs[0]))
    for wanted in (layer.parts, None):
        layer.parts = wanted
        layer(x, mask=masks.Causal())
    gated, out = (one.unflatten(-1, (HEADS, VALUE)).transpose(1, 2) for one in kept)
    v = layer.v_proj(layer.latent_norm(layer.latent_proj(x))).unflatten(-1, (HEADS, VALUE)).transpose(1, 2)
    for part in layer_with(form=form, parts=parts).parts or ():
        out = part.output(out, x, v)
    torch.testing.assert_close(gated, out)


def decoder(parts: tuple[str, ...] = ("head-gate",), **options: Any) -> Decoder:
    torch.manual_seed(0)
    blocks = [
        Block(WIDTH, HEADS, attention=LatentAttention(
            WIDTH, HEADS, latent_dim=LATENT, rotary_dim=ROTARY, head_dim=CONTENT, parts=parts, layer=layer, **options
        ))
        for layer in range(2)
    ]  # fmt: skip
    stack = Stack(blocks, headway.encoding("rope", head_dim=ROTARY), norm=nn.LayerNorm(WIDTH))
    return Decoder.of_parts(Embedding(11, WIDTH), stack, Head(WIDTH, 11)).double()


def test_in_a_decoder() -> None:
    model, ids = decoder(), torch.randint(11, (2, 9))
    model(ids).logsumexp(-1).sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
    cache = model.new_cache()
    with torch.no_grad():
        steps = torch.cat([model(ids[:, i : i + 1], cache=cache) for i in range(9)], 1)
        torch.testing.assert_close(steps, model(ids), rtol=1e-10, atol=1e-10)
    assert len(cache) == 9
    cache.reorder(torch.tensor([1, 0]))
    cache.crop(4)
    torch.testing.assert_close(
        model(ids.flip(0)[:, 4:], cache=cache), model(ids.flip(0))[:, 4:], rtol=1e-10, atol=1e-10
    )
    rows = [row[:n] for row, n in zip(ids, (4, 9), strict=True)]
    nested = torch.nested.nested_tensor(rows, layout=torch.jagged)
    for row, found in zip(rows, model(nested).unbind(), strict=True):
        torch.testing.assert_close(found, model(row[None])[0], rtol=1e-10, atol=1e-10)


def test_compiled() -> None:
    torch._dynamo.reset()
    layer, x = layer_with(), torch.randn(2, 5, WIDTH).double()
    compiled = torch.compile(layer, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(x, mask=masks.Causal()), layer(x, mask=masks.Causal()), rtol=1e-11, atol=1e-11)


def test_weights_are_captured() -> None:
    """The absorbed form has the weights of the expanded one."""
    found = []
    for form in ("expanded", "absorbed"):
        model = decoder(form=form)
        with capture(model, statistics=("entropy",)) as seen:
            model(torch.arange(9)[None] % 11)
        found.append([seen.statistics(f"stack.blocks.{layer}.attention").entropy for layer in range(2)])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("interleaved", [True, False])
@pytest.mark.parametrize("query_latent_dim", [None, 7])
@pytest.mark.parametrize("yarn", [False, True])
def test_that_of_transformers(interleaved: bool, query_latent_dim: int | None, yarn: bool) -> None:
    """DeepSeek-V3, whose rotary dimensions come last, whose YaRN also scales the scores."""
    transformers = pytest.importorskip("transformers")
    from transformers.models.deepseek_v3 import modeling_deepseek_v3 as theirs

    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": 10000.0}
    if yarn:
        rope |= {"rope_type": "yarn", "factor": 40.0, "mscale": 1.0, "mscale_all_dim": 1.0}
        rope |= {"original_max_position_embeddings": 16, "beta_fast": 32, "beta_slow": 1}
    config = transformers.DeepseekV3Config(
        hidden_size=WIDTH, num_attention_heads=HEADS, num_key_value_heads=HEADS, q_lora_rank=query_latent_dim,
        kv_lora_rank=LATENT, qk_rope_head_dim=8, qk_nope_head_dim=CONTENT, v_head_dim=VALUE, rope_parameters=rope,
        rope_interleave=interleaved, attn_implementation="eager", max_position_embeddings=640, attention_bias=True,
    )  # fmt: skip
    torch.manual_seed(1)
    reference = theirs.DeepseekV3Attention(config, layer_idx=0).double()
    layout = "interleaved" if interleaved else "half"
    encoding = headway.encoding("rope", head_dim=8, layout=layout)
    if yarn:
        scaled: dict[str, Any] = {"mscale": 1.0, "mscale_all_dim": 1.0, "scale_scores": True}
        encoding = headway.encoding("yarn", head_dim=8, factor=40.0, max_length=16, layout=layout, **scaled)
    layer = LatentAttention(
        WIDTH, HEADS, latent_dim=LATENT, rotary_dim=8, head_dim=CONTENT, value_dim=VALUE, encoding=encoding, bias=True,
        query_latent_dim=query_latent_dim, norm=partial(nn.RMSNorm, eps=1e-6),
    ).double()  # fmt: skip
    with torch.no_grad():
        for parameter in reference.parameters():
            parameter.normal_(std=0.5)
        q = reference.q_proj if query_latent_dim is None else reference.q_b_proj
        heads = q.weight.unflatten(0, (HEADS, -1))
        layer.q_proj.weight.copy_(torch.cat([heads[:, CONTENT:], heads[:, :CONTENT]], 1).flatten(0, 1))
        if query_latent_dim is not None:
            layer.q_down_proj.load_state_dict(reference.q_a_proj.state_dict())  # type: ignore[union-attr]
            layer.q_norm.load_state_dict(reference.q_a_layernorm.state_dict())  # type: ignore[union-attr]
        down = reference.kv_a_proj_with_mqa
        layer.latent_proj.weight.copy_(down.weight[:LATENT])
        layer.latent_proj.bias.copy_(down.bias[:LATENT])
        layer.rotary_proj.weight.copy_(down.weight[LATENT:])
        layer.rotary_proj.bias.copy_(down.bias[LATENT:])
        layer.latent_norm.load_state_dict(reference.kv_a_layernorm.state_dict())
        up = reference.kv_b_proj.weight.unflatten(0, (HEADS, -1))
        layer.k_proj.weight.copy_(up[:, :CONTENT].flatten(0, 1))
        layer.v_proj.weight.copy_(up[:, CONTENT:].flatten(0, 1))
        layer.out_proj.load_state_dict(reference.o_proj.state_dict())
        n = 24
        x = torch.randn(2, n, WIDTH).double()
        cos, sin = theirs.DeepseekV3RotaryEmbedding(config)(x, torch.arange(n)[None])
        hidden = torch.full((n, n), -torch.inf).triu(1).double()[None, None]
        expected, _ = reference(x, (cos, sin), hidden)
        for form in ("expanded", "absorbed"):
            layer.form = form
            found = layer(x, mask=masks.Causal())
            torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5 * expected.abs().max().item())


def test_the_absorbed_form_leaves_nothing_out() -> None:
    x, layer = torch.randn(2, 5, WIDTH).double(), layer_with(form="absorbed")
    layer(x)
    parametrized, replaced = layer_with(form="absorbed"), layer_with(form="absorbed")
    nn.utils.parametrizations.weight_norm(parametrized.v_proj)
    replaced.k_proj.forward = lambda x: 2 * x  # type: ignore[method-assign]
    for changed in (parametrized, replaced):
        with pytest.raises(HeadwayError, match="form is 'absorbed', which takes the weights of k_proj and v_proj, and"):
            changed(x)


def test_refusals() -> None:
    x, layer = torch.randn(2, 5, WIDTH).double(), layer_with()
    with pytest.raises(HeadwayError, match="key is given but LatentAttention is self-attention: leave key, context"):
        layer(x, x[:, :3])
    with pytest.raises(HeadwayError, match="form is 'best': give 'auto', 'expanded', 'absorbed'"):
        layer_with(form="best")
    with pytest.raises(HeadwayError, match="parts has a DifferentialAttention, which changes values, but the cache"):
        LatentAttention(WIDTH, 4, latent_dim=4, rotary_dim=2, head_dim=4, parts=["differential"])
    with pytest.raises(HeadwayError, match="reads the layer's input, or moves tokens in each layer, and heads"):
        layer_with(headway.encoding("forgetting", num_heads=HEADS, embed_dim=WIDTH))
    with pytest.raises(HeadwayError, match="whose RelativeKeys reads queries or keys, and these are latents"):
        layer_with(headway.encoding("shaw", head_dim=ROTARY))(x)
    with pytest.raises(HeadwayError, match="embed_dim 20 is not divisible by num_heads 3: give head_dim"):
        LatentAttention(WIDTH, HEADS, latent_dim=4, rotary_dim=2)
    with pytest.raises(HeadwayError, match=r"query has shape \(2, 5, 6\): give \[batch, tokens, 20\]"):
        layer(x[..., :6])
    ids, memory, model = torch.randint(11, (2, 4)), SegmentMemory(4), decoder()
    model(ids, memory=memory)
    with pytest.raises(HeadwayError, match="leave key, context and memory out"):
        model(ids, memory=memory)
    assert layer.why_not_shared() is not None
