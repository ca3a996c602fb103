"""Whoever looks on at a call gets its numbers for another input too, or a refusal, by every way torch has."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from functorch.compile import aot_module, nop
from torch import Tensor, nn
from torch._dispatch.python import enable_python_dispatcher
from torch._dynamo.exc import Unsupported
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.proxy import TraceError
from torch.overrides import TorchFunctionMode
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

import headway as hw
from headway import masks as M
from headway import terms as T
from headway import tracing
from headway.integrations.torch import swap_attention
from headway.testing.inputs import Layer, on_axes

HEADS, WIDTH = 4, 8
TRACED, LENGTH, OTHER = 7, 7, 9
Inputs = tuple[Tensor, ...]
Found = Iterator[tuple[Any, Any]]


# ---------------------------------------------------------------- what is looked at


class Attend(nn.Module):
    def __init__(self, kernel: str, name: str) -> None:
        super().__init__()
        sizes = {"num_heads": HEADS, "head_dim": WIDTH, "embed_dim": HEADS * WIDTH}
        self.kernel, self.encoding = kernel, None if name == "none" else hw.encoding(name, **sizes)
        for parameter in self.parameters():
            nn.init.normal_(parameter)
        self.requires_grad_(kernel != "sdpa")

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return hw.attention(q, k, v, encoding=self.encoding, mask=M.Causal(), kernel=self.kernel)


class Turn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoding = hw.encoding("rope", head_dim=WIDTH)

    def forward(self, q: Tensor) -> Tensor:
        at = self.encoding.place(hw.Coordinates.span(q.shape[2], device=q.device))
        return self.encoding.prepare_query(q, at)


def encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(HEADS * WIDTH, HEADS, 64, batch_first=True, dropout=0.0)
    return swap_attention(nn.TransformerEncoder(layer, 1, enable_nested_tensor=False), "rope").requires_grad_(False)


def projected() -> nn.Module:
    rope = hw.encoding("rope", head_dim=WIDTH)
    return hw.nn.MultiHeadAttention(HEADS * WIDTH, HEADS, encoding=rope, kernel="cpu").requires_grad_(False)


def packed() -> nn.Module:
    return hw.nn.prepack(nn.Sequential(nn.RMSNorm(16), nn.Linear(16, 16))).requires_grad_(False)


PAIRS = [(kernel, name) for kernel in ("cpu", "sdpa", "reference") for name in ("none", "t5", "rope")]
PAIRS += [("cpu", "alibi"), ("cpu", "shaw"), ("reference", "shaw"), ("auto", "none"), ("auto", "t5")]
CASES: dict[str, tuple[Callable[[], nn.Module], Callable[[int], Inputs]]] = {
    **{
        f"{kernel} {name}": (
            lambda kernel=kernel, name=name: Attend(kernel, name),
            lambda n: tuple(torch.randn(2, heads, n, WIDTH) for heads in (HEADS, 2, 2)),
        )
        for kernel, name in PAIRS
    },
    "a turn": (Turn, lambda n: (torch.randn(2, HEADS, n, WIDTH),)),
    "a prepacked norm": (packed, lambda n: (torch.randn(2, n, 16),)),
    "a swapped encoder": (encoder, lambda n: (torch.randn(2, n, HEADS * WIDTH),)),
    "a module": (projected, lambda n: (torch.randn(2, n, HEADS * WIDTH),)),
}


# ---------------------------------------------------------------- how it is looked at: (found, expected) of each


def gradients(module: Callable[..., Tensor]) -> Callable[..., Inputs]:
    def run(*inputs: Tensor) -> Inputs:
        leaves = [x.detach().requires_grad_() for x in inputs]
        out = module(*leaves)
        return out, *torch.autograd.grad(out.square().sum(), leaves)

    return run


def by_reference(module: nn.Module) -> nn.Module:
    """The same in float64, by the kernel that has every derivative."""
    other = copy.deepcopy(module)
    for part in other.modules():
        if hasattr(part, "kernel"):
            part.kernel = "reference"
    return other.double()


def jit_trace(module: nn.Module, traced: Inputs, inputs: Inputs) -> Found:
    yield torch.jit.trace(module, traced)(*inputs), module(*inputs)


def jit_trace_module(module: nn.Module, traced: Inputs, inputs: Inputs) -> Found:
    yield torch.jit.trace_module(module, {"forward": traced})(*inputs), module(*inputs)


def fx(mode: str, *, early: bool = False, backward: bool = False) -> Callable[..., Found]:
    def run(module: nn.Module, traced: Inputs, inputs: Inputs) -> Found:
        function = gradients(module) if backward else module
        options: dict[str, Any] = {"tracing_mode": mode, "pre_dispatch": early, "_allow_non_fake_inputs": True}
        with torch.set_grad_enabled(backward):
            yield make_fx(function, **options)(*traced)(*inputs), function(*inputs)

    return run


def symbolic_trace(module: nn.Module, traced: Inputs, inputs: Inputs) -> Found:
    yield torch.fx.symbolic_trace(module)(*inputs), module(*inputs)


def export(module: nn.Module, traced: Inputs, inputs: Inputs) -> Found:
    length = torch.export.Dim("length", min=3, max=64)
    shapes = tuple({x.ndim - 2: length} for x in traced)
    yield torch.export.export(module, traced, dynamic_shapes=shapes, strict=False).module()(*inputs), module(*inputs)


def compiled(module: nn.Module, traced: Inputs, inputs: Inputs) -> Found:
    function = torch.compile(module, backend="aot_eager", fullgraph=True, dynamic=True)
    gradients(function)(*traced)
    yield gradients(function)(*inputs), gradients(module)(*inputs)


def aot(module: nn.Module, traced: Inputs, inputs: Inputs) -> Found:
    function = aot_module(module, fw_compiler=nop, bw_compiler=nop)
    gradients(function)(*traced)
    yield gradients(function)(*inputs), gradients(module)(*inputs)


class Operators(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class Functions(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def under(mode: Callable[[], Any], *, backward: bool = False) -> Callable[..., Found]:
    def run(module: nn.Module, traced: Inputs, inputs: Inputs) -> Found:
        function = gradients(module) if backward else module
        with torch.set_grad_enabled(backward):
            with mode():
                found = function(*inputs)
            yield found, function(*inputs)

    return run


def backward_under_a_mode(module: nn.Module, traced: Inputs, inputs: Inputs) -> Found:
    leaves = [x.requires_grad_() for x in inputs]
    out = module(*leaves)
    with Operators():
        found = torch.autograd.grad(out.square().sum(), leaves)
    yield found, gradients(module)(*inputs)[1:]


def flops(module: nn.Module, traced: Inputs, inputs: Inputs) -> Found:
    leaves = [x.requires_grad_() for x in inputs]
    with FlopCounterMode(display=False):
        out = module(*leaves)
        out.square().sum().backward()
    yield [out, *(x.grad for x in leaves)], gradients(module)(*inputs)


class Own(Tensor):
    """A class with torch's own __torch_function__."""


