"""Linear maps are ``F.linear`` in whatever way they are run, and oneDNN computes those that it may."""

import copy
import math
import os
import pickle
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.utils import parametrizations, prune
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

import headway
from headway import HeadwayError, _torch
from headway._common import processor
from headway.kernels import _products as products
from headway.kernels import _tuned
from headway.kernels._products import KERNELS, NEVER, NONE, Least
from headway.models import Decoder, RecurrentLM, TransformerConfig
from headway.nn import FeedForward, Head, MultiHeadAttention, linear_kernel, prepack, unprepack
from headway.nn import linear as module
from headway.nn.linear import Linear, apply_linear, linear
from headway.nn.prepacked import PrepackedLinear

pytestmark = pytest.mark.skipif(not _torch.ONEDNN_LINEAR, reason="this torch has no oneDNN")

ZEN_5 = ("AuthenticAMD", 26)
OUT, IN = 7, 5


class Calls:
    """Counts the products that oneDNN computes."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        self.count += 1
        return _torch.onednn_linear(x, weight, bias)


@pytest.fixture
def onednn(monkeypatch: pytest.MonkeyPatch) -> Calls:
    calls = Calls()
    for each in (module, products):
        monkeypatch.setattr(each, "onednn_linear", calls)
    return calls


@pytest.fixture(autouse=True)
def _kernels_of_each_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """HEADWAY_LINEAR_KERNEL, the processor and its tables are read again in each test, and those that come with headway
    hold."""
    products.least_of.cache_clear()
    _tuned.forget()
    monkeypatch.setenv("HEADWAY_TUNED", "off")
    monkeypatch.delenv("HEADWAY_LINEAR_KERNEL", raising=False)


def layer_of(**more: Any) -> nn.Linear:
    return nn.Linear(IN, OUT, **more)


# Ways of running ------------------------------------------------------------------------------------------------------

Run = Callable[[nn.Linear, Tensor], Any]


def inference(layer: nn.Linear, x: Tensor) -> Tensor:
    with torch.inference_mode():
        return apply_linear(layer, x)


def without_gradients(layer: nn.Linear, x: Tensor) -> Tensor:
    with torch.no_grad():
        return apply_linear(layer, x)


def other_weights(layer: nn.Linear, x: Tensor) -> Tensor:
    held = Holder(layer)
    weights = {"layer.weight": 2 * layer.weight.detach(), "layer.bias": layer.bias.detach() + 1}
    return torch.func.functional_call(held, weights, (x,))  # type: ignore[no-any-return]


class Holder(nn.Module):
    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return apply_linear(self.layer, x)


def checkpointed(layer: nn.Linear, x: Tensor) -> Tensor:
    out: Tensor = checkpoint(apply_linear, layer, x, use_reentrant=False)
    out.sum().backward()
    return out


def offloaded(layer: nn.Linear, x: Tensor) -> Tensor:
    with saved_tensors_hooks(lambda saved: saved.clone(), lambda saved: saved):
        out = apply_linear(layer, x)
    out.sum().backward()
    return out


TAKEN: dict[str, Run] = {
    "recorded by autograd": apply_linear,
    "three dimensions": lambda layer, x: apply_linear(layer, x[None]),
    "one token": lambda layer, x: apply_linear(layer, x[0]),
    "under inference_mode": inference,
    "under no_grad": without_gradients,
    "a frozen layer": lambda layer, x: apply_linear(layer.requires_grad_(False), x),
    "an input without gradient": lambda layer, x: apply_linear(layer, x.detach()),
    "a copy": lambda layer, x: apply_linear(copy.deepcopy(layer), x),
    "pickled": lambda layer, x: apply_linear(pickle.loads(pickle.dumps(layer)), x),
    "functional_call": other_weights,
    "checkpoint": checkpointed,
    "hooks of saved tensors": offloaded,
    "swapped": lambda layer, x: as_swapped(layer)(x),
    "swapped, with a hook": lambda layer, x: hooked(as_swapped(layer))(x),
    "swapped, parametrized": lambda layer, x: parametrizations.weight_norm(as_swapped(layer))(x),
}


def as_swapped(layer: nn.Linear) -> Linear:
    layer.__class__ = Linear
    return layer  # type: ignore[return-value]


def hooked(layer: nn.Linear) -> nn.Linear:
    layer.register_forward_hook(lambda module, given, out: 2 * out)
    return layer


def prehooked(layer: nn.Linear) -> nn.Linear:
    layer.register_forward_pre_hook(lambda module, given: (2 * given[0],))
    return layer


def hooked_backward(layer: nn.Linear, x: Tensor) -> list[Tensor]:
    layer.register_full_backward_hook(lambda module, d_in, d_out: (2 * d_in[0],))
    return list(torch.autograd.grad(apply_linear(layer, x).sum(), x))


def hooked_everywhere(layer: nn.Linear, x: Tensor) -> Tensor:
    handle = nn.modules.module.register_module_forward_hook(lambda module, given, out: 3 * out)
    try:
        return apply_linear(layer, x)
    finally:
        handle.remove()


def own_forward(layer: nn.Linear, x: Tensor) -> Tensor:
    layer.forward = lambda x: x * 2  # type: ignore[method-assign]
    return apply_linear(layer, x)


def patched_class(layer: nn.Linear, x: Tensor) -> Tensor:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nn.Linear, "forward", lambda self, x: x * 3)
        return apply_linear(layer, x)


class Doubled(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


def autocast(layer: nn.Linear, x: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return apply_linear(layer, x)


def quantized(layer: nn.Linear, x: Tensor) -> Tensor:
    held = torch.ao.quantization.quantize_dynamic(Holder(layer), {nn.Linear}, torch.qint8)
    assert type(held.layer) is not nn.Linear
    return held(x)  # type: ignore[no-any-return]


def dual(layer: nn.Linear, x: Tensor) -> tuple[Tensor, ...]:
    with forward_ad.dual_level():
        return tuple(forward_ad.unpack_dual(apply_linear(layer, forward_ad.make_dual(x.detach(), x.detach() + 1))))


def per_sample(layer: nn.Linear, x: Tensor) -> Tensor:
    def loss(weight: Tensor, row: Tensor) -> Tensor:
        return linear(row, weight).square().sum()

    found: Tensor = torch.vmap(torch.func.grad(loss), (None, 0))(layer.weight.detach(), x.detach())
    return found


def precision(layer: nn.Linear, x: Tensor) -> Tensor:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        return apply_linear(layer, x)
    finally:
        torch.set_float32_matmul_precision(before)


def switched_off(layer: nn.Linear, x: Tensor) -> Tensor:
    with torch.backends.mkldnn.flags(enabled=False):
        return apply_linear(layer, x)


class Seen(TorchFunctionMode):
    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return function(*args, **(kwargs or {}))


def observed(layer: nn.Linear, x: Tensor) -> Tensor:
    with Seen():
        return apply_linear(layer, x)


def counted(layer: nn.Linear, x: Tensor) -> Tensor:
    with FlopCounterMode(display=False) as counter:
        out = apply_linear(layer, x)
    assert counter.get_total_flops() == 2 * x.numel() * OUT
    return out


def compiled(layer: nn.Linear, x: Tensor) -> Tensor:
    out: Tensor = torch.compile(Holder(layer), backend="eager", fullgraph=True)(x)
    return out


def by_torch(layer: nn.Linear, x: Tensor) -> Tensor:
    with linear_kernel("torch"):
        return apply_linear(layer, x)


LEFT: dict[str, Run] = {
    "float64": lambda layer, x: apply_linear(layer.double(), x.double()),
    "bfloat16": lambda layer, x: apply_linear(layer.bfloat16(), x.bfloat16()),
    "autocast": autocast,
    "precision medium": precision,
    "no tokens": lambda layer, x: apply_linear(layer, x[:0]),
    "no features": lambda layer, x: apply_linear(nn.Linear(IN, 0), x),
    "strided": lambda layer, x: apply_linear(layer, x.expand(2, *x.shape).transpose(0, 1)),
    "meta": lambda layer, x: apply_linear(layer.to("meta"), x.to("meta")).shape,
    "a forward hook": lambda layer, x: apply_linear(hooked(layer), x),
    "a forward pre-hook": lambda layer, x: apply_linear(prehooked(layer), x),
    "a backward hook": hooked_backward,
    "a hook of all modules": hooked_everywhere,
    "a forward of its own": own_forward,
    "a patched class": patched_class,
    "a subclass": lambda layer, x: apply_linear(Doubled(IN, OUT), x),
    "weight norm": lambda layer, x: apply_linear(parametrizations.weight_norm(layer), x),
    "pruned": lambda layer, x: apply_linear(prune.l1_unstructured(layer, "weight", 9), x),
    "quantized": quantized,
    "prepacked": lambda layer, x: apply_linear(prepack(Holder(layer)).layer, x.detach()),
    "vmap": lambda layer, x: torch.vmap(lambda row: apply_linear(layer, row))(x),
    "gradients of each sample": per_sample,
    "jacrev": lambda layer, x: torch.func.jacrev(lambda x: apply_linear(layer, x))(x.detach()),
    "forward mode": dual,
    "a function mode": observed,
    "a dispatch mode": counted,
    "torch.jit.trace": lambda layer, x: torch.jit.trace(Holder(layer), x.detach(), check_trace=False)(x),
    "torch.fx": lambda layer, x: torch.fx.symbolic_trace(Holder(layer))(x),
    "torch.compile": compiled,
    "torch.export": lambda layer, x: torch.export.export(Holder(layer), (x.detach(),)).module()(x),
    "oneDNN switched off": switched_off,
    "linear_kernel('torch')": by_torch,
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning", "ignore::FutureWarning")
@pytest.mark.parametrize(("name", "run"), [*TAKEN.items(), *LEFT.items()], ids=[*TAKEN, *LEFT])
def test_every_way_of_running_is_torchs(name: str, run: Run, onednn: Calls) -> None:
    layer, x = layer_of(), torch.randn(6, IN, requires_grad=True)
    draws = torch.get_rng_state()
    found = []
    for kernel in ("torch", "onednn"):
        torch.set_rng_state(draws)
        with linear_kernel(kernel):
            found.append(run(copy.deepcopy(layer), x.detach().requires_grad_()))
        assert onednn.count == 0 or (kernel == "onednn" and name in TAKEN)
    torch.testing.assert_close(found[1], found[0])
    assert (onednn.count > 0) == (name in TAKEN)


GRADIENTS: dict[str, Callable[[Tensor, list[Tensor]], Any]] = {
    "a strided gradient": lambda y, to: torch.autograd.grad(y.mT, to, torch.randn(2, OUT, 6)),
    "an expanded gradient": lambda y, to: torch.autograd.grad(y.sum(), to),
    "accumulated": lambda y, to: [y.square().sum().backward(), *(x.grad for x in to)],
    "twice": lambda y, to: torch.autograd.grad(
        sum(g.square().sum() for g in torch.autograd.grad(y.square().sum(), to, create_graph=True)), to
    ),
    "batched": lambda y, to: torch.autograd.grad(y, to, torch.randn(3, *y.shape), is_grads_batched=True),
    "under autocast": lambda y, to: autocast_of(lambda: torch.autograd.grad(y.square().sum(), to)),
    "forward over reverse": lambda y, to: tangents(y, to),
}
FOLLOWED = {"batched", "under autocast", "forward over reverse"}
"""Those that torch's own operations compute."""


