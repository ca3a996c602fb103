"""What layers compute around attention: each part against its paper's equation and against public code."""

import json
import math
import re
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import headway
from headway import Coordinates, HeadwayError, masks
from headway.models import Decoder, Stack, TransformerConfig
from headway.nn import (
    PARTS,
    Block,
    DifferentialAttention,
    ElementGate,
    ExclusiveSelfAttention,
    FirstValues,
    HeadGate,
    KeyValueCache,
    LatentAttention,
    LayerSizes,
    MultiHeadAttention,
    Part,
    SegmentMemory,
    ValueResidual,
)

WIDTH, HEADS, KV_HEADS, HEAD_DIM, LAYER = 24, 4, 2, 6, 3

COMBINATIONS: dict[str, tuple[Any, ...]] = {
    **{name: (name,) for name in PARTS},
    "exclusive, learned": (partial(ExclusiveSelfAttention, alpha=0.5),),
    "all, in order": ("value-residual", "differential", "exclusive", "element-gate"),
    "gate of each pair": ("differential", "head-gate"),
    "values of pairs": ("differential", "value-residual"),
}
EACH = pytest.mark.parametrize("parts", COMBINATIONS.values(), ids=COMBINATIONS.keys())


def layer_with(*parts: Any, number: int = LAYER, **options: Any) -> MultiHeadAttention:
    """A layer in float64 whose parameters, those of its parts included, are of order one."""
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"num_kv_heads": KV_HEADS, "head_dim": HEAD_DIM, "parts": parts, "layer": number}
    layer = MultiHeadAttention(WIDTH, HEADS, **sizes, **options).double()
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.5)
    return layer