def own_class(module: nn.Module, traced: Inputs, inputs: Inputs) -> Found:
    yield module(*(x.as_subclass(Own) for x in inputs)).as_subclass(Tensor), module(*inputs)


def wrapper_class(module: nn.Module, traced: Inputs, inputs: Inputs) -> Found:
    leaves = [TwoTensor(x, x.clone()).requires_grad_() for x in inputs]
    out = module(*leaves)
    expected, *grads = gradients(module)(*inputs)
    yield (out.a, out.b), (expected, expected)
    yield [x.a for x in torch.autograd.grad(out.square().sum(), leaves)], grads


def fake(module: nn.Module, traced: Inputs, inputs: Inputs) -> Found:
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        out = module(*(mode.from_tensor(x) for x in inputs))
    yield torch.tensor(out.shape), torch.tensor(module(*inputs).shape)


def func_grad(module: nn.Module, traced: Inputs, inputs: Inputs) -> Found:
    loss = torch.func.grad(lambda *x: module(*x).square().sum(), argnums=tuple(range(len(inputs))))
    yield loss(*inputs), gradients(module)(*inputs)[1:]


def func_vjp(module: nn.Module, traced: Inputs, inputs: Inputs) -> Found:
    out, pull = torch.func.vjp(module, *inputs)
    yield pull(2 * out), gradients(module)(*inputs)[1:]