def autocast_of(run: Callable[[], Any]) -> Any:
    with torch.autocast("cpu", torch.bfloat16):
        return run()


def tangents(y: Tensor, to: list[Tensor]) -> list[Tensor | None]:
    with forward_ad.dual_level():
        upstream = forward_ad.make_dual(torch.ones_like(y), torch.randn_like(y))
        return [forward_ad.unpack_dual(g).tangent for g in torch.autograd.grad(y, to, upstream)]


@pytest.mark.parametrize("wanted", ["x, weight, bias", "x", "weight", "bias"])
@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients_are_torchs(name: str, wanted: str, onednn: Calls) -> None:
    found = []
    for kernel in ("torch", "onednn"):
        torch.manual_seed(1)
        given = {"x": torch.randn(2, 6, IN), "weight": torch.randn(OUT, IN), "bias": torch.randn(OUT)}
        leaves = [given[one].requires_grad_() for one in wanted.split(", ")]
        if name == "twice" and wanted == "bias":
            return  # the gradient does not depend on it
        with linear_kernel(kernel):
            y = linear(**given)
            forward = onednn.count
            found.append(GRADIENTS[name](y, leaves))
    assert forward == 1
    assert (onednn.count - forward) == (0 if name in FOLLOWED else sum(one != "bias" for one in wanted.split(", ")))
    torch.testing.assert_close(found[1], found[0], rtol=1e-5, atol=1e-4)


