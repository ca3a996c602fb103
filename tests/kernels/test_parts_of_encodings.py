"""Every encoding in parts: of the keys, whose results merge, and of the batch, the heads and the queries."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from encoded_calls import IN_ATTENTION, encoded
from torch import Tensor

import headway as hw
from headway import masks as M
from headway import terms as T
from headway.call import make_call
from headway.kernels import KERNELS, Call, Problem, attend_in_parts, cut, why_not_in_parts
from headway.testing import kernels as checks

GOLDEN = Path(__file__).parents[1] / "golden" / "what_is_cut_into_parts.json"
SEED = torch.tensor([12345])


def arguments_of(name: str, kernel: str) -> tuple[list[Tensor], dict[str, Any], list[Tensor]]:
    """q, k, v, the other arguments with a sink and dropout, and everything that may have a gradient."""
    qkv, arguments = encoded(name, dtype=torch.float64 if kernel == "reference" else torch.float32)
    heads = qkv[0].shape[1]
    sink = torch.linspace(-1, 1, heads, dtype=qkv[0].dtype).requires_grad_()
    arguments |= {"sink": sink, "dropout": 0.3, "dropout_seed": SEED}
    parameters = [] if arguments["encoding"] is None else list(arguments["encoding"].parameters())
    return qkv, arguments, [*qkv, sink, *(p for p in parameters if p.requires_grad)]


def gradients(out: Tensor, lse: Tensor, leaves: list[Tensor]) -> list[Tensor | None]:
    up = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out)
    loss = (out * up).sum() + (lse * up[..., 0]).sum()
    return list(torch.autograd.grad(loss, leaves, allow_unused=True))


@pytest.mark.parametrize("kernel", ["cpu", "reference"])
@pytest.mark.parametrize("name", IN_ATTENTION)
def test_keys_in_three_parts_are_one_call(name: str, kernel: str) -> None:
    """Output, log-sum-exp and every gradient, with dropout and a sink."""
    qkv, arguments, leaves = arguments_of(name, kernel)
    if json.loads(GOLDEN.read_text())[name] != "cut":
        arguments.pop("sink"), arguments.pop("dropout")
        call = make_call(*qkv, **arguments)
        why = why_not_in_parts(call)
        assert why is not None
        for axis in ("batch", "heads", "queries", "keys"):  # a function is given the whole of each
            with pytest.raises(hw.HeadwayError, match=f"the {axis} cannot be cut into parts"):
                cut(call, axis, 0, 1)
        pytest.skip(why)
    call = make_call(*qkv, **arguments)
    if reasons := KERNELS[kernel].why_not(Problem.of(call)):
        pytest.skip("; ".join(reasons))
    whole = hw.attention_with_lse(*qkv, kernel=kernel, **arguments)
    expected = [*whole, *gradients(*whole, leaves)]
    m = call.k.shape[2]
    call = make_call(*qkv, **arguments)  # its graph is its own
    parts = [cut(call, "keys", start, stop) for start, stop in ((0, 2), (2, 3), (3, m))]
    merged = attend_in_parts(parts, kernel)
    found = [*merged, *gradients(*merged, leaves)]
    close: dict[str, Any] = {"rtol": 1e-9, "atol": 1e-9} if kernel == "reference" else {"rtol": 2e-4, "atol": 2e-4}
    for a, b in zip(found, expected, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            torch.testing.assert_close(a, b, **close)


def test_the_golden_table_has_what_is_cut_and_why_the_rest_is_not() -> None:
    found = {}
    for name in IN_ATTENTION:
        qkv, arguments = encoded(name)
        found[name] = why_not_in_parts(make_call(*qkv, **arguments)) or "cut"
    assert found == json.loads(GOLDEN.read_text())


def part_of(x: Tensor, axis: str, start: int, stop: int) -> Tensor:
    return x.narrow(("batch", "heads", "queries").index(axis), start, stop - start)


@pytest.mark.parametrize("axis", ["batch", "heads", "queries"])
@pytest.mark.parametrize("name", IN_ATTENTION)
def test_a_part_is_that_part_of_the_whole(name: str, axis: str) -> None:
    """With dropout, by the offsets that cutting sets; functions of a user's or an encoding's are refused by name."""
    qkv, arguments, _ = arguments_of(name, "reference")
    if json.loads(GOLDEN.read_text())[name] != "cut":
        pytest.skip("its functions see the whole batch, all heads and all keys")
    call = make_call(*qkv, **arguments)._with(wants_lse=True)
    whole = KERNELS["reference"].run(call)
    start, stop = {"batch": (1, 2), "heads": (1, 3), "queries": (4, 9)}[axis]
    part = KERNELS["reference"].run(cut(call, axis, start, stop))
    for a, b in zip(part, whole, strict=True):
        assert a is not None
        assert b is not None
        torch.testing.assert_close(a, part_of(b, axis, start, stop), rtol=1e-10, atol=1e-10)


@torch.no_grad()
def test_the_rotations_of_grouped_heads_are_cut_as_the_heads_are() -> None:
    """Angles by head, where the keys have fewer heads."""
    encoding = hw.encoding("mixed-rope", num_heads=4, num_kv_heads=2, head_dim=8)
    q, k, v = (torch.randn(1, heads, 6, 8) for heads in (4, 2, 2))
    at = torch.randint(0, 9, (6, 2))[None]
    call = make_call(q, k, v, encoding=encoding, q_positions=at, k_positions=at)
    assert call.k_rotation is not None
    assert call.k_rotation.cos.shape[1] == 2
    call = call._with(v_rotation=call.k_rotation, out_rotation=call.q_rotation)
    whole, _ = KERNELS["reference"].run(call)
    for start in (0, 2):
        part, _ = KERNELS["reference"].run(cut(call, "heads", start, start + 2))
        torch.testing.assert_close(part, whole[:, start : start + 2])


# ---------------------------------------------------------------- terms and masks, one by one

CUT = [
    name
    for name in checks.term_names()
    if name not in ("dense bias, function", "product", "score map") and not checks.replaces_softmax(name)
    if not name.startswith(("householder path", "channel decay", "contextual positions", "gated path", "head network"))
]


@pytest.mark.parametrize("crossing", ["alone", "sink"])
@pytest.mark.parametrize("name", CUT)
def test_every_term_in_parts_of_the_keys(name: str, crossing: str) -> None:
    results = []
    for in_parts in (True, False):
        call, leaves = checks.build(name, crossing, "window", 0, torch.float64, torch.float64)
        if in_parts:
            out, lse = attend_in_parts([cut(call, "keys", a, b) for a, b in ((0, 4), (4, 5), (5, 11))], "reference")
        else:
            out, lse = run(call._with(wants_lse=True))
        results.append([out, lse, *gradients(out, torch.where(lse.isfinite(), lse, 0), leaves)])
    for found, expected in zip(*results, strict=True):
        assert found is not None
        assert expected is not None
        torch.testing.assert_close(found, expected)


def run(call: Call) -> tuple[Tensor, Tensor]:
    out, lse = KERNELS["reference"].run(call)
    assert lse is not None
    return out, lse


MASKS = {
    **checks.mask_examples(2, 7, 11),
    "documents": M.Documents(torch.tensor([0] * 5 + [1] * 6)),
    "documents by row": M.Documents(torch.arange(22).view(2, 11) // 4),
    "padding on both sides": M.Padding([9, 3], "left") & M.Padding([10, 11]),
}


@pytest.mark.parametrize("axis", ["batch", "heads", "queries", "keys"])
@pytest.mark.parametrize("name", MASKS)
def test_every_mask_is_cut(name: str, axis: str) -> None:
    """What a part allows is what the whole allows there."""
    call, _ = checks.build("none", "alone", "none", 0, torch.float64, torch.float64)
    mask = MASKS[name]
    call = call._with(mask=mask)
    sizes = {"batch": 2, "heads": 4, "queries": 7, "keys": 11}

    def allowed(one: Call) -> Tensor:
        shape = (one.q.shape[0], one.q.shape[1], one.q.shape[2], one.k.shape[2])
        if one.mask is None:
            return torch.ones(shape, dtype=torch.bool)
        return one.mask.allowed(one.q_coordinates, one.k_coordinates).expand(shape)

    step = 2 if axis == "heads" else 3
    for start in range(0, sizes[axis], step):
        stop = min(start + step, sizes[axis])
        expected = allowed(call).narrow(list(sizes).index(axis), start, stop - start)
        assert torch.equal(allowed(cut(call, axis, start, stop)), expected)


# ---------------------------------------------------------------- what is refused


class ByKey(T.Part):
    """A map of a user's own, with a number for each key."""

    count = 2

    def __init__(self, numbers: Tensor) -> None:
        self.numbers = numbers

    def rows(self, q: hw.Coordinates, k: hw.Coordinates) -> Tensor:
        return self.numbers[None, None, :].expand(1, q.index.shape[1], -1)