def func_vmap(module: nn.Module, traced: Inputs, inputs: Inputs) -> Found:
    found = torch.func.vmap(module)(*(torch.stack([x, 2 * x]) for x in inputs))
    yield found, torch.stack([module(*inputs), module(*(2 * x for x in inputs))])


def some(module: nn.Module, inputs: Inputs) -> Callable[[Tensor], Tensor]:
    return lambda x: module(x, *inputs[1:])[0, ..., :1, :1].sum(-1)


def jacobian(function: Callable[..., Any]) -> Callable[..., Found]:
    def run(module: nn.Module, traced: Inputs, inputs: Inputs) -> Found:
        expected = torch.autograd.functional.jacobian(some(module, inputs), inputs[0])
        yield function(some(module, inputs), inputs[0]), expected

    return run


def vectorized(function: Callable[..., Tensor], x: Tensor) -> Any:
    return torch.autograd.functional.jacobian(function, x, vectorize=True)


def vectorized_forward(function: Callable[..., Tensor], x: Tensor) -> Any:
    return torch.autograd.functional.jacobian(function, x, vectorize=True, strategy="forward-mode")


def grads_batched(module: nn.Module, traced: Inputs, inputs: Inputs) -> Found:
    leaves = [x.requires_grad_() for x in inputs]
    out = module(*leaves)
    many = torch.randn(3, *out.shape)
    found = torch.autograd.grad(out, leaves, many, is_grads_batched=True, retain_graph=True)
    each = [torch.autograd.grad(out, leaves, one, retain_graph=True) for one in many]
    yield found, [torch.stack(grads) for grads in zip(*each, strict=True)]


def pushed(module: nn.Module, inputs: Inputs, tangents: Inputs) -> Tensor:
    """The derivative along the tangents as a difference, in float64."""
    exact, step = by_reference(module), 1e-6
    up, down = (
        exact(*(x.double() + sign * step * t.double() for x, t in zip(inputs, tangents, strict=True)))
        for sign in (1, -1)
    )
    return ((up - down) / (2 * step)).float()


def func_jvp(module: nn.Module, traced: Inputs, inputs: Inputs) -> Found:
    tangents = tuple(map(torch.randn_like, inputs))
    yield torch.func.jvp(module, inputs, tangents), (module(*inputs), pushed(module, inputs, tangents))


def func_linearize(module: nn.Module, traced: Inputs, inputs: Inputs) -> Found:
    tangents = tuple(map(torch.randn_like, inputs))
    out, push = torch.func.linearize(module, *inputs)
    yield (out, push(*tangents)), (module(*inputs), pushed(module, inputs, tangents))


def duals(module: nn.Module, traced: Inputs, inputs: Inputs) -> Found:
    tangents = tuple(map(torch.randn_like, inputs))
    with forward_ad.dual_level():
        out = forward_ad.unpack_dual(module(*map(forward_ad.make_dual, inputs, tangents)))
    yield tuple(out), (module(*inputs), pushed(module, inputs, tangents))


def second(module: nn.Module, traced: Inputs, inputs: Inputs) -> Found:
    results = []
    for one, dtype in ((module, torch.float32), (by_reference(module), torch.float64)):
        x, *rest = (x.detach().to(dtype) for x in inputs)
        (grad,) = torch.autograd.grad(one(x.requires_grad_(), *rest).square().sum(), x, create_graph=True)
        results.append(torch.autograd.grad(grad.square().sum(), x)[0].float())
    yield tuple(results)