def test_no_more_is_saved_than_by_torch() -> None:
    for wants_x, wants_weight in ((True, True), (True, False), (False, True), (False, False)):
        saved = []
        for kernel in ("torch", "onednn"):
            given = torch.randn(4, IN, requires_grad=wants_x), torch.randn(OUT, IN, requires_grad=wants_weight)
            held: list[int] = []
            with linear_kernel(kernel), saved_tensors_hooks(lambda x: held.append(x.numel()) or x, lambda x: x):  # noqa: B023
                linear(*given, torch.randn(OUT, requires_grad=True))
            saved.append(sorted(held))
        assert saved[0] == saved[1]


def test_errors_are_torchs() -> None:
    with linear_kernel("onednn"):
        for x, weight, bias in ((3, (2, 4), None), (4, (4,), 1), (4, (2, 4), 3)):
            given = torch.randn(5, x), torch.randn(weight), None if bias is None else torch.randn(bias)
            raised = []
            for function in (F.linear, linear):
                try:
                    function(*given)
                except RuntimeError as error:
                    raised.append(str(error))
            assert len(raised) != 1
            assert len(set(raised)) <= 1


# Precision ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rows", "inputs", "outputs"), [(128, 64, 64), (130, 512, 96), (96, 1030, 70), (600, 66, 65)])
def test_precision_is_that_of_the_naive_computation(rows: int, inputs: int, outputs: int) -> None:
    """By the measure of DESIGN.md, for the three products."""

    def products(x: Tensor, weight: Tensor, upstream: Tensor) -> list[Tensor]:
        leaves = [x.requires_grad_(), weight.requires_grad_()]
        y = linear(*leaves)
        return [y.detach(), *torch.autograd.grad(y, leaves, upstream)]

    errors = torch.zeros(2, 3, dtype=torch.float64)
    largest = torch.zeros(3, dtype=torch.float64)
    for _ in range(16):
        given = torch.randn(rows, inputs), torch.randn(outputs, inputs), torch.randn(rows, outputs)
        exact = products(*(x.double() for x in given))
        for number, kernel in enumerate(("torch", "onednn")):
            with linear_kernel(kernel):
                for product, (found, wanted) in enumerate(zip(products(*given), exact, strict=True)):
                    errors[number, product] += (found.double() - wanted).abs().amax(-1).mean() / 16
        largest = torch.maximum(largest, torch.stack([x.detach().abs().max() for x in exact]))
    units = torch.tensor([4 * 2.0 ** (math.floor(math.log2(one)) - 23) for one in largest.tolist()])
    assert (errors[1] <= torch.tensor([1.5, 2, 2]) * errors[0] + units).all()


