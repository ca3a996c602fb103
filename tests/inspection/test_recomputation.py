"""Checkpoints of activations under ``capture`` and ``ablate``: a backward pass computes again what ran at first."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from itertools import product
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils import checkpoint as of_torch
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts
from torch.utils.flop_counter import FlopCounterMode

import headway as hw
from headway.attention import observers
from headway.inspection import _ablate, _capture
from headway.inspection._sources import SOURCES
from headway.integrations import transformers as integration
from headway.integrations.torch import swap_attention

X = torch.linspace(-2, 2, 2 * 6 * 16, dtype=torch.float64).view(2, 6, 16).sin()
IDS = torch.tensor([[3, 5, 7, 5, 9, 11], [2, 4, 6, 8, 10, 12]])
PADDING = torch.tensor([[False] * 4 + [True] * 2, [False] * 6])
REENTRANT = {None: "no checkpoint", False: "not reentrant", True: "reentrant"}


# ---------------------------------------------------------------- models of each source


class Own(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, 4, 4)).permute(2, 0, 3, 1, 4)
        heads = F.scaled_dot_product_attention(q, k, v, dropout_p=0.1 if self.training else 0)
        out: Tensor = self.out(heads.transpose(1, 2).flatten(2))
        return out


class Torch(nn.Module):
    def __init__(self, swapped: bool) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 4, dropout=0.1, batch_first=True)
        if swapped:
            swap_attention(self.attention)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.attention(x, x, x, key_padding_mask=PADDING, need_weights=False)[0]
        return out


class Ours(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = hw.nn.MultiHeadAttention(16, 4, dropout=0.1, encoding=hw.encoding("rope", head_dim=4))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.attention(x)
        return out


class Stack(nn.Module):
    """Two layers, each of which a backward pass computes again if ``reentrant`` says how."""

    def __init__(self, build: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(build() for _ in range(2))
        self.reentrant: bool | None = None

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            again = layer if self.reentrant is None else partial(checkpoint, layer, use_reentrant=self.reentrant)
            x = x + again(x)
        return x


class GPT2(nn.Module):
    """transformers' GPT-2, with the checkpoints of its own."""

    def __init__(self, implementation: str) -> None:
        super().__init__()
        transformers = pytest.importorskip("transformers")
        integration.register()
        config = transformers.GPT2Config(
            n_embd=16, n_head=4, n_layer=2, vocab_size=40, n_positions=8, bos_token_id=1, eos_token_id=2
        )
        self.model = transformers.GPT2Model(config)
        self.model.set_attn_implementation(implementation)
        self.reentrant: bool | None = None

    def forward(self, x: Tensor) -> Tensor:
        self.model.activation_checkpointing_disable()
        if self.reentrant is not None:
            self.model.activation_checkpointing_enable({"use_reentrant": self.reentrant})
        given = {"inputs_embeds": x, "attention_mask": ~PADDING, "use_cache": False}
        out: Tensor = self.model(**given).last_hidden_state
        return out[~PADDING]


MODELS: dict[tuple[str, str], Callable[[], Any]] = {
    ("headway", "ours"): lambda: Stack(Ours),
    ("headway", "swapped"): lambda: Stack(partial(Torch, True)),
    ("headway", "transformers"): lambda: GPT2("headway"),
    ("transformers", "sdpa"): lambda: GPT2("sdpa"),
    ("transformers", "eager"): lambda: GPT2("eager"),
    ("multi_head_attention_forward", "torch"): lambda: Stack(partial(Torch, False)),
    ("scaled_dot_product_attention", "own"): lambda: Stack(Own),
}
"""By the source that finds their attention, and a name."""

ABLATED = {name: partial(hw.ablate, heads={(0, 1): name, (1, 0): name, (1, 3): "zero"}) for name in ("zero", "mean")}
KEPT = {keep: partial(hw.capture, keep=keep) for keep in _capture.KEEP}
BLOCKS: dict[str, Callable[[nn.Module], AbstractContextManager[Any]]] = {**ABLATED, **KEPT}


def test_every_source_has_a_model() -> None:
    assert {source for source, _ in MODELS} == set(SOURCES)


def made(name: tuple[str, str]) -> Any:
    torch.manual_seed(1)
    return MODELS[name]().double().train()