def functionalize(module: nn.Module, traced: Inputs, inputs: Inputs) -> Found:
    yield torch.func.functionalize(module)(*inputs), module(*inputs)


def functionalization_below(module: nn.Module, traced: Inputs, inputs: Inputs) -> Found:
    torch._enable_functionalization(reapply_views=True)
    try:
        found = torch._from_functional_tensor(module(*map(torch._to_functional_tensor, inputs)))
    finally:
        torch._disable_functionalization()
    yield found, module(*inputs)


def checkpointed(module: nn.Module, traced: Inputs, inputs: Inputs) -> Found:
    yield gradients(lambda *x: checkpoint(module, *x, use_reentrant=False))(*inputs), gradients(module)(*inputs)


def saved_elsewhere(module: nn.Module, traced: Inputs, inputs: Inputs) -> Found:
    with torch.autograd.graph.saved_tensors_hooks(lambda x: x.detach().clone().numpy(), torch.as_tensor):
        found = gradients(module)(*inputs)
    yield found, gradients(module)(*inputs)


def inference(module: nn.Module, traced: Inputs, inputs: Inputs) -> Found:
    with torch.inference_mode():
        found = module(*inputs)
    yield found.clone(), module(*inputs)


# ---------------------------------------------------------------- the table

JIT = r"torch.jit.trace (would keep what attention decides|cannot keep prepacked weights)"
SYMBOLIC = r"torch.fx.symbolic_trace gives a Proxy without a shape: use torch.export.export"
PREPACKED = "x requires a gradient, which prepacked weights do not have"
FORWARD = "forward-mode differentiation and functionalize support only plain torch operations: use kernel='reference'"
BATCHED = "kernel 'cpu' takes one gradient at a time, .* choose kernel='reference'"
ONCE = "supports first derivatives only: to differentiate a gradient choose kernel='reference'"

OF_CPU = [*(case for case in CASES if case.startswith("cpu")), "a module"]
OF_SDPA = [case for case in CASES if case.startswith("sdpa")]
ALL = [case for case in CASES if case != "a turn"]


def refused(cases: list[str], message: str) -> dict[str, str]:
    return dict.fromkeys(cases, message)


