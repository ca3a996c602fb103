"""What torch does around attention: compile, export, functional gradients, autocast, checkpoints, no data at all."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.utils import counters
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.checkpoint import checkpoint

import headway as hw
from headway import masks as M
from headway import terms as T
from headway.kernels import KERNELS
from headway.kernels.cpu import _library
from headway.kernels.triton import _installed
from headway.testing.kernels import widest

HEADS, WIDTH = 4, 8


def inputs_of(n: int, m: int | None = None) -> list[Tensor]:
    m = n if m is None else m
    return [torch.randn(2, h, t, WIDTH, requires_grad=True) for h, t in ((HEADS, n), (2, m), (2, m))]


def leaf(*shape: int) -> Tensor:
    return torch.randn(shape, requires_grad=True)


BIAS, SINK, WEIGHT = leaf(HEADS, 9), leaf(HEADS), leaf(HEADS, WIDTH, 6)
CALLS: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"mask": M.Causal()},
    "masks": {"mask": M.Causal() & (M.Window(5) | M.KeepFirst(2)) & M.Padding(torch.tensor([2, 1]))},
    "fixed bias": {"terms": (T.DistanceBias(T.Rows(BIAS.detach(), T.Clip(-4, 4))),), "mask": M.Causal()},
    "learned bias, sink and cap": {
        "terms": (T.DistanceBias(T.Rows(BIAS, T.Clip(-4, 4))),),
        "sink": SINK,
        "soft_cap": 5.0,
        "mask": M.Causal(),
    },
    "relative keys": {"terms": (T.RelativeKeys(T.Sinusoids(WEIGHT, torch.tensor([1.0, 0.3, 0.1]))),)},
    "a function": {"terms": (T.DenseBias(lambda rows, t: t[:, :, None, None] * rows[:, None], (leaf(1, HEADS),)),)},
}
LEAVES: dict[str, list[Tensor]] = {
    "learned bias, sink and cap": [BIAS, SINK],
    "relative keys": [WEIGHT],
    "a function": [CALLS["a function"]["terms"][0].tensors[0]],
}
TAKEN = [
    (kernel, name)
    for name, arguments in CALLS.items()
    for kernel in KERNELS
    if not hw.explain(*inputs_of(5), **arguments).reasons[kernel]
]


def test_every_kernel_and_every_call_has_its_turn() -> None:
    elsewhere = {"flex"} | ({"cpu"} if _library.why_not() else set())
    if _installed.reason_against("cpu"):
        elsewhere.add("triton")
    assert {kernel for kernel, _ in TAKEN} | elsewhere == set(KERNELS)
    assert {name for _, name in TAKEN} == set(CALLS)


def gradients(function: Callable[..., Tensor], inputs: list[Tensor], name: str) -> list[Tensor]:
    out = function(*inputs)
    wanted = [*inputs, *LEAVES.get(name, [])]
    return [out, *torch.autograd.grad((out * torch.linspace(-1, 2, out.numel()).view_as(out)).sum(), wanted)]


def compiled_and_eager(kernel: str, name: str, **options: Any) -> tuple[Callable[..., Tensor], Callable[..., Tensor]]:
    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return hw.attention(q, k, v, kernel=kernel, **CALLS[name])

    return torch.compile(run, fullgraph=True, **options), run


@pytest.mark.one_in(17)
@pytest.mark.parametrize(("kernel", "name"), TAKEN)
def test_one_graph_with_the_numbers_of_eager(kernel: str, name: str) -> None:
    """One for the first lengths, and one for any other numbers of queries and of keys."""
    compiled, eager = compiled_and_eager(kernel, name, backend="aot_eager")
    counters.clear()
    for n, m in ((5, 5), (3, 7), (9, 11), (5, 30), (30, 31), (2, 64)):
        inputs = inputs_of(n, m)
        for found, expected in zip(gradients(compiled, inputs, name), gradients(eager, inputs, name), strict=True):
            # the gradient of a bias by query is 0, but for the rounding of what cancels
            bound = {"atol": 1e-4, "rtol": 0.0} if name == "a function" and found.ndim == 2 else {}
            torch.testing.assert_close(found, expected, **bound)
    assert counters["stats"]["unique_graphs"] <= 2


@pytest.mark.skipif(bool(_library.why_not()), reason="the cpu kernel cannot run")
def test_lengths_that_are_symbols_give_the_layout_that_the_kernel_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inductor checks it, and under ``dynamic=True`` it knows no length. No kernel is traced for it, which is slow."""
    monkeypatch.setattr(type(KERNELS["reference"]), "forward", None)
    found: list[tuple[Any, ...]] = []

    def seen(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> torch.fx.GraphModule:
        found.extend(n.meta["val"][0].stride() for n in graph.graph.nodes if "cpu_forward" in str(n.target))
        return graph

    def run(x: Tensor) -> Tensor:
        q = x.unflatten(-1, (HEADS, WIDTH)).transpose(1, 2)
        return hw.attention(q, q, q, mask=M.Causal(), kernel="cpu").transpose(1, 2).flatten(2)

    with torch.no_grad():
        torch.compile(run, dynamic=True, backend=aot_autograd(fw_compiler=seen))(torch.randn(1, 6, HEADS * WIDTH))
    assert [(int(heads), int(tokens)) for _, heads, tokens, _ in found] == [(WIDTH, HEADS * WIDTH)]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("name", ["causal", "masks"])
def test_inputs_of_any_layout_compile(kernel: str, name: str) -> None:
    """The layout of a module: tokens before heads, and one tensor for query, key and value."""

    def run(x: Tensor) -> Tensor:
        q, k, v = x.unflatten(-1, (3, HEADS, WIDTH)).permute(2, 0, 3, 1, 4)
        return hw.attention(q, k, v, kernel=kernel, **CALLS[name]).transpose(1, 2).flatten(2)

    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    x = torch.randn(2, 6, 3 * HEADS * WIDTH, requires_grad=True)
    results = [[f(x), *torch.autograd.grad(f(x).square().sum(), x)] for f in (compiled, run)]
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found, expected)


