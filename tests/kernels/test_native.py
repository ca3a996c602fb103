"""The runner of native kernels, on one of sixty lines that has nothing but a forward and a backward pass."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import headway as hw
from headway import masks as M
from headway.kernels import KERNELS, Call, Problem, _native
from headway.kernels._native import NativeKernel
from headway.kernels._results import ForwardResults, Gradients
from headway.testing import kernels as checks


class Dense(NativeKernel[Call]):
    """Attention with a mask and without terms, all scores at once; it reads the memory of its tensors, as C++ would."""

    name = "dense"

    def why_not(self, problem: Problem) -> list[str]:
        reasons = [f"it has no {type(term).__name__}" for term in problem.terms]
        reasons += ["it has no dropout"] if problem.dropout else []
        return reasons + (["it computes in float32"] if problem.dtype == torch.float64 else [])

    def scores(self, call: Call) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """q, k, v where anybody sees them, the masked scores, and who sees whom."""
        group = call.q.shape[1] // call.k.shape[1]
        q, k, v = call.q, *(x.repeat_interleave(group, 1) for x in (call.k, call.v))
        allowed = torch.ones(1, 1, q.shape[2], k.shape[2], dtype=torch.bool)
        if call.mask is not None:
            allowed = call.mask.allowed(call.q_coordinates, call.k_coordinates)
        q = q.masked_fill(~allowed.any(-1)[..., None], 0).float()
        k, v = (x.masked_fill(~allowed.any(-2)[..., None], 0).float() for x in (k, v))
        return q, k, v, (call.scale * q @ k.mT).masked_fill(~allowed, -torch.inf), allowed

    def forward(self, call: Call, keep: bool) -> ForwardResults:
        assert all(type(x) in (Tensor, torch.nn.Parameter) for x in (call.q, call.k, call.v))
        with torch.no_grad():
            _, _, v, score, _ = self.scores(call)
            row_max = score.amax(-1) if score.shape[-1] else score.new_full(score.shape[:-1], -torch.inf)
            share = (score - row_max.masked_fill(row_max == -torch.inf, 0)[..., None]).exp()
            row_sum = share.sum(-1)
            out = share @ v / row_sum.masked_fill(row_sum == 0, 1)[..., None]
        return ForwardResults(out.to(call.q.dtype), row_max, row_sum)

    def backward(
        self, call: Call, results: ForwardResults, d_out: Tensor, d_lse: Tensor | None, partial_keys: bool = False
    ) -> Gradients:
        with torch.no_grad():
            q, k, v, score, _ = self.scores(call)
            seeing = results.row_sum > 0
            weights = torch.where(seeing[..., None], (score - results.row_max[..., None]).exp(), 0)
            weights = weights / torch.where(seeing, results.row_sum, 1)[..., None]
            delta = (d_out.float() * results.out.float()).sum(-1) - (0 if d_lse is None else d_lse)
            d_score = call.scale * weights * (d_out.float() @ v.mT - delta[..., None])
            group = call.q.shape[1] // call.k.shape[1]
            found = [d_score @ k, d_score.mT @ q, weights.mT @ d_out.float()]
            found[1:] = [x.unflatten(1, (-1, group)).sum(2) for x in found[1:]]
        return [(x, g) for x, g in zip((call.q, call.k, call.v), found, strict=True) if x.requires_grad]


@pytest.fixture(autouse=True)
def dense(monkeypatch: pytest.MonkeyPatch) -> Dense:
    """The kernel as a row of the table."""
    kernel = Dense()
    monkeypatch.setitem(KERNELS, "dense", kernel)
    return kernel


def qkv(*, grad: bool = True, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, heads, 7, 8, dtype=dtype, requires_grad=grad) for heads in (4, 2, 2))
    return q, k, v


@pytest.mark.parametrize("mask", checks.mask_names())
def test_it_obeys_masks(mask: str) -> None:
    assert checks.obeys_the_mask("dense", mask) == "taken"


@pytest.mark.parametrize("crossing", checks.CROSSINGS)
def test_it_keeps_the_promise(crossing: str) -> None:
    """Output, log-sum-exp and gradients where it takes the call; a reason where it does not."""
    found = checks.keeps_the_promise("dense", "none", crossing)
    assert found == ("taken" if crossing in ("alone", "log-sum-exp") else found)
    assert (found == "taken") == ("sink" not in crossing and "cap" not in crossing)


def test_explain_knows_it() -> None:
    assert hw.explain(*qkv(), kernel="dense").kernel == "dense"
    assert hw.explain(*qkv(), soft_cap=2.0).reasons["dense"] == ["it has no SoftCap"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_compiled_it_is_one_operator_with_the_same_numbers(dtype: torch.dtype) -> None:
    def loss(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out, lse = hw.attention_with_lse(q, k, v, mask=M.Causal(), kernel="dense")
        return (out.float().square().sum(-1) + lse).sum()

    results = []
    for function in (loss, torch.compile(loss, backend="aot_eager", fullgraph=True)):
        inputs = qkv(dtype=dtype)
        found = function(*inputs)
        results.append((found, *torch.autograd.grad(found, inputs)))
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b)


def test_operators_do_what_the_compiler_is_told() -> None:
    from headway.call import make_call
    from headway.kernels import _ops
    from headway.kernels._problem import without_tables

    tensors: list[Tensor] = []
    call = make_call(*qkv(grad=False), mask=M.Causal())
    text = _ops.write(_ops.flatten(without_tables(call), tensors))
    tests = ("test_schema", "test_faketensor")
    torch.library.opcheck(torch.ops.headway.dense_forward.default, (tensors, text), test_utils=tests)
    results = torch.ops.headway.dense_forward(tensors, text)
    upstream = torch.randn_like(results[0]), torch.randn_like(results[1])
    arguments = ([*tensors, *results], text, [0, 1, 2], *upstream)
    torch.library.opcheck(torch.ops.headway.dense_backward.default, arguments, test_utils=tests)


def test_what_it_cannot_be_asked_is_refused() -> None:
    q, k, v = qkv()
    (first,) = torch.autograd.grad(hw.attention(q, k, v, kernel="dense").square().sum(), q, create_graph=True)
    with pytest.raises(hw.HeadwayError, match="kernel 'dense' supports first derivatives only"):
        first.sum().backward()
    out = hw.attention(q, k, v, kernel="dense")
    with pytest.raises(hw.HeadwayError, match="kernel 'dense' takes one gradient at a time"):
        torch.autograd.grad(out, q, torch.randn(3, *out.shape), is_grads_batched=True)


def test_torch_func_maps_it() -> None:
    (_, k, v), x = qkv(grad=False), torch.randn(3, 2, 4, 7, 8)

    def attend(x: Tensor) -> Tensor:
        return hw.attention(x, k, v, kernel="dense")

    for function in (attend, torch.func.grad(lambda x: attend(x).square().sum())):
        torch.testing.assert_close(torch.vmap(function)(x), torch.stack(list(map(function, x))))


def test_torch_func_differentiates_it() -> None:
    q, k, v = qkv(grad=False)

    def loss(kernel: str, x: Tensor) -> Tensor:
        return hw.attention(x, k, v, mask=M.Causal(), kernel=kernel).square().sum()

    found, expected = (torch.func.grad(loss, argnums=1)(kernel, q) for kernel in ("dense", "reference"))
    torch.testing.assert_close(found, expected)


def test_no_graph_is_made_where_nothing_wants_a_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> None:
        raise AssertionError("an autograd.Function was applied")

    monkeypatch.setattr(_native, "apply_in_eager", fail)
    hw.attention(*qkv(grad=False), kernel="dense")
    with torch.no_grad():
        hw.attention(*qkv(), kernel="dense")
    with pytest.raises(AssertionError, match="was applied"):
        hw.attention(*qkv(), kernel="dense")


def test_statistics_are_those_of_every_native_kernel() -> None:
    """row_max and row_sum with their natural logarithm; −∞ and 0 for a query that sees nothing."""
    from headway.call import make_call

    q, k, v = qkv(grad=False)
    hidden = torch.ones(7, 7, dtype=torch.bool)
    hidden[3] = False
    call = make_call(q, k, v, mask=hidden)
    scores = hw.attention_steps(q, k, v, mask=hidden).masked
    for name in ("dense", "reference", "cpu"):
        kernel = KERNELS[name]
        assert isinstance(kernel, NativeKernel)
        if kernel.why_not(Problem.of(call)):
            continue
        found = kernel.forward(kernel.lower(call), keep=True)
        torch.testing.assert_close(found.row_max, scores.amax(-1))
        expected = (scores - scores.amax(-1, keepdim=True)).exp().sum(-1).nan_to_num(nan=0)
        torch.testing.assert_close(found.row_sum, expected)
        torch.testing.assert_close(found.log_sum_exp, scores.logsumexp(-1))
        assert (found.out[:, :, 3] == 0).all()


def test_a_kernel_takes_no_name_of_another() -> None:
    """Autograd finds kernels by name: the other one's calls would be computed by this one."""

    class Other(Dense):
        pass

    with pytest.raises(
        hw.HeadwayError,
        match=r"belongs to kernel Dense already: give the class another name",
    ):
        Other()
    Dense()  # defined or made again
