"""What each process of a test of tensor parallelism computes: the numbers of one process, and those of its shard."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import parallelize_module
from torch.utils.checkpoint import checkpoint

import headway as hw
from headway import masks as M
from headway.parallel import METHODS, Shards, context, tensor_plan
from headway.positions import ENCODINGS, PositionEncoding
from headway.testing.inputs import CheckSizes, on_axes, randomized

Run = Callable[[nn.Module], Tensor]


def whole(x: Tensor) -> Tensor:
    return x.full_tensor() if isinstance(x, DTensor) else x


def results(module: nn.Module, run: Run) -> dict[str, Tensor]:
    """The output of a module, and the gradient of each parameter."""
    module.zero_grad()
    out = run(module)
    (out * torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out)).sum().backward()
    found = {name: whole(p.grad) for name, p in module.named_parameters() if p.grad is not None}
    return {"output": out.detach(), **found}


def worst(found: dict[str, Tensor], right: dict[str, Tensor]) -> float:
    """The largest difference, as a share of the largest number of each tensor where that is above 1."""
    assert found.keys() == right.keys()
    return max(float((found[name] - one).abs().max() / one.abs().max().clamp(min=1)) for name, one in right.items())


def sharded(module: nn.Module, group: dist.ProcessGroup) -> nn.Module:
    mesh = DeviceMesh.from_group(group, "cpu")
    module = copy.deepcopy(module)
    return parallelize_module(module, mesh, tensor_plan(module, mesh))


def drawn(module: nn.Module, seed: int = 0) -> nn.Module:
    """The module with all of its parameters drawn, those of encodings as their checks draw them."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    for part in module.modules():
        if isinstance(part, PositionEncoding):
            randomized(part, generator, torch.float64)
    return module


def difference(module: nn.Module, group: dist.ProcessGroup, run: Run) -> float:
    return worst(results(sharded(module, group), run), results(module, run))


# ---------------------------------------------------------------- layers


def layer_of(encoding: PositionEncoding, **options: Any) -> nn.Module:
    sizes, kv_heads = CheckSizes.of(encoding), getattr(encoding, "num_kv_heads", None)
    options = {"num_kv_heads": kv_heads, "qk_norm": "rms", "sink": 0.3, **options}
    made = hw.nn.MultiHeadAttention(
        sizes.embed_dim, sizes.heads, head_dim=sizes.head_dim, encoding=encoding, dtype=torch.float64, **options
    )
    return drawn(made).eval()


def sweep(group: dist.ProcessGroup, names: Iterable[str]) -> dict[str, float | str]:
    """The largest difference of a layer with each encoding, in its output and the gradients of x and parameters."""
    found: dict[str, float | str] = {}
    for name in names:
        encoding = ENCODINGS[name].examples()[0]
        layer = layer_of(encoding, sink=None if name == "stick-breaking" else 0.3)  # which replaces the softmax
        x = torch.randn(2, 7, CheckSizes.of(encoding).embed_dim, dtype=torch.float64)
        x = nn.Parameter(torch.sin(torch.arange(x.numel(), dtype=torch.float64)).view_as(x))
        layer.register_parameter("input", x)  # so that its gradient is compared too
        at = on_axes(hw.Coordinates.span(7), encoding.axes)
        try:
            found[name] = difference(layer, group, lambda one, at=at: one(one.input, mask=M.Causal(), positions=at))
        except hw.HeadwayError as error:
            found[name] = str(error)
    return found