def first_values(parts: tuple[Any, ...], batch: int = 2, n: int = 5) -> FirstValues:
    """Values of a first layer, in the form that the parts before a value residual give them."""
    first = FirstValues()
    pairs = "differential" in parts and parts.index("differential") < parts.index("value-residual")
    shape = (KV_HEADS // 2, n, 2 * HEAD_DIM) if pairs else (KV_HEADS, n, HEAD_DIM)
    first.values = torch.randn(batch, *shape, generator=torch.Generator().manual_seed(4)).double()
    return first


def given(parts: tuple[Any, ...], n: int = 5) -> dict[str, Any]:
    return {"first_values": first_values(parts, n=n)} if "value-residual" in parts else {}


def weights_of(layer: MultiHeadAttention, x: Tensor, mask: masks.Mask | None) -> Tensor:
    """The attention weights of one sequence x [n, embed_dim], by the function that needs no part."""
    q, k = (proj(x).unflatten(-1, (-1, HEAD_DIM)).transpose(0, 1)[None] for proj in (layer.q_proj, layer.k_proj))
    return headway.attention_weights(q, k, k, mask=mask)[0]


# ---------------------------------------------------------------- the equations, one token and one head at a time


def head_gate(layer: MultiHeadAttention, out: Tensor, x: Tensor, v: Tensor, part: HeadGate) -> Tensor:
    y = torch.empty_like(out)
    for h in range(out.shape[0]):
        for i in range(len(x)):
            y[h, i] = out[h, i] / (1 + math.exp(-float(part.gate_proj.weight[h] @ x[i])))
    return y


def element_gate(layer: MultiHeadAttention, out: Tensor, x: Tensor, v: Tensor, part: ElementGate) -> Tensor:
    y = torch.empty_like(out)
    for h in range(out.shape[0]):
        for i in range(len(x)):
            for e in range(out.shape[2]):
                row = part.gate_proj.weight[h * out.shape[2] + e]
                y[h, i, e] = out[h, i, e] / (1 + math.exp(-float(row @ x[i])))
    return y


def exclusive(layer: MultiHeadAttention, out: Tensor, x: Tensor, v: Tensor, part: ExclusiveSelfAttention) -> Tensor:
    y = torch.empty_like(out)
    for h in range(out.shape[0]):
        factor = 1.0 if part.alpha is None else math.tanh(float(part.alpha[h]))
        for i in range(len(x)):
            own = v[h * len(v) // len(out), i]
            y[h, i] = out[h, i] - factor * float(out[h, i] @ own) / float(own @ own) * own
    return y


def unchanged(layer: MultiHeadAttention, out: Tensor, x: Tensor, v: Tensor, part: Part) -> Tensor:
    return out


def differential(layer: MultiHeadAttention, out: Tensor, x: Tensor, v: Tensor, part: DifferentialAttention) -> Tensor:
    start = 0.8 - 0.6 * math.exp(-0.3 * LAYER)
    factor = math.exp(float(part.lambda_q1 @ part.lambda_k1)) - math.exp(float(part.lambda_q2 @ part.lambda_k2)) + start
    y = out.new_empty(HEADS // 2, len(x), 2 * HEAD_DIM)
    for p in range(HEADS // 2):
        for i in range(len(x)):
            row = out[2 * p, i] - factor * out[2 * p + 1, i]
            mean_square = sum(float(e) ** 2 for e in row) / len(row)
            y[p, i] = (1 - start) * row / math.sqrt(mean_square + 1e-5) * part.norm.weight
    return y


ORACLES: dict[type[Part], Callable[..., Tensor]] = {
    HeadGate: head_gate,
    ElementGate: element_gate,
    ExclusiveSelfAttention: exclusive,
    ValueResidual: unchanged,
    DifferentialAttention: differential,
}


def oracle(layer: MultiHeadAttention, x: Tensor, first: Tensor | None, mask: masks.Mask | None) -> Tensor:
    """The output for one sequence x [n, embed_dim]."""
    n, v, shared = len(x), layer.v_proj(x).unflatten(-1, (KV_HEADS, HEAD_DIM)).transpose(0, 1), HEADS // KV_HEADS
    for part in layer.parts or ():
        if isinstance(part, ValueResidual):
            assert first is not None
            assert part.mix is not None
            v = part.mix[0] * first + part.mix[1] * v
        if isinstance(part, DifferentialAttention):  # the values of two heads, side by side, are those of a pair
            v, shared = torch.stack([torch.cat([v[2 * g], v[2 * g + 1]], -1) for g in range(KV_HEADS // 2)]), 2 * shared
    weights = weights_of(layer, x, mask)
    out = torch.zeros(HEADS, n, v.shape[2], dtype=x.dtype)
    for h in range(HEADS):
        for i in range(n):
            for j in range(n):
                out[h, i] += weights[h, i, j] * v[h // shared, j]
    for part in layer.parts or ():
        out = ORACLES[type(part)](layer, out, x, v, part)
    return layer.out_proj(torch.cat(list(out), dim=-1))


def test_every_part_has_an_oracle() -> None:
    assert set(ORACLES) == set(PARTS.values())


def test_the_page_has_a_row_for_every_part() -> None:
    page = (Path(__file__).parents[2] / "docs" / "layers.md").read_text(encoding="utf-8")
    table = page.partition("<!-- parts -->")[2].partition("<!-- end of parts -->")[0]
    rows = re.findall(r"^\| `([\w-]+)` \| `(\w+)` \|", table, re.MULTILINE)
    assert dict(rows) == {name: part.__name__ for name, part in PARTS.items()}


@EACH
@pytest.mark.parametrize("mask", [None, masks.Causal()], ids=["all", "causal"])
def test_the_equation(parts: tuple[Any, ...], mask: masks.Mask | None) -> None:
    layer, x, given_to = layer_with(*parts), torch.randn(2, 5, WIDTH).double(), given(parts)
    with torch.no_grad():
        first = given_to.get("first_values")
        expected = [oracle(layer, row, first and first.values[b], mask) for b, row in enumerate(x)]
        torch.testing.assert_close(layer(x, mask=mask, **given_to), torch.stack(expected), rtol=1e-11, atol=1e-11)


@EACH
def test_gradients(parts: tuple[Any, ...]) -> None:
    layer, x = layer_with(*parts), torch.randn(2, 5, WIDTH).double().requires_grad_()
    given_to = given(parts)
    inputs = [x, *(p for name, p in layer.named_parameters() if name.startswith("parts."))]
    if "first_values" in given_to:
        inputs.append(given_to["first_values"].values.requires_grad_())
    torch.autograd.gradcheck(lambda *_: layer(x, mask=masks.Causal(), **given_to), inputs, fast_mode=True)
    layer(x, mask=masks.Causal(), **given_to).square().sum().backward()
    for name, parameter in layer.named_parameters():  # a bias of all keys cancels in the softmax
        assert parameter.grad is not None, name
        assert parameter.grad.abs().max() > 1e-9 or name == "k_proj.bias", name


@EACH
@pytest.mark.parametrize("encoding", ["rope", "alibi"])
def test_decoding_equals_a_full_pass(parts: tuple[Any, ...], encoding: str) -> None:
    """Rows of different lengths, padded on the left."""
    layer, n = layer_with(*parts, encoding=encoding), 7
    x, lengths = torch.randn(2, n, WIDTH).double(), torch.tensor([7, 4])
    given_to = given(parts, n)
    values = given_to["first_values"].values if given_to else None

    def part_of(tokens: slice) -> dict[str, Any]:
        if values is None:
            return {}
        first = FirstValues()
        first.values = values[:, :, tokens]
        return {"first_values": first}

    at = Coordinates.padded(lengths, n)
    whole = layer(x, mask=masks.Causal(), positions=at, **given_to)
    cache = KeyValueCache()
    padded = Coordinates.padded(lengths - 3, n - 3)
    steps = [layer(x[:, :-3], mask=masks.Causal(), positions=padded, cache=cache, **part_of(slice(0, n - 3)))]
    for i in range(n - 3, n):
        steps.append(layer(x[:, i : i + 1], mask=masks.Causal(), cache=cache, **part_of(slice(i, i + 1))))
    found = torch.cat(steps, 1)
    for row, length in enumerate(lengths.tolist()):
        torch.testing.assert_close(found[row, n - length :], whole[row, n - length :], rtol=1e-11, atol=1e-11)


@EACH
def test_padding_changes_nothing(parts: tuple[Any, ...]) -> None:
    layer, x = layer_with(*parts), torch.randn(1, 5, WIDTH).double()
    given_to = given(parts)
    if given_to:
        given_to["first_values"].values = given_to["first_values"].values[:1]
    alone = layer(x[:, :3], **_cut(given_to, 3))
    x[:, 3:] = torch.nan
    padded = layer(x, mask=masks.Padding(torch.tensor([3])), **given_to)
    torch.testing.assert_close(padded[:, :3], alone, rtol=1e-11, atol=1e-11)


def _cut(given_to: dict[str, Any], n: int) -> dict[str, Any]:
    if not given_to:
        return {}
    first = FirstValues()
    first.values = given_to["first_values"].values[:, :, :n]
    return {"first_values": first}


@EACH
def test_a_decoder_of_the_config_trains_and_decodes(parts: tuple[Any, ...]) -> None:
    torch.manual_seed(0)
    model = Decoder(TransformerConfig(11, 16, 3, 4, parts=parts), "rope").double()
    ids = torch.randint(11, (2, 9))
    model(ids).logsumexp(-1).sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
    cache = model.new_cache()
    with torch.no_grad():
        steps = torch.cat([model(ids[:, i : i + 1], cache=cache) for i in range(9)], 1)
        torch.testing.assert_close(steps, model(ids), rtol=1e-10, atol=1e-10)
    assert model.generate(ids, 3).ids is not None


def test_compiled() -> None:
    """All parts in one graph."""
    torch._dynamo.reset()
    parts = ("value-residual", "differential", ExclusiveSelfAttention, "element-gate", partial(HeadGate, num_heads=2))
    model = Decoder(TransformerConfig(11, 16, 2, 4, parts=parts), "rope").double().eval()  # type: ignore[arg-type]
    ids = torch.randint(11, (2, 9))
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(ids), model(ids), rtol=1e-10, atol=1e-10)


@EACH
def test_checkpointed(parts: tuple[Any, ...]) -> None:
    """The first layer's values leave its checkpoint, and gradients come back to them."""
    torch.manual_seed(0)
    model = Decoder(TransformerConfig(11, 16, 3, 4, parts=parts), "rope").double()
    ids, grads = torch.randint(11, (2, 9)), []
    forwards = {block: block.forward for block in model.stack.blocks}
    for wrapped in (False, True):
        for block, forward in forwards.items():
            again = partial(torch.utils.checkpoint.checkpoint, forward, use_reentrant=False)
            block.forward = again if wrapped else forward
        model.zero_grad()
        model(ids).logsumexp(-1).sum().backward()
        grads.append([parameter.grad.clone() for parameter in model.parameters()])  # type: ignore[union-attr]
    for one, other in zip(*grads, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


@EACH
def test_sequences_of_different_lengths(parts: tuple[Any, ...]) -> None:
    model = Decoder(TransformerConfig(11, 16, 2, 4, parts=parts), "rope").double()
    rows = [torch.randint(11, (n,)) for n in (4, 7)]
    nested = torch.nested.nested_tensor(rows, layout=torch.jagged)
    for row, found in zip(rows, model(nested).unbind(), strict=True):
        torch.testing.assert_close(found, model(row[None])[0], rtol=1e-10, atol=1e-10)


@EACH
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_value_of_zero_in_half_precision(parts: tuple[Any, ...], dtype: torch.dtype) -> None:
    layer = layer_with(*parts).to(dtype)
    given_to = given(parts)
    if given_to:
        given_to["first_values"].values = torch.zeros_like(given_to["first_values"].values, dtype=dtype)
    out = layer(torch.zeros(2, 5, WIDTH, dtype=dtype), **given_to)
    assert out.dtype == dtype
    assert out.isfinite().all()


# ---------------------------------------------------------------- public code


def test_differential_attention_is_that_of_transformers() -> None:
    """DiffLlama, whose pairs are heads p and p + heads/2, where the paper's are 2p and 2p + 1."""
    transformers = pytest.importorskip("transformers")
    from transformers.models.diffllama.modeling_diffllama import DiffLlamaAttention

    config = transformers.DiffLlamaConfig(
        hidden_size=WIDTH, num_attention_heads=4, num_key_value_heads=4, head_dim=HEAD_DIM, rms_norm_eps=1e-5,
        attention_bias=True, attn_implementation="eager",
    )  # fmt: skip
    torch.manual_seed(1)
    theirs = DiffLlamaAttention(config, layer_idx=LAYER).double()
    ours = MultiHeadAttention(WIDTH, 4, head_dim=HEAD_DIM, parts=["differential"], layer=LAYER).double()
    part: Any = ours.parts[0]  # type: ignore[index]
    order = torch.tensor([0, 2, 1, 3])
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.normal_(std=0.5)
        for mine, other in zip(
            (ours.q_proj, ours.k_proj, ours.v_proj), (theirs.q_proj, theirs.k_proj, theirs.v_proj), strict=True
        ):
            mine.weight.copy_(other.weight.unflatten(0, (4, -1))[order].flatten(0, 1))
            mine.bias.copy_(other.bias.unflatten(0, (4, -1))[order].flatten(0, 1))
        ours.out_proj.load_state_dict(theirs.o_proj.state_dict())
        for name in ("lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2"):
            getattr(part, name).copy_(getattr(theirs, name))
        x = torch.randn(2, 5, WIDTH).double()
        no_turn = torch.ones(1, 5, HEAD_DIM).double(), torch.zeros(1, 5, HEAD_DIM).double()
        expected, _ = theirs(x, no_turn, None)
    # transformers sums the exponents of λ in float32
    torch.testing.assert_close(ours(x), expected, rtol=1e-6, atol=1e-6)


def test_an_element_gate_is_that_of_transformers() -> None:
    """Qwen3-Next, whose projection of queries has the gate of each head too, and whose norms add 1 to weights."""
    transformers = pytest.importorskip("transformers")
    from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextAttention

    config = transformers.Qwen3NextConfig(
        hidden_size=WIDTH, num_attention_heads=4, num_key_value_heads=2, head_dim=HEAD_DIM, attn_implementation="eager"
    )
    torch.manual_seed(1)
    theirs = Qwen3NextAttention(config, layer_idx=0).double()
    ours = MultiHeadAttention(
        WIDTH, 4, num_kv_heads=2, head_dim=HEAD_DIM, bias=False, parts=["element-gate"],
        qk_norm=partial(nn.RMSNorm, eps=config.rms_norm_eps),
    ).double()  # fmt: skip
    part: Any = ours.parts[0]  # type: ignore[index]
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.normal_(std=0.5)
        queries, gates = theirs.q_proj.weight.unflatten(0, (4, 2, HEAD_DIM)).unbind(1)
        ours.q_proj.weight.copy_(queries.flatten(0, 1))
        part.gate_proj.weight.copy_(gates.flatten(0, 1))
        ours.k_proj.load_state_dict(theirs.k_proj.state_dict())
        ours.v_proj.load_state_dict(theirs.v_proj.state_dict())
        ours.out_proj.load_state_dict(theirs.o_proj.state_dict())
        ours.q_norm.weight.copy_(1 + theirs.q_norm.weight)  # type: ignore[union-attr, operator]
        ours.k_norm.weight.copy_(1 + theirs.k_norm.weight)  # type: ignore[union-attr, operator]
        x = torch.randn(2, 5, WIDTH).double()
        no_turn = torch.ones(1, 5, HEAD_DIM).double(), torch.zeros(1, 5, HEAD_DIM).double()
        expected, _ = theirs(x, no_turn, None)
    torch.testing.assert_close(ours(x), expected, rtol=1e-6, atol=1e-6)  # transformers norms and weighs in float32


# ---------------------------------------------------------------- how parts are given


def test_an_exclusive_output_is_orthogonal_to_its_value() -> None:
    layer, x = layer_with("exclusive"), torch.randn(2, 5, WIDTH)
    kept: list[Tensor] = []
    layer.out_proj.register_forward_pre_hook(lambda _, inputs: kept.append(inputs[0]))
    layer(x.double())
    out = kept[0].unflatten(-1, (HEADS, HEAD_DIM)).transpose(1, 2)
    v = layer.v_proj(x.double()).unflatten(-1, (KV_HEADS, HEAD_DIM)).transpose(1, 2).repeat_interleave(2, 1)
    assert (out * v).sum(-1).abs().max() < 1e-12


def test_parts_start_where_their_papers_start_them() -> None:
    parts = ["value-residual", "differential", partial(ExclusiveSelfAttention, alpha=0.25)]
    layer = MultiHeadAttention(WIDTH, 4, parts=parts, layer=2)
    residual, difference, own = list(layer.parts)  # type: ignore[arg-type]
    for parameter in layer.parts.parameters():  # type: ignore[union-attr]
        nn.init.normal_(parameter)
    layer.reset_parameters()
    assert residual.mix.tolist() == [0.5, 0.5]
    assert (own.alpha == 0.25).all()
    assert difference.lambda_init == 0.8 - 0.6 * math.exp(-0.6)
    assert 0.02 < difference.lambda_q1.std() < 0.3
    assert (difference.norm.weight == 1).all()


class Doubled(Part):
    """A part of one's own."""

    def __init__(self, head_dim: int, layer: int) -> None:
        super().__init__()
        self.sizes = head_dim, layer

    def output(self, out: Tensor, x: Tensor, v: Tensor | None) -> Tensor:
        return 2 * out


def test_a_part_of_ones_own() -> None:
    x = torch.randn(2, 5, WIDTH).double()
    plain, doubled = layer_with(), layer_with(Doubled)
    assert doubled.parts[0].sizes == (HEAD_DIM, LAYER)  # type: ignore[index]
    torch.testing.assert_close(doubled(x) - doubled.out_proj.bias, 2 * (plain(x) - plain.out_proj.bias))
    one = Doubled(1, 1)
    assert layer_with(one).parts[0] is one  # type: ignore[index]


def test_parts_of_cross_attention_and_of_a_memory() -> None:
    x, context = torch.randn(2, 5, WIDTH).double(), torch.randn(2, 3, WIDTH).double()
    cached = KeyValueCache()
    for name in ("head-gate", "element-gate", "differential"):
        layer, cached = layer_with(name), KeyValueCache()
        expected = layer(x, context)
        for _ in range(2):
            torch.testing.assert_close(layer(x, context, cache=cached), expected)
    with pytest.raises(HeadwayError, match="needs the values of the queries' own tokens: leave out key, value"):
        layer_with("exclusive")(x, context)
    block = Block(WIDTH, HEADS, parts=["head-gate"], cross_attention=True)
    assert block.attention.parts is not None
    assert block.cross_attention.parts is None
    model = Decoder(TransformerConfig(11, 16, 3, 4, parts=("value-residual", "differential", "head-gate"))).double()
    ids, memory = torch.randint(11, (2, 8)), SegmentMemory(8)
    segments = [model(ids[:, :4], memory=memory), model(ids[:, 4:], memory=memory)]
    torch.testing.assert_close(torch.cat(segments, 1), model(ids), rtol=1e-10, atol=1e-10)


def test_refusals() -> None:
    with pytest.raises(HeadwayError, match="part"):
        layer_with("gate")
    with pytest.raises(HeadwayError, match="parts has 3: give a name, a Part, or a function of the layer's sizes"):
        layer_with(3)
    with pytest.raises(HeadwayError, match="which makes a int: give a function that makes a Part"):
        layer_with(lambda layer: layer)
    with pytest.raises(HeadwayError, match="num_kv_heads is 1: differential attention needs pairs"):
        MultiHeadAttention(WIDTH, 4, num_kv_heads=1, parts=["differential"])
    with pytest.raises(HeadwayError, match="layer is -1: give the number of the layer, from 0"):
        ValueResidual(-1)
    x = torch.randn(2, 5, WIDTH).double()
    with pytest.raises(HeadwayError, match=r"first_values is not given: give one headway.nn.FirstValues\(\)"):
        layer_with("value-residual")(x)
    with pytest.raises(HeadwayError, match="first_values holds no values: call the layer that was made with layer=0"):
        layer_with("value-residual")(x, first_values=FirstValues())


def test_checkpoints_that_lose_gradients_are_refused() -> None:
    """A reentrant checkpoint computes the first layer without gradients, and hands its values over so."""
    ids = torch.randint(11, (2, 9))
    for where in (slice(None), slice(1)):  # all layers, and the first alone
        model = Decoder(TransformerConfig(11, 16, 3, 4, parts=("value-residual",)), "rope")
        for block in list(model.stack.blocks)[where]:
            forward = block.forward

            def again(x: Tensor, *, forward: Any = forward, **options: Any) -> Any:
                return torch.utils.checkpoint.checkpoint(lambda x: forward(x, **options), x, use_reentrant=True)

            block.forward = again  # type: ignore[method-assign]
        with pytest.raises(HeadwayError, match="first_values were computed without gradients"):
            model(ids).logsumexp(-1).sum().backward()


def test_layers_beside_a_value_residual_need_not_know_of_it() -> None:
    blocks = [
        Block(WIDTH, HEADS, parts=["value-residual"], layer=0),
        Block(WIDTH, HEADS, attention=LatentAttention(WIDTH, HEADS, latent_dim=8, rotary_dim=4)),
        Block(WIDTH, HEADS, parts=["value-residual"], layer=2),
    ]
    stack = Stack(blocks, None)
    stack(torch.randn(2, 5, WIDTH)).square().sum().backward()
    assert blocks[2].attention.parts[0].mix.grad.abs().min() > 0


def test_what_makes_heads_wider_comes_first() -> None:
    for before in ("element-gate", "head-gate", "differential"):
        with pytest.raises(HeadwayError, match="parts has a DifferentialAttention, which makes heads wider, after a "):
            MultiHeadAttention(4, 4, parts=[before, "differential"])
    for make in (partial(MultiHeadAttention, WIDTH, HEADS), partial(TransformerConfig, 11)):
        with pytest.raises(HeadwayError, match="parts is 'head-gate': give a"):
            make(parts="head-gate")  # type: ignore[operator]


def test_a_part_that_is_given_keeps_its_parameters() -> None:
    gate = HeadGate(WIDTH, HEADS)
    nn.init.constant_(gate.gate_proj.weight, 3.0)
    latent = partial(LatentAttention, latent_dim=8, rotary_dim=4)
    layers = [MultiHeadAttention(WIDTH, HEADS, parts=[gate]), latent(WIDTH, HEADS, parts=[gate])]
    assert (gate.gate_proj.weight == 3).all()
    for layer in layers:
        nn.init.constant_(gate.gate_proj.weight, 3.0)
        layer.reset_parameters()
        assert (gate.gate_proj.weight != 3).all()


def test_a_model_initialises_its_parts() -> None:
    parts: Any = ("value-residual", "differential", partial(ExclusiveSelfAttention, alpha=0.5), "element-gate")
    model = Decoder(TransformerConfig(11, 16, 2, 4, parts=parts), "rope")
    for parameter in model.parameters():
        nn.init.constant_(parameter, 7.0)
    model.initialise()
    assert all((parameter != 7).any() for parameter in model.parameters())


def test_a_config_comes_back_from_json() -> None:
    config = TransformerConfig(11, 16, parts=("head-gate",))
    back = TransformerConfig(**json.loads(json.dumps(asdict(config))))
    assert back == config
    assert hash(back) == hash(config)


def test_sizes_follow_the_parts() -> None:
    sizes = LayerSizes(WIDTH, HEADS, KV_HEADS, HEAD_DIM, 0)
    after = DifferentialAttention(HEADS, KV_HEADS, HEAD_DIM, 0).output_sizes(sizes)
    assert (after.num_heads, after.head_dim) == (HEADS // 2, 2 * HEAD_DIM)