ANY_LENGTH = [("cpu", "masks"), ("sdpa", "causal"), ("reference", "plain")]
ANY_LENGTH += [("triton", name) for name in ("plain", "causal", "masks")]


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("kernel", "name"), ANY_LENGTH)
def test_two_compilations_for_64_lengths(kernel: str, name: str) -> None:
    compiled, eager = compiled_and_eager(kernel, name, backend="aot_eager")
    counters.clear()
    for n in torch.randperm(64, generator=torch.Generator().manual_seed(1)).tolist():
        inputs = inputs_of(n + 2)
        out = compiled(*inputs)
        out.sum().backward()
        if n % 16 == 0:
            torch.testing.assert_close(out, eager(*inputs))
    assert counters["stats"]["unique_graphs"] <= 2


@pytest.mark.slow
@pytest.mark.parametrize("kernel", KERNELS)
def test_all_sizes_dynamic(kernel: str) -> None:
    """Where the compiler takes every size and number for a symbol, scale and widths are settled on their values."""
    compiled, eager = compiled_and_eager(kernel, "causal", backend="aot_eager", dynamic=True)
    for n in (5, 9):
        inputs = inputs_of(n)
        for found, expected in zip(
            gradients(compiled, inputs, "causal"), gradients(eager, inputs, "causal"), strict=True
        ):
            torch.testing.assert_close(found, expected)

    class Scaled(nn.Module):
        scale = 0.3

        def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return hw.attention(q, k, v, scale=self.scale, kernel=kernel)

    inputs = inputs_of(4)
    found = torch.compile(Scaled(), fullgraph=True, backend="aot_eager", dynamic=True)(*inputs)
    torch.testing.assert_close(found, Scaled()(*inputs))