def gradients(
    model: nn.Module,
    block: Callable[[nn.Module], AbstractContextManager[Any]] = nullcontext,  # type: ignore[assignment]
    call: Callable[[Any], Tensor] = lambda model: model(X.clone().requires_grad_()),
    *,
    after: bool = False,
    backward: Callable[[Tensor], None] = Tensor.backward,
) -> tuple[list[Tensor], Any]:
    """The output, the gradients of all parameters, and the next random number, of the same draws each time."""
    model.zero_grad()
    torch.manual_seed(2)
    with block(model) as seen:
        out = call(model)
        if not after:
            backward(out.pow(3).sum())
    if after:
        backward(out.pow(3).sum())
    grads = [torch.zeros(()) if part.grad is None else part.grad.clone() for part in model.parameters()]
    return [out.detach(), *grads, torch.rand(1)], seen


def assert_same(found: list[Tensor], expected: list[Tensor], said: str = "") -> None:
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-11, rtol=1e-10, msg=lambda text: f"{said}: {text}")


OF_BLOCKS = ("headway.inspection.", "headway._torch")
"""The modules of what a block leaves in a model and in torch until its end."""


def untouched(model: nn.Module) -> bool:
    """Whether nothing is left of a block in a model, in torch and in headway; swapped layers have their own hook."""
    left = [
        hook
        for part in model.modules()
        for hooks in (part._forward_hooks, part._forward_pre_hooks)
        for hook in hooks.values()
    ]
    left += [of_torch.CheckpointFunction.forward, of_torch._CheckpointFrame.__init__]
    modes = torch._C._len_torch_function_stack() + torch._C._len_torch_dispatch_stack()
    return not modes and not observers() and not any(one.__module__.startswith(OF_BLOCKS) for one in left)


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("name", MODELS, ids="-".join)
def test_outputs_and_gradients_are_those_without_checkpoints(name: tuple[str, str], block: str) -> None:
    model = made(name)
    expected, plain = gradients(model, BLOCKS[block])
    if block in KEPT:
        assert_same(expected, gradients(model)[0], "without a block")
        assert {record.source for record in plain.records} == {name[0]}
    for reentrant, after in product((False, True), repeat=2):
        model.reentrant = reentrant
        found, seen = gradients(model, BLOCKS[block], after=after)
        assert_same(found, expected, f"{REENTRANT[reentrant]}, {'after' if after else 'in'} the block")
        if block in KEPT:
            assert [record.layer for record in seen.records] == [record.layer for record in plain.records]
        if block == "gradients" and not after:
            ours, theirs = (one.scores("importance") for one in (seen, plain))
            assert_same([ours[layer] for layer in ours], [theirs[layer] for layer in theirs], "importance")
    assert untouched(model)


# ---------------------------------------------------------------- other ways to checkpoint


def nested(model: Any, outer: bool, inner: bool) -> Tensor:
    def layers(x: Tensor) -> Tensor:
        for layer in model.layers:
            x = x + checkpoint(layer, x, use_reentrant=inner)
        return x

    out: Tensor = checkpoint(layers, X.clone().requires_grad_(), use_reentrant=outer)
    return out


def together(model: Any, **options: Any) -> Tensor:
    """Both layers in one checkpoint."""
    out: Tensor = checkpoint(model, X.clone().requires_grad_(), use_reentrant=False, **options)
    return out