# The table ------------------------------------------------------------------------------------------------------------


def set_processor(monkeypatch: pytest.MonkeyPatch, vendor: str, family: int, flags: str = "avx2 avx512f") -> None:
    facts = {"vendor_id": vendor, "cpu family": str(family), "flags": flags}
    monkeypatch.setattr(processor, "cpuinfo", lambda: facts)
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
    products.least_of.cache_clear()
    _tuned.forget()


MEASURED = {25: Least(1 << 25, 1 << 25, NEVER), 26: Least(1 << 25, 1 << 25, 1 << 25)}
"""Zen 4 and Zen 5."""


@pytest.mark.parametrize(("family", "least"), MEASURED.items(), ids=str)
def test_a_product_is_onednns_from_its_size_on(family: int, least: Least, monkeypatch: pytest.MonkeyPatch) -> None:
    set_processor(monkeypatch, "AuthenticAMD", family)
    assert products.least_of(None) == least
    for threads in (1, 2):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        for product, fewest in least._asdict().items():
            if product in ("rows", "width") or fewest == products.NEVER:
                continue
            inputs = 2 * least.width
            outputs = int(fewest) * threads // least.rows // inputs
            assert getattr(products.products_for(least.rows * inputs, outputs, inputs), product)
            assert not getattr(products.products_for(least.rows * inputs, outputs - 1, inputs), product)
            assert not any(products.products_for((least.rows - 1) * inputs, 9 * outputs, inputs))
    huge = 1 << 30
    assert not any(products.products_for(huge * (least.width - 1), huge, least.width - 1))
    assert not any(products.products_for(huge * huge, least.width - 1, huge))