def test_dropout_compiles() -> None:
    compiled = torch.compile(lambda q, k, v: hw.attention(q, k, v, dropout=0.5), fullgraph=True, backend="aot_eager")
    q = torch.zeros(1, 2, 32, 4)
    eye = torch.eye(32).expand(1, 2, 32, 32)
    first, second = compiled(q, q, eye), compiled(q, q, eye)
    assert 0.4 < (first > 0).float().mean() < 0.6
    assert not torch.equal(first, second)
    torch.manual_seed(4)
    third = compiled(q, q, eye)
    torch.manual_seed(4)
    assert torch.equal(compiled(q, q, eye), third)


def test_log_sum_exp_compiles() -> None:
    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out, lse = hw.attention_with_lse(q, k, v, mask=M.Causal(), sink=SINK)
        return out * lse[..., None]

    inputs = inputs_of(6)
    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    for found, expected in zip(gradients(compiled, inputs, ""), gradients(run, inputs, ""), strict=True):
        torch.testing.assert_close(found, expected)


@pytest.mark.slow
@pytest.mark.parametrize("kernel", KERNELS)
def test_inductor(kernel: str) -> None:
    compiled, eager = compiled_and_eager(kernel, "masks")
    inputs = [x.transpose(1, 2).contiguous().transpose(1, 2).detach().requires_grad_() for x in inputs_of(9)]
    for found, expected in zip(gradients(compiled, inputs, "masks"), gradients(eager, inputs, "masks"), strict=True):
        torch.testing.assert_close(found, expected)


# ---------------------------------------------------------------- export


class Attention(nn.Module):
    def __init__(self, kernel: str) -> None:
        super().__init__()
        self.kernel = kernel
        self.table = nn.Parameter(torch.randn(HEADS, 9))

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        table = self.table.detach() if self.kernel == "sdpa" else self.table
        terms = (T.DistanceBias(T.Rows(table, T.Clip(-4, 4))),)
        return hw.attention(q, k, v, terms=terms, mask=M.Causal(), kernel=self.kernel)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("kernel", KERNELS)
def test_export_with_dynamic_length(kernel: str, strict: bool) -> None:
    module = Attention(kernel)
    length = torch.export.Dim("length", min=2, max=512)
    shapes = ({2: length},) * 3
    program = torch.export.export(module, tuple(inputs_of(7)), dynamic_shapes=shapes, strict=strict)
    for n in (2, 7, 33):
        inputs = inputs_of(n)
        torch.testing.assert_close(program.module()(*inputs), module(*inputs))


# ---------------------------------------------------------------- functional gradients