TRAINED = {"a prepacked norm": PREPACKED}
PLAIN = refused([*OF_CPU, *OF_SDPA], FORWARD) | TRAINED
MANY = refused([*OF_CPU, "auto t5"], BATCHED) | TRAINED
WAYS: dict[str, tuple[Callable[..., Found], dict[str, Any]]] = {
    "jit.trace": (jit_trace, refused(ALL, JIT)),
    "jit.trace_module": (jit_trace_module, refused(ALL, JIT)),
    "make_fx real": (fx("real"), {}),
    "make_fx real, pre_dispatch": (fx("real", early=True), {}),
    "make_fx real, gradients": (fx("real", backward=True), TRAINED),
    "make_fx fake": (fx("fake"), {}),
    "make_fx symbolic, pre_dispatch": (fx("symbolic", early=True), {}),
    "make_fx symbolic, gradients": (fx("symbolic", backward=True), TRAINED),
    # a proxy that meets a condition is torch's own refusal; so is one in the code of torch's encoder
    "fx.symbolic_trace": (
        symbolic_trace,
        refused([*ALL, "a turn"], SYMBOLIC) | {"a prepacked norm": TraceError, "a swapped encoder": RuntimeError},
    ),
    "export": (export, {}),
    "compile": (compiled, {"a prepacked norm": Unsupported}),  # which has the message of PREPACKED in it
    "aot_module": (aot, TRAINED),
    "TorchDispatchMode": (under(Operators), {}),
    "TorchDispatchMode, gradients": (under(Operators, backward=True), TRAINED),
    "TorchFunctionMode": (under(Functions), {}),
    "TorchFunctionMode, gradients": (under(Functions, backward=True), TRAINED),
    "a mode in the backward pass": (backward_under_a_mode, TRAINED),
    "Python dispatcher": (under(enable_python_dispatcher, backward=True), TRAINED),
    "FlopCounterMode": (flops, TRAINED),
    "FakeTensorMode": (fake, {}),
    "a class of tensors": (own_class, {}),
    "a wrapper of tensors": (wrapper_class, TRAINED),
    "func.grad": (func_grad, TRAINED),
    "func.vjp": (func_vjp, TRAINED),
    "func.vmap": (func_vmap, {}),
    "func.jacrev": (jacobian(lambda function, x: torch.func.jacrev(function)(x)), TRAINED),
    "func.jacfwd": (jacobian(lambda function, x: torch.func.jacfwd(function)(x)), PLAIN),
    "func.jvp": (func_jvp, PLAIN),
    "func.linearize": (func_linearize, PLAIN),
    "func.functionalize": (functionalize, refused(OF_CPU, FORWARD)),
    "functionalization below": (functionalization_below, {}),
    "dual_level": (duals, PLAIN),
    "is_grads_batched": (grads_batched, MANY),
    "jacobian(vectorize=True)": (jacobian(vectorized), MANY),
    "jacobian(vectorize=True), forward-mode": (jacobian(vectorized_forward), PLAIN),
    "second derivative": (
        second,
        refused([*OF_CPU, *OF_SDPA, "auto none", "auto t5", "a swapped encoder"], ONCE) | TRAINED,
    ),
    "checkpoint": (checkpointed, TRAINED),
    "saved_tensors_hooks": (saved_elsewhere, TRAINED),
    "inference_mode": (inference, {}),
}
DYNAMIC = ("jit.trace", "jit.trace_module", "make_fx symbolic, pre_dispatch", "export", "compile")
"""Ways that are to hold for another length than the traced one."""
COSTLY = ("make_fx symbolic, pre_dispatch", "make_fx symbolic, gradients", "export", "compile")
"""Ways that take seconds: of the pairs of a kernel and an encoding they have SPREAD."""
SPREAD = (
    *("cpu none", "cpu t5", "cpu alibi", "cpu shaw", "sdpa t5"),
    *("reference rope", "reference shaw", "auto t5"),
)
LEFT_OUT = {f"{kernel} {name}" for kernel, name in PAIRS} - set(SPREAD)
LOOKS = [(way, case) for way in WAYS for case in CASES if way not in COSTLY or case not in LEFT_OUT]


def test_costly_ways_have_every_kernel_and_every_encoding() -> None:
    for names in zip(*PAIRS, strict=True):
        assert set(names) <= {word for case in SPREAD for word in case.split()}


@pytest.mark.one_in(19)
@pytest.mark.filterwarnings(
    "ignore:`torch.jit.trace",
    "ignore::torch.jit.TracerWarning",
    "ignore:There is a performance drop",
    "ignore:Attempted to insert a get_attr",  # torch.func.linearize
)
@pytest.mark.parametrize(("way", "case"), LOOKS)
def test_whoever_looks_on_gets_right_numbers_or_a_refusal(way: str, case: str) -> None:
    look, refusals = WAYS[way]
    make, inputs_of = CASES[case]
    module = make()
    traced, inputs = inputs_of(TRACED), inputs_of(OTHER if way in DYNAMIC else LENGTH)
    refusal = refusals.get(case)
    if isinstance(refusal, type):
        with pytest.raises(refusal):
            [*look(module, traced, inputs)]
    elif refusal is not None:
        with pytest.raises(hw.HeadwayError, match=refusal):
            [*look(module, traced, inputs)]
    else:
        for found, expected in look(module, traced, inputs):
            torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)


# ---------------------------------------------------------------- beside the table