@pytest.mark.parametrize(
    ("vendor", "family", "flags"),
    [("GenuineIntel", 6, "avx2 avx512f"), ("AuthenticAMD", 25, "avx2"), ("AuthenticAMD", 99, "avx512f"), ("", 0, "")],
)
def test_what_was_not_measured_is_torchs(
    vendor: str, family: int, flags: str, monkeypatch: pytest.MonkeyPatch, onednn: Calls
) -> None:
    set_processor(monkeypatch, vendor, family, flags)
    assert products.least_of(None) == NONE
    linear(torch.randn(512, 512), torch.randn(512, 512))
    assert onednn.count == 0


def test_a_restrained_onednn_was_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    set_processor(monkeypatch, *ZEN_5)
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    assert products.least_of(None) == NONE


def test_each_product_is_the_faster_one(monkeypatch: pytest.MonkeyPatch, onednn: Calls) -> None:
    """Only forward, only the gradients, and all three."""
    for least, counts in {
        Least(1, math.inf, math.inf, 1, 1): (1, 0),
        Least(math.inf, 1, math.inf, 1, 1): (0, 1),
        Least(math.inf, 1, 1, 1, 1): (0, 2),
        Least(1, 1, 1, 1, 1): (1, 2),
    }.items():
        monkeypatch.setattr(products, "measured", lambda isa, least=least: least)
        products.least_of.cache_clear()
        x, weight = torch.randn(6, IN, requires_grad=True), torch.randn(OUT, IN, requires_grad=True)
        onednn.count = 0
        y = linear(x, weight)
        assert onednn.count == counts[0]
        found = torch.autograd.grad(y.sum(), (x, weight))
        assert onednn.count == sum(counts)
        torch.testing.assert_close(found, torch.autograd.grad(F.linear(x, weight).sum(), (x, weight)))


def test_the_processor_is_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    written = tmp_path / "cpuinfo"
    written.write_text("vendor_id\t: AuthenticAMD\ncpu family\t: 26\nflags\t\t: fpu avx512f\n\nvendor_id : other\n")
    monkeypatch.setattr(processor, "CPUINFO", written)
    read = processor.cpuinfo.__wrapped__
    monkeypatch.setattr(processor, "cpuinfo", read)
    assert processor.vendor_and_family() == ("AuthenticAMD", 26)
    assert processor.has("avx512f")
    assert not processor.has("avx512")
    monkeypatch.setattr(processor, "CPUINFO", tmp_path / "none")
    assert processor.vendor_and_family() == ("", 0)