class Slopes(PositionEncoding):
    """An encoding of a user, with every hook that may have heads: a rotation of values, a scale and a bias by head."""

    def __init__(self, num_heads: int, head_dim: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.factor = nn.Parameter(torch.ones(num_heads, 1, head_dim))
        self.weight = nn.Parameter(torch.ones(num_heads))

    def _factor(self, x: Tensor) -> Tensor:
        return self.factor.exp()[:: self.num_heads // x.shape[1]]

    def prepare(self, x: Tensor, coordinates: hw.Coordinates) -> Tensor:
        return x * self._factor(x)

    def prepare_value(self, v: Tensor, coordinates: hw.Coordinates) -> Tensor:
        return v * coordinates.axis()[:, None, :, None].cos().exp() * self.weight.exp().mean()

    def restore_output(self, out: Tensor, coordinates: hw.Coordinates) -> Tensor:
        return out / coordinates.axis()[:, None, :, None].cos().exp() / self.weight.exp().mean()

    def terms(self, q_at: hw.Coordinates, k_at: hw.Coordinates, q_input: Any = None, k_input: Any = None) -> Any:
        def bias(rows: Tensor, weight: Tensor) -> Tensor:
            return -weight[None, :, None, None] * (rows[:, None] - torch.arange(k_at.index.shape[1])).abs()

        return (hw.terms.DenseBias(bias, (self.weight,)),)


def layers(group: dist.ProcessGroup) -> dict[str, float]:
    """Layers with grouped keys, masks by head, dropout, cross-attention, a context, jagged rows and without biases."""
    x = torch.sin(torch.arange(2 * 6 * 32, dtype=torch.float64)).view(2, 6, 32)
    context = x.roll(3, -1)[:, :5]
    t5 = hw.encoding("t5", num_heads=8)
    by_head = torch.rand(1, 8, 6, 6, generator=torch.Generator().manual_seed(1)) < 0.6
    by_head[..., 0] = True

    def layer(**options: Any) -> nn.Module:
        return drawn(hw.nn.MultiHeadAttention(32, 8, head_dim=4, dtype=torch.float64, **options))

    def dropping(one: nn.Module) -> Tensor:
        torch.manual_seed(5)
        return one.train()(x)

    def again(one: nn.Module) -> Tensor:
        out: Tensor = checkpoint(one, x.clone().requires_grad_(), use_reentrant=False)
        return out

    def of_function(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return (k <= q) & ((q + k + h) % 5 != 0) | (k == q)

    rows = torch.nested.nested_tensor([x[0, :4], x[1]], layout=torch.jagged)
    user = Slopes(8, 4)
    cases: dict[str, tuple[nn.Module, Run]] = {
        "grouped keys": (layer(num_kv_heads=2, encoding=t5, soft_cap=3.0), lambda one: one(x, mask=M.Causal())),
        "a mask by head": (layer(num_kv_heads=4, encoding=t5), lambda one: one(x, mask=by_head)),
        "a function of heads": (layer(encoding=t5), lambda one: one(x, mask=of_function)),
        "dropout": (layer(encoding=t5, dropout=0.4), dropping),
        "cross-attention": (layer(encoding=t5, bias="qv"), lambda one: one(x, context)),
        "another value": (layer(bias=False), lambda one: one(x, context, context.flip(1))),
        "an encoding by name": (layer(), lambda one: one(x, encoding="alibi")),
        "jagged rows": (layer(encoding=t5), lambda one: one(rows, mask=M.Causal()).values()),
        "an encoding of a user": (layer(num_kv_heads=4, encoding=user, sink=0.2), lambda one: one(x)),
        "a rotation by head": (
            layer(encoding=hw.positions.Compose(hw.encoding("alibi", num_heads=8), hw.encoding("rope", head_dim=4))),
            lambda one: one(x),
        ),
        "checkpointing": (
            layer(encoding=t5),
            again,
        ),
    }
    return {name: difference(module, group, run) for name, (module, run) in cases.items()}


# ---------------------------------------------------------------- models


def config(**options: Any) -> Any:
    sizes: dict[str, Any] = {"embed_dim": 32, "num_layers": 2, "num_heads": 4, "num_kv_heads": 2, "sink": 0.1}
    return hw.models.TransformerConfig(40, **{**sizes, **options})


def models(group: dist.ProcessGroup) -> dict[str, float]:
    """Models of each kind, whose stacks own the encodings, and what a decoder does beyond a forward pass."""
    made: dict[str, Any] = {"dtype": torch.float64}
    ids = torch.arange(14).view(2, 7) % 40
    both, causal = (hw.encoding("t5", num_heads=4, bidirectional=one) for one in (True, False))
    liere = hw.encoding(
        "liere", num_heads=4, head_dim=8, axes=1, num_kv_heads=2, per_head=True
    )  # with tables of parameters, computed once for all layers
    composed = hw.positions.Compose(hw.encoding("fire", num_heads=4), hw.encoding("rope", head_dim=8))
    each = [hw.encoding("forgetting", embed_dim=32, num_heads=4), None]
    learned = hw.encoding("learned", embed_dim=32, max_length=16)
    cases: dict[str, tuple[nn.Module, Run]] = {
        "block": (
            hw.nn.Block(32, 4, activation="swiglu", encoding="rope", cross_attention=True, **made),
            lambda one: one(torch.ones(1, 3, 32).double().cumsum(1), context=torch.ones(1, 2, 32).double().cumsum(2)),
        ),
        "decoder": (hw.models.Decoder(config(activation="geglu"), composed, **made), lambda one: one(ids)),
        "tables of parameters": (hw.models.Decoder(config(), liere, **made), lambda one: one(ids)),
        "tables of all heads": (
            hw.models.Decoder(config(), hw.encoding("liere", head_dim=8, axes=1), **made),
            lambda one: one(ids),
        ),
        "an encoding for each": (hw.models.Decoder(config(norm="rms"), each, **made), lambda one: one(ids)),
        "embeds": (hw.models.Encoder(config(num_kv_heads=None), learned, **made), lambda one: one(ids)),
        "both": (hw.models.EncoderDecoder(config(), both, causal, **made), lambda one: one(ids, ids[:, :5])),
    }
    found = {name: difference(drawn(module).eval(), group, run) for name, (module, run) in cases.items()}
    module, run = cases["decoder"]
    found["a copy"] = worst(results(copy.deepcopy(sharded(module, group)), run), results(module, run))
    return found


def decoding(group: dist.ProcessGroup) -> dict[str, bool | float]:
    """Token by token from a cache, and a generated text."""
    found: dict[str, bool | float] = {}
    by_head = {"num_heads": 4, "head_dim": 8, "axes": 1, "num_kv_heads": 2}
    for name, sizes in {"alibi": {"num_heads": 4}, "circulant-string": by_head}.items():
        model = drawn(hw.models.Decoder(config(), hw.encoding(name, **sizes), dtype=torch.float64)).eval()
        part = sharded(model, group)
        ids = torch.arange(12).view(2, 6) % 40
        with torch.no_grad():
            cache = part.new_cache()
            steps = torch.cat([part(ids[:, i : i + 1], cache=cache) for i in range(6)], dim=1)
            found[name] = float((steps - model(ids)).abs().max())
            texts = [one.generate(ids, 5, temperature=0.0).ids for one in (part, model)]
        found[f"{name} generates"] = float(texts[0] != texts[1])
    return found


# ---------------------------------------------------------------- some of the heads of some of the tokens

Parts = Callable[[nn.Module, Callable[[Tensor], Tensor], hw.Coordinates | None], Tensor]
"""Runs a module on what a function takes of each tensor of all tokens, at some coordinates."""


def on_mesh(module: nn.Module, mesh: DeviceMesh, run: Parts, n: int, method: str, axes: int | None = None) -> float:
    """The largest difference of a module on a mesh of sequence × tensor."""
    shards = Shards.zigzag(n, mesh["sequence"])
    at = on_axes(hw.Coordinates.span(n), axes)
    _, own = shards.take(torch.empty(1, n), coordinates=at)
    part = sharded(module, mesh["tensor"].get_group())
    with context(part, shards, method=method):
        out = run(part, lambda x: shards.take(x)[0], own)
    expected = run(module, lambda x: x, at)
    weights = torch.linspace(-1, 1, expected.numel(), dtype=expected.dtype).view_as(expected)
    (out * shards.take(weights)[0]).sum().backward()
    module.zero_grad()
    (expected * weights).sum().backward()
    found = {"output": out.detach()}
    for name, parameter in part.named_parameters():
        gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        found[name] = whole(gradient).clone()
        dist.all_reduce(found[name], group=mesh["sequence"].get_group())
    right = {name: torch.zeros_like(p) if p.grad is None else p.grad for name, p in module.named_parameters()}
    return worst(found, {"output": shards.take(expected.detach())[0], **right})


def mesh_of_four() -> DeviceMesh:
    return DeviceMesh("cpu", torch.arange(4).view(2, 2), mesh_dim_names=("sequence", "tensor"))


def sweep_on_mesh(group: dist.ProcessGroup, names: Iterable[str], method: str) -> dict[str, float | str]:
    """As ``sweep``, with two shards of the tokens."""
    mesh, found = mesh_of_four(), dict[str, float | str]()
    for name in names:
        encoding = ENCODINGS[name].examples()[0]
        layer = layer_of(encoding, sink=None if name == "stick-breaking" else 0.3)
        x = torch.randn(2, 7, CheckSizes.of(encoding).embed_dim, dtype=torch.float64)
        layer.register_parameter("input", nn.Parameter(torch.sin(torch.arange(x.numel()).double()).view_as(x)))

        def run(one: nn.Module, own: Any, at: Any) -> Tensor:
            return one(own(one.input), mask=M.Causal(), positions=at)

        try:
            found[name] = on_mesh(layer, mesh, run, 7, method, encoding.axes)
        except hw.HeadwayError as error:
            found[name] = str(error)
    return found


def layers_on_mesh(group: dist.ProcessGroup) -> dict[str, float]:
    """Masks, biases and weights by head, dropout, cross-attention, and tokens from a cache."""
    mesh, n = mesh_of_four(), 10
    x = torch.sin(torch.arange(2 * n * 32, dtype=torch.float64)).view(2, n, 32)
    by_head = torch.rand(1, 8, n, n, generator=torch.Generator().manual_seed(1)) < 0.6
    by_head[..., 0] = True
    t5 = hw.encoding("t5", num_heads=8)

    def layer(**options: Any) -> nn.Module:
        return drawn(hw.nn.MultiHeadAttention(32, 8, head_dim=4, dtype=torch.float64, **options))

    def dropping(one: nn.Module, own: Any, at: Any) -> Tensor:
        torch.manual_seed(5)
        return one.train()(own(x), positions=at)

    cases: dict[str, tuple[nn.Module, Parts]] = {
        "a mask by head": (layer(encoding=t5), lambda one, own, at: one(own(x), mask=by_head, positions=at)),
        "grouped keys": (
            layer(num_kv_heads=4, encoding=t5, soft_cap=3.0),
            lambda one, own, at: one(own(x), mask=M.Causal(), positions=at),
        ),
        "dropout": (layer(encoding=t5, dropout=0.4), dropping),
        "a whole context": (
            layer(encoding=t5, bias="qv"),
            lambda one, own, at: one(own(x), x[:, :5].flip(2), positions=at),
        ),
        "an encoding by name": (layer(), lambda one, own, at: one(own(x), encoding="alibi", positions=at)),
    }
    found = {}
    for method in METHODS:
        for name, (module, run) in cases.items():
            found[f"{name}, {method}"] = on_mesh(module, mesh, run, n, method)
    model = drawn(hw.models.Decoder(config(), hw.encoding("alibi", num_heads=4), dtype=torch.float64)).eval()
    part, ids = sharded(model, mesh["tensor"].get_group()), torch.arange(2 * n).view(2, n) % 40
    with torch.no_grad(), context(part, Shards.zigzag(n, mesh["sequence"])):
        written = part.generate(ids, 5).ids
    found["generate"] = float(written != model.generate(ids, 5).ids)
    return found


def refused(group: dist.ProcessGroup) -> dict[str, str]:
    """What is refused, each with its message."""
    mesh = DeviceMesh.from_group(group, "cpu")
    x = torch.ones(1, 3, 16)
    heads, keys = hw.nn.MultiHeadAttention(18, 3), hw.nn.MultiHeadAttention(16, 4, num_kv_heads=1)
    twice = sharded(hw.nn.MultiHeadAttention(16, 4), group)
    other = sharded(hw.nn.MultiHeadAttention(16, 4, encoding=hw.encoding("alibi", num_heads=2)), group)
    mixing = sharded(hw.nn.MultiHeadAttention(16, 4, encoding=hw.encoding("dape", num_heads=4)), group)
    inspected = nn.Sequential(nn.Identity(), twice)

    def within(block: AbstractContextManager[Any]) -> None:
        with block:
            inspected(x)

    cases: dict[str, Callable[[], Any]] = {
        "capture": lambda: within(hw.capture(inspected)),
        "ablate": lambda: within(hw.ablate(inspected, {(0, 1): "zero"})),
        "prepack": lambda: hw.nn.prepack(twice),
        "heads": lambda: tensor_plan(heads, mesh),
        "keys": lambda: tensor_plan(hw.nn.Block(16, 4, attention=keys), mesh),
        "hidden": lambda: tensor_plan(hw.nn.FeedForward(16, 9), mesh),
        "nothing": lambda: tensor_plan(nn.Linear(3, 3), mesh),
        "across layers": lambda: tensor_plan(nn.ModuleList([hw.nn.CrossLayerAttention(16, 4)]), mesh),
        "parts": lambda: sharded(hw.nn.MultiHeadAttention(16, 4, parts=["head-gate"]), group),
        "twice": lambda: parallelize_module(twice, mesh, tensor_plan(twice, mesh)),
        "another number": lambda: other(x),
        "mixes heads": lambda: mixing(x, mask=M.Causal()),
    }
    found = {}
    for name, call in cases.items():
        try:
            call()
            found[name] = "not refused"
        except hw.HeadwayError as error:
            found[name] = str(error)
    return found