def some(_: Any, operator: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    kept = (torch.ops.aten.mm.default, torch.ops.aten.addmm.default, torch.ops.aten.bmm.default)
    return CheckpointPolicy.MUST_SAVE if operator in kept else CheckpointPolicy.PREFER_RECOMPUTE


def everything(*args: Any, **kwargs: Any) -> CheckpointPolicy:
    return CheckpointPolicy.PREFER_SAVE


WAYS: dict[str, Callable[[Any], Tensor]] = {
    **{f"nested {both}": partial(nested, outer=both[0], inner=both[1]) for both in product((False, True), repeat=2)},
    "whole": partial(together, early_stop=False),
    "one": together,
    **{
        policy.__name__: partial(together, context_fn=partial(create_selective_checkpoint_contexts, policy, True))
        for policy in (some, everything)
    },
}


@contextmanager
def nesting(model: nn.Module) -> Iterator[Any]:
    with hw.ablate(model, {(0, 1): "zero"}), hw.capture(model, "gradients") as seen, hw.ablate(model, {(1, 2): "mean"}):
        yield seen


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")  # of the inner one's first pass
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("source", ["headway", "multi_head_attention_forward", "scaled_dot_product_attention"])
def test_ways_to_checkpoint(source: str, way: str) -> None:
    model = made(next(name for name in MODELS if name[0] == source)).eval()
    for block in (nesting, ABLATED["mean"], KEPT["statistics"], KEPT["qkv"]):
        expected, _ = gradients(model, block)
        for after in (False, True):
            assert_same(gradients(model, block, WAYS[way], after=after)[0], expected)
    assert untouched(model)


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("name", MODELS, ids="-".join)
def test_a_block_within_the_checkpointed_function(name: tuple[str, str], reentrant: bool) -> None:
    model = made(name)
    for block in (ABLATED["zero"], KEPT["gradients"]):
        expected, _ = gradients(model, block)

        def inner(x: Tensor, block: Any = block) -> Tensor:
            with block(model):
                out: Tensor = model(x)
            return out

        call = partial(checkpoint, inner, X.clone().requires_grad_(), use_reentrant=reentrant)
        assert_same(gradients(model, call=lambda _, call=call: call())[0], expected)  # type: ignore[misc]
    assert untouched(model)


def in_a_thread(loss: Tensor) -> None:
    errors: list[Exception] = []

    def work() -> None:
        try:
            loss.backward()
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert not errors, errors


def twice(loss: Tensor) -> None:
    loss.backward(retain_graph=True)
    loss.backward()


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("name", [name for name in MODELS if name[0] != "transformers"], ids="-".join)
def test_backward_passes_of_other_threads_and_several(name: tuple[str, str], reentrant: bool) -> None:
    """A GPU's backward pass runs in a thread of autograd's own."""
    model = made(name)
    expected, _ = gradients(model, ABLATED["zero"])
    doubled, plain = gradients(model, KEPT["gradients"], backward=twice)
    model.reentrant = reentrant
    assert_same(gradients(model, ABLATED["zero"], backward=in_a_thread)[0], expected)
    assert_same(gradients(model, ABLATED["zero"], backward=in_a_thread, after=True)[0], expected)
    found, seen = gradients(model, KEPT["gradients"], backward=twice)
    assert_same(found, doubled)
    assert_same([one._products for one in seen.records], [one._products for one in plain.records])
    assert untouched(model)


class Shared(nn.Module):
    """One layer, three times."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer
        self.reentrant: bool | None = None

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(3):
            again = (
                self.layer if self.reentrant is None else partial(checkpoint, self.layer, use_reentrant=self.reentrant)
            )
            x = x + again(x)
        return x


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_shared_layer_is_changed_in_the_turns_in_which_it_was(reentrant: bool) -> None:
    model = Shared(Own()).double()

    def two_calls(model: nn.Module) -> Tensor:
        out: Tensor = model(X.clone().requires_grad_()) + 2 * model((X / 2).requires_grad_())
        return out

    for layer in ("layer#2", "layer"):
        model.reentrant = None
        expected, _ = gradients(model, partial(hw.ablate, heads={(layer, 1): "zero"}), two_calls)
        model.reentrant = reentrant
        assert_same(gradients(model, partial(hw.ablate, heads={(layer, 1): "zero"}), two_calls)[0], expected)
    model.reentrant = None
    _, plain = gradients(model, KEPT["gradients"], two_calls)
    model.reentrant = reentrant
    _, seen = gradients(model, KEPT["gradients"], two_calls)
    assert len({float(one._products.sum()) for one in plain.records}) == 6
    assert_same([one._products for one in seen.records], [one._products for one in plain.records])


class Direct(nn.Module):
    """A checkpoint around only the attention function, in which no module runs."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)
        self.reentrant: bool | None = None

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, 4, 4)).permute(2, 0, 3, 1, 4)
        attend: Callable[..., Tensor] = F.scaled_dot_product_attention
        heads = attend(q, k, v) if self.reentrant is None else checkpoint(attend, q, k, v, use_reentrant=self.reentrant)
        out: Tensor = self.out(heads.transpose(1, 2).flatten(2))
        return out


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_checkpoint_of_attention_alone(reentrant: bool) -> None:
    model = Direct().double()
    for block in (partial(hw.ablate, heads={("", 1): "zero"}), KEPT["gradients"]):
        model.reentrant = None
        expected, _ = gradients(model, block)
        model.reentrant = reentrant
        for after in (False, True):
            assert_same(gradients(model, block, after=after)[0], expected)


@pytest.mark.parametrize("reentrant", REENTRANT)
def test_changes_are_held_by_the_checkpoints_that_can_read_them(reentrant: bool | None) -> None:
    model = made(("multi_head_attention_forward", "torch"))
    model.reentrant = reentrant

    def held() -> int:
        gc.collect()
        return sum(isinstance(one, partial) and one.func is _ablate._replaced for one in gc.get_objects())

    before = held()
    with ABLATED["mean"](model):
        for _ in range(3):
            out = model(X.clone().requires_grad_())
        assert held() - before == (0 if reentrant is None else 2)
        out.sum().backward()
        del out
        assert held() == before