@pytest.mark.parametrize(("kernel", "name"), TAKEN)
def test_functional_gradient(kernel: str, name: str) -> None:
    inputs = [x.detach() for x in inputs_of(5, 7)]

    def loss(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return hw.attention(q, k, v, kernel=kernel, **CALLS[name]).square().sum()

    found = torch.func.grad(loss, argnums=(0, 1, 2))(*inputs)
    leaves = [x.clone().requires_grad_() for x in inputs]
    for a, b in zip(found, torch.autograd.grad(loss(*leaves), leaves), strict=True):
        torch.testing.assert_close(a, b)


def test_functional_second_derivative() -> None:
    q, k, v = (x.detach().double() for x in inputs_of(3))

    def loss(q: Tensor) -> Tensor:
        return hw.attention(q, k, v, kernel="reference").square().sum()

    twice = torch.func.grad(lambda x: torch.func.grad(loss)(x).square().sum())(q)
    x = q.clone().requires_grad_()
    (first,) = torch.autograd.grad(loss(x), x, create_graph=True)
    torch.testing.assert_close(twice, torch.autograd.grad(first.square().sum(), x)[0])


@pytest.mark.parametrize("width", [WIDTH, WIDTH + 4])
@pytest.mark.parametrize("kernel", ["auto", "sdpa", "cpu"])
def test_second_derivatives_name_the_kernel_that_has_them(kernel: str, width: int) -> None:
    """Small plain calls go to sdpa, whose message would be torch's own."""
    q, k, v = inputs_of(6)
    v = torch.randn(2, 2, 6, width, requires_grad=True)
    (first,) = torch.autograd.grad(hw.attention(q, k, v, kernel=kernel).square().sum(), q, create_graph=True)
    with pytest.raises(hw.HeadwayError, match=r"supports first derivatives only: .* choose kernel='reference'"):
        torch.autograd.grad(first.sum(), (q, k, v))
    loss = torch.func.grad(lambda *x: hw.attention(*x, kernel=kernel).square().sum())
    with pytest.raises(hw.HeadwayError, match=r"supports first derivatives only: .* choose kernel='reference'"):
        torch.func.grad(lambda *x: loss(*x).sum())(*(x.detach() for x in (q, k, v)))


@pytest.mark.slow
def test_third_derivatives() -> None:
    inputs = [x.detach().double().requires_grad_() for x in inputs_of(3)]
    torch.autograd.gradgradcheck(lambda *x: hw.attention(*x, kernel="reference", mask=M.Causal()), inputs)

    def second(*x: Tensor) -> tuple[Tensor, ...]:
        first = torch.autograd.grad(hw.attention(*x, kernel="reference").square().sum(), x, create_graph=True)
        return torch.autograd.grad(sum(part.square().sum() for part in first), x, create_graph=True)

    torch.autograd.gradcheck(second, [x[..., :2].detach().requires_grad_() for x in inputs])


@pytest.mark.parametrize("kernel", ["cpu", "reference"])
def test_vmap_of_anything_that_a_call_takes(kernel: str) -> None:
    """Slice by slice, also in two levels; parameters that are mapped, or shared, get the gradient of each slice."""
    q, k, v = (x.detach() for x in inputs_of(4))
    tables, lengths, seen = torch.randn(3, HEADS, 7), torch.tensor([[4, 1], [2, 3], [4, 4]]), torch.rand(3, 4, 4) < 0.7

    def attend(q: Tensor, table: Tensor, lengths: Tensor, seen: Tensor) -> Tensor:
        mask = M.Padding(lengths) & M.Boolean(seen)
        terms = (T.DistanceBias(T.Rows(table, T.Clip(-3, 3))),)
        return hw.attention(q, k, v, terms=terms, mask=mask, kernel=kernel)

    def loss(*x: Tensor) -> Tensor:
        return attend(*x).square().sum()

    stacked = torch.stack([q, 2 * q, -q], dim=2)
    for function in (attend, torch.func.grad(loss), torch.func.grad(loss, argnums=1)):
        found = torch.vmap(function, (2, 0, 0, 0))(stacked, tables, lengths, seen)
        each = [function(*x) for x in zip(stacked.unbind(2), tables, lengths, seen, strict=True)]
        torch.testing.assert_close(found, torch.stack(each))
        shared = torch.vmap(function, (2, None, None, None))(stacked, tables[0], lengths[0], seen[0])
        torch.testing.assert_close(
            shared, torch.stack([function(x, tables[0], lengths[0], seen[0]) for x in stacked.unbind(2)])
        )
        twice = torch.vmap(torch.vmap(function, (None, 0, None, None)), (2, None, None, None))
        found = twice(stacked, tables, lengths[0], seen[0])
        torch.testing.assert_close(found[1, 2], function(stacked[:, :, 1], tables[2], lengths[0], seen[0]))
    leaf = tables.clone().requires_grad_()
    torch.vmap(loss, (2, 0, 0, 0))(stacked, leaf, lengths, seen).sum().backward()
    each = torch.vmap(torch.func.grad(loss, argnums=1), (2, 0, 0, 0))(stacked, tables, lengths, seen)
    torch.testing.assert_close(leaf.grad, each)


# ---------------------------------------------------------------- autocast, checkpoints, copies


@pytest.mark.parametrize("kernel", KERNELS)
def test_autocast(kernel: str) -> None:
    """Modules in float32 hand down bfloat16 or float32, mixed; terms stay in float32."""
    layer = nn.Linear(WIDTH, WIDTH)
    q, k, v = inputs_of(6)
    bias = T.DistanceBias(T.Linear(torch.tensor([1 + 2.0**-12] * HEADS) * 64, torch.ones(HEADS)))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert layer(q).dtype == torch.bfloat16
        found = hw.attention(layer(q), k, layer(v), terms=(bias,), mask=M.Causal(), kernel=kernel)
        assert found.dtype == torch.bfloat16
        lowered = layer(q), k.bfloat16(), layer(v)
    torch.testing.assert_close(found, hw.attention(*lowered, terms=(bias,), mask=M.Causal(), kernel=kernel))
    for x, gradient in zip(
        (q, k, layer.weight), torch.autograd.grad(found.float().sum(), (q, k, layer.weight)), strict=True
    ):
        assert gradient.dtype == x.dtype
        assert gradient.abs().max() > 0


@pytest.mark.parametrize("kernel", KERNELS)
def test_terms_stay_in_float32_under_autocast(kernel: str) -> None:
    """A bias that bfloat16 cannot tell from another one still can be told apart."""
    q = torch.zeros(1, 1, 1, WIDTH)
    k, v = torch.zeros(1, 1, 2, WIDTH), torch.tensor([0.0, 1.0]).view(1, 1, 2, 1).expand(1, 1, 2, WIDTH)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        bias = T.DenseBias(torch.tensor([[256.0, 257.0]]))  # one number in bfloat16
        out = hw.attention(q, k, v, terms=(bias,), kernel=kernel)
    torch.testing.assert_close(out[0, 0, 0, 0].item(), torch.sigmoid(torch.tensor(1.0)).item(), rtol=1e-2, atol=0)


def strided(x: Tensor) -> Tensor:
    """The same numbers where the last dimension is not dense, for which torch's SDPA has no fused path."""
    return x.detach().mT.contiguous().mT.requires_grad_()


@pytest.mark.parametrize("layout", ["dense", "strided"])
@pytest.mark.parametrize(("kernel", "name"), TAKEN)
def test_gradients_asked_for_under_autocast_are_those_without(kernel: str, name: str, layout: str) -> None:
    inputs = inputs_of(6) if layout == "dense" else [strided(x) for x in inputs_of(6)]
    wanted = [*inputs, *LEAVES.get(name, [])]
    out = hw.attention(*inputs, kernel=kernel, **CALLS[name])
    upstream = torch.randn_like(out)
    expected = torch.autograd.grad(out, wanted, upstream, retain_graph=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = torch.autograd.grad(out, wanted, upstream)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


@pytest.mark.parametrize("name", [name for kernel, name in TAKEN if kernel == "reference"])
def test_second_derivatives_asked_for_under_autocast_are_those_without(name: str) -> None:
    inputs = inputs_of(6)
    wanted = [*inputs, *LEAVES.get(name, [])]
    results = []
    for casting in (False, True):
        out = hw.attention(*inputs, kernel="reference", **CALLS[name])
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=casting):
            first = torch.autograd.grad(out.square().sum(), wanted, create_graph=True)
            second = torch.autograd.grad(sum(x.square().sum() for x in first), wanted)
        results.append([*first, *second])
    torch.testing.assert_close(results[1], results[0], rtol=0, atol=0)


@pytest.mark.parametrize("kernel", ["cpu", "reference"])
def test_operators_leave_autocast(kernel: str) -> None:
    """An exported program calls them wherever it is called."""
    program = torch.export.export(Attention(kernel), tuple(x.detach() for x in inputs_of(7))).module()
    inputs = [x.detach() for x in inputs_of(7)]
    expected = program(*inputs)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(program(*inputs), expected, rtol=0, atol=0)


@pytest.mark.parametrize("kernel", [kernel for kernel in KERNELS if widest(kernel) == torch.float64])
def test_float64_is_left_alone_by_autocast(kernel: str) -> None:
    q, k, v = (x.detach().double() for x in inputs_of(4))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = hw.attention(q, k, v, kernel=kernel)
        with pytest.raises(hw.HeadwayError, match="cast them to one dtype"):
            hw.attention(q, k.float(), v)
    torch.testing.assert_close(found, hw.attention(q, k, v, kernel=kernel))


@pytest.mark.parametrize(("kernel", "name"), TAKEN)
@pytest.mark.parametrize("reentrant", [False, True])
def test_activation_checkpointing(kernel: str, name: str, reentrant: bool) -> None:
    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return hw.attention(q, k, v, kernel=kernel, **CALLS[name])

    wanted = [*(inputs := inputs_of(5)), *LEAVES.get(name, [])]
    results = []
    for function in (run, lambda *x: checkpoint(run, *x, use_reentrant=reentrant)):
        for x in wanted:
            x.grad = None
        out = function(*inputs)
        out.square().sum().backward()
        results.append([out, *(x.grad.clone() for x in wanted if x.grad is not None)])
    assert len(results[0]) == len(results[1]) == 1 + len(wanted)
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found, expected)