class NamedByKey(ByKey):
    axes = T.named(numbers="keys")


def test_a_part_of_a_user_names_its_dimensions() -> None:
    qkv = [torch.randn(1, 2, 6, 4) for _ in range(3)]
    numbers = torch.tensor([0, 1, 1, 0, 1, 0])
    calls = []
    for kind in (ByKey, NamedByKey):
        bias = T.DistanceBias(T.Rows(torch.tensor([[1.0, -2.0]]), kind(numbers)))  # type: ignore[arg-type]
        calls.append(make_call(*qkv, terms=(bias,)))  # type: ignore[arg-type]
    with pytest.raises(hw.HeadwayError, match="ByKey holds the tensor 'numbers' and does not say"):
        cut(calls[0], "keys", 0, 3)
    found, _ = attend_in_parts([cut(calls[1], "keys", 0, 3), cut(calls[1], "keys", 3, 6)])
    torch.testing.assert_close(found, KERNELS["reference"].run(calls[1])[0])


def test_what_cannot_be_cut_is_refused() -> None:
    qkv = [torch.randn(1, 4, 6, 4), *(torch.randn(1, 2, 6, 4) for _ in range(2))]
    call = make_call(*qkv)  # type: ignore[arg-type]
    with pytest.raises(hw.HeadwayError, match="heads 1 to 2 cut a group of 2 that share keys"):
        cut(call, "heads", 1, 2)
    with pytest.raises(hw.HeadwayError, match="axis is 'tokens': give one of 'batch', 'heads', 'queries', 'keys'"):
        cut(call, "tokens", 0, 1)
    for start, stop in ((-1, 2), (0, 7), (3, 2)):
        with pytest.raises(hw.HeadwayError, match=f"start={start}, stop={stop} is not a range of keys"):
            cut(call, "keys", start, stop)
    with pytest.raises(hw.HeadwayError, match="start=0, stop=2 is not a range of batch"):
        cut(call, "batch", 0, 2)
    with pytest.raises(hw.HeadwayError, match="parts is empty"):
        attend_in_parts([])
    with pytest.raises(hw.HeadwayError, match="kernel 'sdpa' cannot run a part"):
        attend_in_parts([call], "sdpa")
    q = qkv[0].requires_grad_()
    out, _ = attend_in_parts([cut(make_call(q, *qkv[1:]), "keys", 0, 3)])
    (first,) = torch.autograd.grad(out.square().sum(), q, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        first.sum().backward()


@pytest.mark.parametrize("kernel", ["cpu", "reference"])
def test_the_sink_counts_once_however_the_parts_were_made(kernel: str) -> None:
    """Calls made by hand each have the sink; so does a whole call that is its own one part."""
    q, k, v, sink = (x.requires_grad_() for x in (*(torch.randn(1, 2, 6, 4) for _ in range(3)), torch.randn(2)))
    expected = hw.attention_with_lse(q, k, v, sink=sink, kernel=kernel)
    expected = *expected, *gradients(*expected, [q, k, v, sink])
    for edges in ((0, 6), (0, 2, 6)):
        ranges = list(itertools.pairwise(edges))
        found = attend_in_parts([make_call(q, k[:, :, a:b], v[:, :, a:b], sink=sink) for a, b in ranges], kernel)
        found = *found, *gradients(*found, [q, k, v, sink])
        for a, b in zip(found, expected, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kernel", ["cpu", "reference"])
def test_a_sink_that_is_nan_in_parts_is_as_in_one_call(kernel: str) -> None:
    """A query that sees nothing, one that sees keys of only one part, and one that sees all keys."""
    q, k, v = (torch.randn(2, 2, 6, 4).requires_grad_() for _ in range(3))
    sink = torch.randn(2, 2, 6)
    sink[0, :, :3] = math.nan
    sink.requires_grad_()
    seen = torch.ones(6, 6, dtype=torch.bool)
    seen[0], seen[1, :3] = False, False
    call = make_call(q, k, v, sink=sink, mask=seen)._with(wants_lse=True)
    whole = KERNELS[kernel].run(call)
    merged = attend_in_parts([cut(call, "keys", a, b) for a, b in ((0, 3), (3, 6))], kernel)
    for found, expected in zip(merged, whole, strict=True):
        assert expected is not None
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5, equal_nan=True)
    assert not merged[0][:, :, 0].any()
    assert merged[1][0, :, :3].isnan().all()
    found, expected = (gradients(out, lse.nan_to_num(), [q, k, v, sink]) for out, lse in (merged, whole))
    for what, a, b in zip(("q", "k", "v", "sink"), found, expected, strict=True):
        assert a is not None
        assert b is not None
        torch.testing.assert_close(a[1], b[1], rtol=1e-4, atol=1e-5)  # a row of the batch without NaN
        if what in ("q", "sink"):
            assert torch.equal(a[0].isnan(), b[0].isnan())
            assert what == "sink" or not a[0, :, 0].any()