@pytest.mark.parametrize("make", [encoder, projected, packed, Turn])
def test_a_script_is_refused(make: Callable[[], nn.Module]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(hw.HeadwayError, match=r"torch.jit.script cannot read a .*: use torch.export.export"):
            torch.jit.script(make())


class Seen(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func._schema.name)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("kernel", ["cpu"])
def test_a_mode_sees_one_operator_for_each_direction(kernel: str) -> None:
    with Seen() as seen:
        gradients(Attend(kernel, "t5"))(*CASES["cpu t5"][1](5))
    assert [name for name in seen.names if "headway" in name] == ["headway::cpu_forward", "headway::cpu_backward"]


WHERE: dict[str, Callable[[Callable[[Tensor], Tensor]], dict[str, Any]]] = {
    "a term": lambda wrap: {"terms": (T.DistanceBias(T.Rows(wrap(TABLE), T.Clip(-4, 4))),)},
    "a mask": lambda wrap: {"mask": wrap(torch.eye(5) > 0)},
    "a mask's lengths": lambda wrap: {"mask": M.Padding(wrap(torch.tensor([3])))},
    "positions": lambda wrap: {
        "encoding": hw.encoding("alibi", num_heads=2),
        "q_positions": wrap(torch.arange(5) * 2.0),
    },
}
TABLE = torch.randn(2, 9, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("kernel", ["cpu"])
@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize("where", WHERE)
def test_a_tensor_with_a_class_of_its_own_anywhere_in_a_call(where: str, trained: bool, kernel: str) -> None:
    q, k, v = (torch.randn(1, 2, 5, 8) for _ in range(3))
    q.requires_grad_(trained)
    expected = hw.attention(q, k, v, kernel=kernel, **WHERE[where](lambda x: x))
    found = hw.attention(q, k, v, kernel=kernel, **WHERE[where](lambda x: TwoTensor(x, x.clone())))
    torch.testing.assert_close(found.a, expected)


def test_nobody_looks_on_by_default() -> None:
    assert not tracing.watched()
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        assert not tracing.watched()
    with torch.inference_mode():
        assert not tracing.watched()
    with FakeTensorMode():
        assert tracing.watched()


def test_forward_mode_over_several_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headway.kernels.reference.BLOCK", 2 * HEADS * LENGTH * 3)
    test_whoever_looks_on_gets_right_numbers_or_a_refusal("func.jvp", "reference t5")
    test_whoever_looks_on_gets_right_numbers_or_a_refusal("is_grads_batched", "reference t5")


def per_encoding(name: str) -> tuple[Layer, Tensor, hw.Coordinates]:
    layer = Layer(hw.positions.ENCODINGS[name].examples()[0], torch.Generator().manual_seed(0), torch.float64).eval()
    x = torch.randn(2, 5, layer.sizes.embed_dim, dtype=torch.float64)
    return layer, x, on_axes(hw.Coordinates.span(5), layer.encoding.axes)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("name", hw.positions.ENCODINGS)
def test_every_encoding_under_vmap_and_by_sample(name: str) -> None:
    """The outputs, and the gradients of all parameters, are those of a loop over the sequences."""
    layer, x, at = per_encoding(name)
    found = torch.vmap(lambda one: layer(one[None], at)[0])(x)
    torch.testing.assert_close(found, torch.cat([layer(one[None], at) for one in x]))
    values = {name: p.detach() for name, p in layer.named_parameters()}

    def loss(values: dict[str, Tensor], one: Tensor) -> Tensor:
        out: Tensor = torch.func.functional_call(layer, values, (one[None], at))
        return out.square().sum()

    by_sample = torch.vmap(torch.func.grad(loss), in_dims=(None, 0))(values, x)
    for b, one in enumerate(x):
        layer.zero_grad()
        layer(one[None], at).square().sum().backward()
        for name, p in layer.named_parameters():
            torch.testing.assert_close(by_sample[name][b], torch.zeros_like(p) if p.grad is None else p.grad)