def test_a_module_can_be_copied_after_it_ran() -> None:
    module = Attention("reference")
    inputs = inputs_of(5)
    out = module(*inputs)
    out.sum().backward()
    torch.testing.assert_close(copy.deepcopy(module)(*inputs), out)


# ---------------------------------------------------------------- without data


def test_explain_needs_no_data() -> None:
    """On the meta device and with fake tensors: the facts of a call are enough."""
    real = hw.explain(*inputs_of(5), mask=M.Causal())
    on_meta = {
        "cpu": [*real.reasons["cpu"], "it runs on a CPU and q is on meta"],
        "triton": ["it runs on an NVIDIA GPU, and q is on meta"],
        "flex": ["it runs on a GPU, and q is on meta"],
    }
    q, k, v = (x.detach().to("meta") for x in inputs_of(5))
    assert hw.explain(q, k, v, mask=M.Causal()).reasons == {**real.reasons, **on_meta}
    big = torch.empty(1, 64, 1 << 20, 128, device="meta")
    bias = T.DistanceBias(T.Linear(torch.ones(64, device="meta"), torch.ones(64, device="meta")))
    found = hw.explain(big, big, big, terms=(bias,))
    assert found.kernel == "reference"
    assert "dense and larger than 16 MiB" in found.reasons["sdpa"][0]
    with FakeTensorMode():
        fakes = [torch.randn(2, h, 5, WIDTH, requires_grad=True) for h in (HEADS, 2, 2)]
        assert hw.explain(*fakes, mask=M.Causal()) == real