@pytest.mark.parametrize("name", MODELS, ids="-".join)
def test_what_looks_leaves_no_trace_in_modes(name: tuple[str, str]) -> None:
    model, counts = made(name).eval(), []
    for block in (
        nullcontext,
        *(partial(hw.capture, keep=keep) for keep in ("statistics", "qk", "qkv", "weights")),
    ):
        with FlopCounterMode(display=False) as counter, block(model):
            model(X)
        counts.append(counter.get_total_flops())
    assert len(set(counts)) == 1


# ---------------------------------------------------------------- what belongs to no block, and what is refused


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("name", MODELS, ids="-".join)
def test_a_backward_pass_of_what_ran_before_the_block(name: tuple[str, str], reentrant: bool) -> None:
    model = made(name)
    expected, _ = gradients(model)
    model.reentrant = reentrant
    for keep in ("statistics", "qkv", "gradients"):
        model.zero_grad()
        torch.manual_seed(2)
        loss = model(X.clone().requires_grad_()).pow(3).sum()
        with hw.capture(model, keep) as seen:
            loss.backward()
        assert len(seen) == 0
        assert_same([part.grad for part in model.parameters() if part.grad is not None], [
            one for one, part in zip(expected[1:-1], model.parameters(), strict=True) if part.grad is not None
        ])  # fmt: skip
    loss = model(X.clone().requires_grad_()).pow(3).sum()
    with (
        pytest.raises(
            hw.HeadwayError, match=r"for a forward pass that is not known to be of the block: call backward\(\)"
        ),
        hw.ablate(model, {(1, 0): "zero"}),
    ):
        loss.backward()
    assert untouched(model)


class Recomputing(torch.autograd.Function):
    """A checkpoint that is not torch's."""

    @staticmethod
    def forward(ctx: Any, function: Callable[[Tensor], Tensor], x: Tensor, *parameters: Tensor) -> Tensor:
        ctx.function = function
        ctx.save_for_backward(x)
        return function(x)

    @staticmethod
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        x = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad():
            out = ctx.function(x)
        torch.autograd.backward(out, d_out)
        return None, x.grad, *[None] * (len(ctx.needs_input_grad) - 2)


@pytest.mark.parametrize("name", [name for name in MODELS if name[1] in ("ours", "torch", "own")], ids="-".join)
def test_another_recomputation_is_not_taken_for_torchs(name: tuple[str, str]) -> None:
    model = made(name).eval()
    expected, _ = gradients(model)

    def call(model: Any) -> Tensor:
        out: Tensor = Recomputing.apply(model, X.clone().requires_grad_())
        return out

    found, seen = gradients(model, KEPT["qkv"], call)
    assert_same(found, expected)
    assert len(seen) == 2
    for after in (False, True):
        with pytest.raises(hw.HeadwayError, match=r"runs in the forward of Recomputing, an autograd\.Function, whose"):
            gradients(model, ABLATED["zero"], call, after=after)
    with torch.no_grad(), hw.ablate(model, {(0, 1): "zero"}):
        assert torch.equal(Recomputing.apply(model, X, *model.parameters()), model(X))
    assert untouched(model)


def test_another_recomputation_in_a_reentrant_checkpoint_is_refused() -> None:
    """Its first pass has gradients off, and its recomputation has not."""
    model = made(("scaled_dot_product_attention", "own"))

    def call(model: Any) -> Tensor:
        inner = partial(Recomputing.apply, model)
        out: Tensor = checkpoint(inner, X.clone().requires_grad_(), use_reentrant=True)
        return out

    with pytest.raises(hw.HeadwayError, match=r"runs in the forward of Recomputing"):
        gradients(model, ABLATED["zero"], call, after=True)


def test_a_function_that_calls_other_layers_the_second_time_is_refused() -> None:
    model, calls = Stack(Own).double(), []

    def call(model: Any) -> Tensor:
        def either(x: Tensor) -> Tensor:
            calls.append(1)
            out: Tensor = model.layers[len(calls) > 1](x)
            return out

        out: Tensor = checkpoint(either, X.clone().requires_grad_(), use_reentrant=True)
        return out

    with pytest.raises(
        hw.HeadwayError, match=r"of 'layers\.1': torch\.utils\.checkpoint calls it where it called another"
    ):
        gradients(model, partial(hw.ablate, heads={("layers.0", 1): "zero"}), call)
    assert untouched(model)