# The switch -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("measured", [True, False])
@pytest.mark.parametrize("name", KERNELS)
def test_the_variable_chooses_for_the_process_and_the_context_within_it(
    name: str, measured: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(products, "measured", lambda isa: Least(1, 1, 1, 1, 1) if measured else NONE)
    products.least_of.cache_clear()
    monkeypatch.setenv("HEADWAY_LINEAR_KERNEL", name)
    taken = {"auto": measured, "onednn": True, "torch": False}
    assert any(products.products_for(8, 2, 4)) == taken[name]
    for other in KERNELS:
        with linear_kernel(other):
            assert any(products.products_for(8, 2, 4)) == taken[other]
    assert any(products.products_for(8, 2, 4)) == taken[name]


def test_an_unknown_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(HeadwayError, match=r"name='mkl' is not a kernel of linear maps: choose from auto, one"):
        linear_kernel("mkl").__enter__()
    monkeypatch.setenv("HEADWAY_LINEAR_KERNEL", "fast")
    with pytest.raises(HeadwayError, match="HEADWAY_LINEAR_KERNEL='fast' is not a kernel"):
        linear(torch.ones(2, 2), torch.ones(2, 2))


@pytest.mark.parametrize("arguments", [None, ("Tensor", "Tensor", "str")], ids=["missing", "changed"])
def test_a_torch_without_the_operator(arguments: tuple[str, ...] | None, monkeypatch: pytest.MonkeyPatch) -> None:
    assert _torch._has_onednn_linear()
    schema = SimpleNamespace(arguments=[SimpleNamespace(type=one) for one in arguments or ()])
    other = None if arguments is None else SimpleNamespace(default=SimpleNamespace(_schema=schema))
    monkeypatch.setattr(torch.ops.mkldnn, "_linear_pointwise", other)
    assert not _torch._has_onednn_linear()
    monkeypatch.setattr(_torch, "ONEDNN_LINEAR", False)
    monkeypatch.setattr(products, "ONEDNN_LINEAR", False)
    x, weight = torch.randn(3, IN), torch.randn(OUT, IN)
    with linear_kernel("onednn"):
        assert torch.equal(linear(x, weight), F.linear(x, weight))
    assert torch.equal(_torch.onednn_linear(x, weight, None), F.linear(x, weight))


# The modules that use it ----------------------------------------------------------------------------------------------

CONFIG = TransformerConfig(vocab_size=20, embed_dim=16, num_layers=1, num_heads=2)
IDS = torch.arange(10)[None]


def swapped(model: nn.Module) -> nn.Module:
    from headway.integrations.torch import swap_attention

    return swap_attention(model, linear=True)


MODULES: dict[str, tuple[Callable[[], nn.Module], Callable[[Any], Tensor], int]] = {
    "attention": (lambda: MultiHeadAttention(16, 2), lambda layer: layer(torch.ones(1, 3, 16)), 4),
    "attention to a context": (
        lambda: MultiHeadAttention(16, 2, key_dim=8),
        lambda layer: layer(torch.ones(1, 3, 16), torch.ones(1, 5, 8)),
        4,
    ),
    "feed-forward": (lambda: FeedForward(16, 24), lambda layer: layer(torch.ones(1, 3, 16)), 2),
    "gated feed-forward": (lambda: FeedForward(16, 24, "swiglu"), lambda layer: layer(torch.ones(3, 16)), 3),
    "head": (lambda: Head(16, 20), lambda head: head(torch.ones(1, 3, 16), torch.ones(20, 16)), 1),
    "tied head": (lambda: Head(16, 20, tied=True), lambda head: head(torch.ones(1, 3, 16), torch.ones(20, 16)), 1),
    "decoder": (lambda: Decoder(CONFIG, headway.encoding("rope", head_dim=8)), lambda model: model(IDS), 7),
    "recurrent": (lambda: RecurrentLM(20, 16, 12), lambda model: model(IDS), 2),
    "torch's encoder layer": (
        lambda: swapped(nn.TransformerEncoderLayer(16, 2, 24, dropout=0.0, batch_first=True)),
        lambda layer: layer(torch.ones(1, 3, 16)),
        4,
    ),
    "torch's cross-attention": (
        lambda: swapped(nn.MultiheadAttention(16, 2, batch_first=True)),
        lambda layer: layer(torch.ones(1, 3, 16), torch.zeros(1, 5, 16), torch.ones(1, 5, 16), need_weights=False)[0],
        4,
    ),
}


@pytest.mark.parametrize(("build", "run", "count"), MODULES.values(), ids=MODULES)
def test_every_module_uses_it(
    build: Callable[[], nn.Module],
    run: Callable[[Any], Tensor],
    count: int,
    onednn: Calls,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = build()
    learned = [*model.parameters(), torch.zeros((), requires_grad=True)]
    with linear_kernel("torch"):
        wanted = run(model)
        d_wanted = torch.autograd.grad(wanted.square().sum() + learned[-1], learned, allow_unused=True)
    assert onednn.count == 0
    with linear_kernel("onednn"):
        with monkeypatch.context() as patch:
            patch.setattr(F, "linear", None)
            found = run(model)
        assert onednn.count == count
        d_found = torch.autograd.grad(found.square().sum() + learned[-1], learned, allow_unused=True)
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(d_found, d_wanted)


def test_prepacked_weights_have_one_owner(onednn: Calls) -> None:
    model = swapped(nn.Sequential(nn.Linear(IN, OUT), nn.Linear(OUT, OUT)))
    assert all(type(one) is Linear for one in model)
    with linear_kernel("onednn"), torch.no_grad():
        wanted = model(torch.ones(2, IN))
        count, packed = onednn.count, prepack(model)
        torch.testing.assert_close(packed(torch.ones(2, IN)), wanted)
    assert onednn.count == count == 2
    assert all(isinstance(one, PrepackedLinear) for one in packed)
    assert all(type(one) is nn.Linear for one in unprepack(packed))


def test_the_switch_is_documented() -> None:
    assert "HEADWAY_LINEAR_KERNEL" in (linear_kernel.__doc__ or "")
    assert os.environ.get("HEADWAY_LINEAR_KERNEL") is None


@pytest.mark.parametrize("turned", [(False, False), (True, True), (False, True)])
def test_a_product_of_matrices_that_may_be_transposed(turned: tuple[bool, bool], onednn: Calls) -> None:
    a, b = (
        torch.randn(*(shape[::-1] if side else shape)) for shape, side in zip(((9, 6), (4, 6)), turned, strict=True)
    )
    a, b = (x.t() if side else x for x, side in zip((a, b), turned, strict=True))
    with linear_kernel("onednn"):
        found = products.product(a, b)
        assert onednn.count == 1
        assert products.product(a.double(), b.double()).dtype == torch.float64
        wide = torch.randn(4, 12)[:, :6]  # rows with gaps, for which oneDNN takes a thousand times as long
        torch.testing.assert_close(products.product(a, wide), a @ wide.t())
    with linear_kernel("torch"):
        torch.testing.assert_close(found, products.product(a, b))
    assert onednn.count == 1


@pytest.mark.parametrize("threads", [1, 2])
def test_a_product_is_chosen_alike_for_any_number_of_threads(
    threads: int, onednn: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the bits of attention would depend on it."""
    a, b = torch.randn(8, 6), torch.randn(4, 6)
    just_enough = Least(8 * 6 * 4, NEVER, NEVER, rows=1, width=1)
    monkeypatch.setattr(products, "least_of", lambda chosen: just_enough)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        products.product(a, b)
    finally:
        torch.set_num_threads(before)
    assert onednn.count == 1