@pytest.mark.parametrize("kernel", KERNELS)
def test_shapes_without_data(kernel: str) -> None:
    arguments: dict[str, Any] = {"mask": M.Causal() & M.Window(3), "kernel": kernel}
    q, k, v = (x.detach().to("meta") for x in inputs_of(5))
    if kernel != "cpu":
        assert hw.attention(q, k, v, **arguments).shape == q.shape
    with FakeTensorMode():
        q, k, v = (torch.randn(2, h, 5, WIDTH, requires_grad=True) for h in (HEADS, 2, 2))
        out = hw.attention(q, k, v, **arguments)
        out.sum().backward()
        assert out.shape == q.shape
        assert [x.grad.shape for x in (q, k, v)] == [x.shape for x in (q, k, v)]


def test_an_exported_program_refuses_what_eager_refuses() -> None:
    """With an encoding, more queries than keys have no positions."""
    encoding = hw.encoding("rope", head_dim=8)

    class Model(torch.nn.Module):
        def forward(self, q: Tensor, k: Tensor) -> Tensor:
            return hw.attention(q, k, k, encoding=encoding, mask=hw.masks.Causal())

    lengths = ({2: torch.export.Dim("n", min=2, max=100)}, {2: torch.export.Dim("m", min=2, max=100)})
    few, many = torch.randn(1, 2, 5, 8), torch.randn(1, 2, 9, 8)
    program = torch.export.export(Model(), (few, many), dynamic_shapes=lengths).module()
    torch.testing.assert_close(program(few[:, :, :3], many), Model()(few[:, :, :3], many))
    with pytest.raises(AssertionError, match="Guard failed"):
        program(many, few)


def test_vmap_over_nothing_is_refused() -> None:
    with pytest.raises(hw.HeadwayError, match="0 slices: give at least one"):
        torch.vmap(lambda q: hw.attention(q, q, q, kernel="cpu"))(torch.zeros(0, 1, 2, 5, 8))
