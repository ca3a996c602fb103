"""Calls that several processes share, compared with one process that has all tokens."""

from __future__ import annotations

import copy
from contextlib import nullcontext
from dataclasses import replace
from functools import cache, partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import forward_ad

import headway as hw
from headway import masks as M
from headway import parallel
from headway.attention import observing
from headway.heads import HeadShard
from headway.parallel import Shards, _attention
from headway.parallel.methods import ring
from headway.positions import ENCODINGS, PositionEncoding
from headway.positions._base import IN_ATTENTION as HOOKS
from headway.testing.inputs import Layer, on_axes, randomized

IN_ATTENTION = [name for name, kind in ENCODINGS.items() if kind.examples()[0].acts & HOOKS]
LENGTH = 23
"""The tokens of a call, which neither 2, 3 nor 4 processes share evenly."""


@cache
def layer_of(name: str, number: int = 0) -> Layer:
    generator = torch.Generator().manual_seed(0)
    return Layer(
        randomized(ENCODINGS[name].examples()[number], generator, torch.float64), generator, torch.float64
    ).eval()


LAYOUTS = {"one token": [[(8, 9)], [(0, 8), (9, LENGTH)]], "a run of one token": [[(0, 1), (9, LENGTH)], [(1, 9)]]}
"""Layouts of two processes that no function of ``Shards`` makes."""


def layout(name: str, n: int, group: Any) -> Shards:
    if name in LAYOUTS:
        return Shards(LAYOUTS[name], group)
    if name == "balanced":  # documents of about a quarter and of the rest
        return Shards.balanced([n // 4, n - n // 4], M.Causal() & M.Documents(), group)
    return getattr(Shards, name)(n, group)


def arguments_of(
    name: str | None, at: hw.Coordinates | None = None, n: int = LENGTH
) -> tuple[list[Tensor], dict[str, Any]]:
    """q, k, v of the whole sequence and the other arguments of a call, with a sink, a cap and dropout."""
    generator = torch.Generator().manual_seed(1)
    if name is None:
        qkv = [torch.randn(2, 4, n, 8, generator=generator, dtype=torch.float64) for _ in range(3)]
        return qkv, {"encoding": None, "at": at or hw.Coordinates.span(n), "x": None}
    layer = layer_of(name)
    at = on_axes(at or hw.Coordinates.span(n), layer.encoding.axes)
    x = torch.randn(2, n, layer.sizes.embed_dim, generator=generator, dtype=torch.float64)
    x = layer.embed(x, at).detach()
    return [side.detach() for side in layer.project(x)], {"encoding": layer.in_attention, "at": at, "x": x}


def parameters_of(encoding: PositionEncoding | None) -> list[Tensor]:
    return [] if encoding is None else [p for p in encoding.parameters() if p.requires_grad]


def upstream(out: Tensor, lse: Tensor | None, rows: Tensor) -> Tensor:
    """A loss that weighs every number of the whole output; ``rows`` are the slots of the tokens in it."""
    up = torch.sin(rows.double() * 0.7 + 1)[None, None, :, None] * torch.linspace(-1, 1, out.shape[3], dtype=out.dtype)
    loss = (out * up).sum()
    if lse is not None:
        loss = loss + (lse.masked_fill(lse.isinf(), 0) * up[..., 0]).sum()
    return loss


def compare(
    group: Any, name: str | None, method: str, shape: str, mask: M.Mask | None, options: dict[str, Any] | None = None,
    at: hw.Coordinates | None = None, has_lse: bool = True, n: int = LENGTH, edit: Any = None,
) -> float:  # fmt: skip
    """Returns the largest difference of outputs, log-sum-exps and gradients, as a share of the largest number."""
    options = options or {}
    (q, k, v), others = arguments_of(name, at, n)
    if edit is not None:
        q, k, v = edit(q, k, v)
    encoding, at, x = others["encoding"], others["at"], others["x"]
    shards = layout(shape, n, group)
    rank_rows = torch.cat([torch.arange(a, b) for a, b in shards.runs])
    parameters = parameters_of(encoding)
    expected = reference(encoding, (q, k, v), at, x, mask, options, has_lse, parameters)

    sink = options.get("sink")
    local_options = dict(options)
    taken = list(shards.take(q, k, v, dim=2)[:3])
    leaves = [t.detach().clone().requires_grad_() for t in taken]
    xs = None if x is None else shards.take(x)[0].detach().clone().requires_grad_()
    if isinstance(sink, Tensor):
        local = shards.take(sink, dim=2)[0] if sink.ndim == 3 else sink
        local_options["sink"] = local.detach().clone().requires_grad_()
    (local_at,) = shards.take(coordinates=at)
    out = parallel.attention(
        *leaves, shards=shards, method=method, encoding=encoding, mask=mask, q_positions=local_at, return_lse=has_lse,
        q_input=xs, k_input=xs, **local_options,
    )  # fmt: skip
    out, lse = out if has_lse else (out, None)
    wanted = [*leaves, *([xs] if xs is not None else []), *parameters]
    if isinstance(sink, Tensor):
        wanted.append(local_options["sink"])
    found = list(torch.autograd.grad(upstream(out, lse, rank_rows), wanted, allow_unused=True))
    found = [torch.zeros_like(w) if g is None else g for w, g in zip(wanted, found, strict=True)]

    e_out, e_lse, grads = expected
    pairs = [(out, e_out[:, :, rank_rows])]
    if has_lse:
        pairs.append((lse, e_lse[:, :, rank_rows]))
    pairs += [(a, b[:, :, rank_rows]) for a, b in zip(found[:3], grads[:3], strict=True)]
    rest, e_rest = found[3:], grads[3:]
    if xs is not None:
        pairs.append((rest[0], e_rest[0][:, rank_rows]))
        rest, e_rest = rest[1:], e_rest[1:]
    for number, (a, b) in enumerate(zip(rest, e_rest, strict=True)):
        if isinstance(sink, Tensor) and number == len(rest) - 1 and sink.ndim == 3:
            pairs.append((a, b[:, :, rank_rows]))
            continue
        total = a.clone()
        dist.all_reduce(total, group=group)
        pairs.append((total, b))
    return max(difference(a.detach(), b) for a, b in pairs)


def difference(a: Tensor, b: Tensor) -> float:
    assert a.shape == b.shape, (a.shape, b.shape)
    same = (a == b) | (a.isnan() & b.isnan())
    gap = torch.where(same, 0, (a - b).abs())
    scale = max(1.0, float(torch.where(b.isfinite(), b.abs(), 0).max()) if b.numel() else 1.0)
    worst = float(gap.max()) / scale if gap.numel() else 0.0
    return worst if worst == worst else float("inf")


def reference(
    encoding: PositionEncoding | None, qkv: Any, at: hw.Coordinates, x: Tensor | None, mask: M.Mask | None,
    options: dict[str, Any], has_lse: bool, parameters: list[Tensor],
) -> tuple[Tensor, Tensor | None, list[Tensor]]:  # fmt: skip
    leaves = [t.detach().clone().requires_grad_() for t in qkv]
    whole_x = None if x is None else x.detach().clone().requires_grad_()
    whole_options = dict(options)
    sink = options.get("sink")
    if isinstance(sink, Tensor):
        whole_options["sink"] = sink.detach().clone().requires_grad_()
    call = hw.attention_with_lse if has_lse else hw.attention
    out = call(
        *leaves, encoding=encoding, mask=mask, q_positions=at, k_positions=at, q_input=whole_x, k_input=whole_x,
        kernel="reference", **whole_options,
    )  # fmt: skip
    out, lse = out if has_lse else (out, None)
    wanted = [*leaves, *([whole_x] if whole_x is not None else []), *parameters]
    if isinstance(sink, Tensor):
        wanted.append(whole_options["sink"])
    grads = torch.autograd.grad(upstream(out, lse, torch.arange(out.shape[2])), wanted, allow_unused=True)
    return (
        out.detach(), None if lse is None else lse.detach(),
        [torch.zeros_like(w) if g is None else g for w, g in zip(wanted, grads, strict=True)],
    )  # fmt: skip


def sweep(group: Any, method: str, shape: str, names: list[str]) -> dict[str, Any]:
    """The difference of each encoding's call, or why the method cannot compute it."""
    found: dict[str, Any] = {}
    for name in names:
        options: dict[str, Any] = {"dropout": 0.2, "dropout_seed": 7}
        has_lse = name != "stick-breaking"
        if has_lse:
            heads = layer_of(name).sizes.heads
            options["sink"] = torch.linspace(-1, 1, heads, dtype=torch.float64)
        try:
            found[name] = compare(group, name, method, shape, M.Causal(), options, has_lse=has_lse)
        except hw.HeadwayError as error:
            found[name] = str(error)
    return found


# ---------------------------------------------------------------- masks, heads, paddings


class Even(M.Mask):
    """A user's mask, which has ``allowed`` alone."""

    def allowed(self, q: hw.Coordinates, k: hw.Coordinates) -> Tensor:
        back = (q.index[:, :, None] - k.index[:, None, :])[:, None]
        return (back >= 0) & (back % 2 == 0)


def _random(*shape: int) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(3)) < 0.4


def _nan_hidden(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    k, v = k.clone(), v.clone()
    k[1, :, 15:], v[1, :, 15:] = torch.nan, torch.nan
    return q, k, v


def _grouped(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return q, k[:, :2], v[:, :2, :, :5]


N = LENGTH
IDS = torch.tensor([0] * 5 + [3] * 9 + [1] * 9)
CASES: dict[str, Any] = {
    "no mask": lambda: {"mask": None},
    "causal": lambda: {"mask": M.Causal()},
    "window": lambda: {"mask": M.Window(4, 0)},
    "window on both sides": lambda: {"mask": M.Window(3, 2)},
    "packed documents": lambda: {
        "mask": M.Causal() & M.Documents(), "at": hw.Coordinates.packed([5, 9, 9]), "name": "t5",
    },
    "packed documents without causal": lambda: {"mask": M.Documents(), "at": hw.Coordinates.packed([1, 20, 2])},
    "ids of documents": lambda: {"mask": M.Causal() & M.Documents(IDS)},
    "ids of documents by row": lambda: {"mask": M.Documents(torch.stack([IDS, IDS.flip(0)]))},
    "packed gates": lambda: {
        "mask": M.Causal() & M.Documents(), "at": hw.Coordinates.packed([5, 9, 9]), "name": "forgetting",
    },
    "packed convolutions": lambda: {
        "mask": M.Causal() & M.Documents(), "at": hw.Coordinates.packed([5, 9, 9]), "name": "selective-rope",
    },
    "padding": lambda: {"mask": M.Padding([N, 15])},
    "padding on the left": lambda: {"mask": M.Causal() & M.Padding([N - 3, 15], "left")},
    "padded rows": lambda: {"mask": M.Causal(), "at": hw.Coordinates.padded([N - 3, 15], N), "name": "alibi"},
    "padded gates": lambda: {"mask": M.Causal(), "at": hw.Coordinates.padded([N - 3, 15], N), "name": "forgetting"},
    "padded convolutions": lambda: {
        "mask": M.Causal(), "at": hw.Coordinates.padded([N - 3, 15], N), "name": "selective-rope",
    },
    "padded gates on the right": lambda: {
        "mask": M.Causal(), "at": hw.Coordinates.padded([N - 3, 15], N, side="right"), "name": "forgetting",
    },
    "gates without the token itself": lambda: {
        "mask": M.Causal() & M.Boolean(torch.ones(N, N).tril(-1).bool()), "name": "selective-rope",
    },
    "gates of the first keys": lambda: {"mask": M.Causal() & M.KeepFirst(2), "name": "forgetting"},
    "padded rows on the right": lambda: {
        "mask": M.Causal(), "at": hw.Coordinates.padded([N - 3, 15], N, side="right"), "name": "rope",
    },
    "Boolean": lambda: {"mask": M.Boolean(_random(N, N))},
    "Boolean by head": lambda: {"mask": M.Boolean(_random(2, 4, N, N))},
    "Boolean of keys": lambda: {"mask": M.Boolean(_random(2, 1, 1, N))},
    "chunks": lambda: {"mask": M.Causal() & M.Chunked(5, previous=1)},
    "prefix": lambda: {"mask": M.Causal() | M.Prefix(4), "name": "t5"},
    "prefix by row": lambda: {"mask": M.Causal() | M.Prefix(torch.tensor([4, 15]))},
    "first keys": lambda: {"mask": M.Causal() & (M.Window(left=4) | M.KeepFirst(2))},
    "dilated": lambda: {"mask": M.Causal() & M.Dilated(3)},
    "function": lambda: {"mask": M.from_flex(lambda b, h, q_idx, kv_idx: (q_idx - kv_idx) * (h + 1) % 3 == 0)},
    "a user's": lambda: {"mask": Even()},
    "hidden NaN": lambda: {"mask": M.Padding([N, 15]), "edit": _nan_hidden},
    "grouped heads": lambda: {"mask": M.Causal(), "edit": _grouped},
    "sink by query": lambda: {
        "mask": M.Window(2, 0), "options": {"sink": torch.linspace(-2, 2, 2 * 4 * N).double().view(2, 4, N)},
    },
    "cap and scale": lambda: {"mask": M.Causal(), "options": {"soft_cap": 2.0, "scale": 0.7}, "name": "kerple-log"},
    "dropout": lambda: {"mask": M.Causal(), "options": {"dropout": 0.4, "dropout_seed": 5}, "name": "rotary-values"},
    "positions with gaps": lambda: {
        "mask": M.Causal(), "at": hw.Coordinates.of((torch.arange(N) ** 2).double(), N), "name": "fire",
    },
}  # fmt: skip
"""Calls by name. Masks are of the whole sequence."""


def sweep_cases(group: Any, method: str, shape: str, names: list[str]) -> dict[str, Any]:
    """The difference of each case, or why the method cannot compute it."""
    found: dict[str, Any] = {}
    for name in names:
        case = CASES[name]()
        try:
            found[name] = compare(group, case.pop("name", None), method, shape, case.pop("mask"), **case)
        except hw.HeadwayError as error:
            found[name] = str(error)
    return found


# ---------------------------------------------------------------- other facts


def rounded_queries(group: Any) -> float:
    """The error of bfloat16 gradients of queries that see many runs of keys, as a share of the naive computation's."""
    generator = torch.Generator().manual_seed(0)
    q, k, v, up = (torch.randn(1, 2, 512, 64, generator=generator).bfloat16() for _ in range(4))
    own = [[(start, start + 8) for start in range(8 * rank, 512, 16)] for rank in range(2)]
    shards = Shards(own, group)

    def gradient(attend: Any, *sides: Tensor, up: Tensor) -> Tensor:
        first, *others = sides
        first = first.clone().requires_grad_()
        return torch.autograd.grad((attend(first, *others) * up).sum(), first)[0].double()

    def naive(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return ((q @ k.transpose(-1, -2)) / 8).softmax(-1) @ v

    exact = gradient(naive, *(x.double() for x in (q, k, v)), up=up.double())
    local = shards.take(q, k, v, up, dim=2)[:4]
    ring = gradient(partial(parallel.attention, shards=shards, method="ring"), *local[:3], up=local[3])
    errors = [
        (found - shards.take(exact, dim=2)[0]).abs().amax(-1).mean()
        for found in (ring, shards.take(gradient(naive, q, k, v, up=up), dim=2)[0])
    ]
    return float(errors[0] / errors[1])


class EvenOfDocument(M.Documents):
    """A user's class, which hides more than its base, like the next one."""

    def allowed(self, q: hw.Coordinates, k: hw.Coordinates) -> Tensor:
        return super().allowed(q, k) & (k.index % 2 == 0)[:, None, None]


class EvenOfPadded(M.Padding):
    def allowed(self, q: hw.Coordinates, k: hw.Coordinates) -> Tensor:
        return super().allowed(q, k) & (k.index % 2 == 0)[:, None, None]


def masks_of_subclasses(group: Any, method: str) -> list[float]:
    masks = (EvenOfDocument(IDS), EvenOfPadded([N, 15]), EvenOfPadded([N - 3, 15], "left"))
    return [compare(group, None, method, "contiguous", mask) for mask in masks]


def written_mask(group: Any, method: str) -> float:
    """The difference of a second call, after the tensor of the mask was written to."""
    (q, k, v), _ = arguments_of(None)
    shards = Shards.contiguous(N, group)
    local = shards.take(q, k, v, dim=2)[:3]
    values = torch.zeros(N, N, dtype=torch.bool)
    values[:, : N // 2] = True
    for _ in range(2):
        out = parallel.attention(*local, shards=shards, method=method, mask=values)
        values.fill_(True)
    return difference(shards.join(out, dim=2), hw.attention(q, k, v))


def chosen_rows(group: Any) -> float:
    """The difference of a call on some rows of the batch, whose coordinates are selected after they are taken."""
    rows = torch.tensor([1, 0, 1])
    q, k, v = (x[rows] for x in arguments_of(None)[0])
    shards = Shards.zigzag(N, group)
    at = hw.Coordinates.padded([N - 3, 15], N)
    (local_at,) = shards.take(coordinates=at)
    local = shards.take(q, k, v, dim=2)[:3]
    out = parallel.attention(
        *local, shards=shards, encoding="alibi", mask=M.Causal(), q_positions=local_at.select(rows)
    )
    there = at.select(rows)
    whole = hw.attention(q, k, v, encoding="alibi", mask=M.Causal(), q_positions=there, k_positions=there)
    return difference(shards.join(out, dim=2), whole)


def trained_after_inference(group: Any, method: str) -> float:
    (q, k, v), _ = arguments_of(None)
    shards = Shards.zigzag(N, group)
    local = [x.clone().requires_grad_() for x in shards.take(q, k, v, dim=2)[:3]]
    encoding = layer_of("fire").encoding
    with torch.inference_mode():
        before = parallel.attention(*local, shards=shards, method=method, encoding=encoding, mask=M.Causal())
    out = parallel.attention(*local, shards=shards, method=method, encoding=encoding, mask=M.Causal())
    out.sum().backward()
    return difference(out.detach(), before)


def kinds_of_numbers(group: Any) -> dict[str, float]:
    """The worst difference of float32 by the kernel that "auto" takes, and of bfloat16, from float64 in one process."""
    found = {}
    for method in ("gather", "ring", "heads"):
        for dtype in (torch.float32, torch.bfloat16):
            (q, k, v), _ = arguments_of(None)
            shards = Shards.zigzag(N, group)
            at = torch.cat([torch.arange(a, b) for a, b in shards.runs])
            leaves = [x.requires_grad_() for x in (q, k, v)]
            whole = hw.attention(*leaves, mask=M.Causal(), kernel="reference")
            expected = [whole, *torch.autograd.grad(upstream(whole, None, torch.arange(N)), leaves)]
            leaves = [shards.take(x.detach(), dim=2)[0].to(dtype).requires_grad_() for x in (q, k, v)]
            out = parallel.attention(*leaves, shards=shards, method=method, mask=M.Causal())
            assert out.dtype == dtype
            grads = torch.autograd.grad(upstream(out, None, at).to(dtype), leaves)
            pairs = zip([out, *grads], expected, strict=True)
            found[f"{method} {dtype}"] = max(difference(a.detach().double(), b[:, :, at]) for a, b in pairs)
    return found


def bits(group: Any, method: str) -> list[Tensor]:
    """The output and gradients of a call with dropout, in float32."""
    layer = layer_of("t5")
    encoding = layer.encoding
    (q, k, v), _ = arguments_of("t5")
    shards = Shards.zigzag(N, group)
    leaves = [shards.take(x, dim=2)[0].float().requires_grad_() for x in (q, k, v)]
    out = parallel.attention(
        *leaves, shards=shards, method=method, encoding=encoding, mask=M.Causal(), dropout=0.3, dropout_seed=1
    )
    parameters = parameters_of(encoding)
    return [out.detach(), *torch.autograd.grad(out.square().sum(), [*leaves, *parameters])]


def repeats(group: Any, method: str) -> bool:
    first, second = bits(group, method), bits(group, method)
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def drawn(group: Any, method: str) -> float:
    """How far the outputs with dropout and drawn positions are from those of the seed that rank 0 draws."""
    torch.manual_seed(int(dist.get_rank(group)))
    encoding = hw.positions.Compose(hw.encoding("randomized", max_length=99), hw.encoding("alibi", num_heads=4)).train()
    (q, k, v), _ = arguments_of(None)
    shards = Shards.zigzag(N, group)
    local = shards.take(q, k, v, dim=2)[:3]
    out = parallel.attention(*local, shards=shards, method=method, encoding=encoding, mask=M.Causal(), dropout=0.5)
    whole = shards.join(out, dim=2)
    # the same on one process: dropout's seed is the first number of rank 0's generator, the positions' the second
    torch.manual_seed(0)
    seeds = [int(torch.randint(0, 1 << 62, (1,))) for _ in range(2)]
    torch.manual_seed(seeds[1])
    expected = hw.attention(q, k, v, encoding=encoding, mask=M.Causal(), dropout=0.5, dropout_seed=seeds[0])
    return difference(whole, expected)


def crossed(group: Any, method: str, shape: str) -> float:
    """The difference of attention to a context of another length, whose shards are others."""
    torch.manual_seed(2)  # the same parameters on every rank
    generator = torch.Generator().manual_seed(2)
    q, k, v = (torch.randn(2, 4, n, 8, generator=generator, dtype=torch.float64) for n in (N, 17, 17))
    encoding = hw.encoding("t5", num_heads=4).double()
    sides, places = (
        (layout(shape, N, group), layout(shape, 17, group)),
        (hw.Coordinates.span(N), hw.Coordinates.span(17)),
    )
    leaves = [x.requires_grad_() for x in (q, k, v)]
    expected = hw.attention(
        *leaves, encoding=encoding, q_positions=places[0], k_positions=places[1], kernel="reference"
    )
    at = torch.cat([torch.arange(a, b) for a, b in sides[0].runs])
    wanted = [expected[:, :, at], *torch.autograd.grad(upstream(expected, None, torch.arange(N)), leaves)]
    mine, q_at = sides[0].take(q.detach(), dim=2, coordinates=places[0])
    *others, k_at = sides[1].take(k.detach(), v.detach(), dim=2, coordinates=places[1])
    leaves = [x.requires_grad_() for x in (mine, *others)]
    out = parallel.attention(
        *leaves,
        shards=sides[0],
        k_shards=sides[1],
        method=method,
        encoding=encoding,
        q_positions=q_at,
        k_positions=k_at,
    )
    found = [out, *torch.autograd.grad(upstream(out, None, at), leaves)]
    keys = torch.cat([torch.arange(a, b) for a, b in sides[1].runs])
    slots = (None, at, keys, keys)
    pairs = zip(found, wanted, slots, strict=True)
    return max(difference(a.detach(), b.detach() if rows is None else b[:, :, rows]) for a, b, rows in pairs)


def joined(group: Any) -> bool:
    """Whether what was taken is joined in order, with the gradient of every process."""
    shards = Shards.zigzag(N, group)
    x = torch.arange(2.0 * N).view(2, N)
    (part, at) = shards.take(x)
    leaf = part.clone().requires_grad_()
    whole = shards.join(leaf)
    (gradient,) = torch.autograd.grad((whole * x).sum(), leaf)
    return (
        torch.equal(whole, x)
        and torch.equal(gradient, part * shards.group.size)
        and at.index.shape == (1, len(part[0]))
    )


def sent(group: Any, method: str, shape: str, mask: M.Mask | None, n: int = 64) -> tuple[int, int, Any]:
    """The bytes that are sent in both directions, and what ``explain`` says."""
    q, k, v = (torch.randn(1, 4, n, 8) for _ in range(3))
    shards = layout(shape, n, group)
    leaves = [x.clone().requires_grad_() for x in shards.take(q, k, v, dim=2)[:3]]
    options: dict[str, Any] = {"shards": shards, "method": method, "mask": mask}
    parallel.attention(*leaves, **options)  # the first call agrees
    start = shards.group.sent
    out = parallel.attention(*leaves, **options)
    between = shards.group.sent
    out.sum().backward()
    return between - start, shards.group.sent - between, parallel.explain(*leaves, **options).traffic[method]


def bytes_of_encodings(group: Any, method: str, shape: str, names: list[str | None]) -> dict[str, Any]:
    """For each encoding what a call sends, forward and backward, and what ``explain`` says; without those refused."""
    found = {}
    for name in names:
        qkv, others = arguments_of(name)
        shards = layout(shape, LENGTH, group)
        leaves = [x.clone().requires_grad_() for x in shards.take(*qkv, dim=2)[:3]]
        x = None if others["x"] is None else shards.take(others["x"])[0].requires_grad_()
        options: dict[str, Any] = {"shards": shards, "method": method, "mask": M.Causal(), "q_input": x, "k_input": x}
        (options["q_positions"],) = shards.take(coordinates=others["at"])
        options |= {"encoding": others["encoding"], "return_lse": name != "stick-breaking"}
        said = parallel.explain(*leaves, **options).traffic.get(method)
        if said is not None:
            found[str(name)] = (_sent(options, leaves), (said.forward, said.backward))
    return found


def bytes_of_terms(group: Any, method: str) -> dict[str, Any]:
    """The same for grouped heads, and for terms of the caller that hold tensors of keys and of queries."""
    (q, k, v), _ = arguments_of(None)
    shards = Shards.zigzag(LENGTH, group)
    rows = torch.arange(2.0 * LENGTH).view(2, 1, LENGTH).double()
    by_head = torch.randn(2, 4, LENGTH).double()
    found = {}
    for name, (queries, keys) in {
        "grouped": (None, None), "keys": (None, rows), "keys by head": (None, by_head), "both": (by_head, by_head),
    }.items():  # fmt: skip
        heads = 4 if "head" in name or name == "both" else 2
        leaves = [x.clone().requires_grad_() for x in shards.take(q, k[:, :heads], v[:, :heads, :, :5], dim=2)[:3]]
        of = [None if x is None else shards.take(x, dim=2)[0] for x in (queries, keys)]
        of[1] = None if of[1] is None else of[1].requires_grad_(name != "keys")
        terms = [] if of == [None, None] else [hw.terms.TokenBias(*of)]
        options: dict[str, Any] = {"shards": shards, "method": method, "mask": M.Causal(), "terms": terms}
        said = parallel.explain(*leaves, **options).traffic[method]
        found[name] = (_sent(options, leaves), (said.forward, said.backward))
    return found


def _sent(options: dict[str, Any], leaves: list[Tensor]) -> tuple[int, int]:
    """The bytes that this rank sends in a call, forward and backward."""
    group = options["shards"].group
    start = group.sent
    out = parallel.attention(*leaves, **options)
    between = group.sent
    sum(x.sum() for x in (out if isinstance(out, tuple) else (out,))).backward()
    return between - start, group.sent - between


def sent_of_some_heads(group: Any) -> tuple[int, int]:
    """The bytes that a ring sends with a bias for each of 8 heads, of which a process has 4; what ``explain`` says."""
    shards = Shards.zigzag(16, group)
    q, k, v, bias = (shards.take(torch.randn(1, heads, 16, 8), dim=2)[0] for heads in (4, 4, 4, 8))
    options: dict[str, Any] = {"terms": [hw.terms.DenseBias(bias[..., :1].mT)], "head_shard": HeadShard(4, 4, 8)}
    said = parallel.explain(q, k, v, shards=shards, method="ring", **options).traffic["ring"]
    start = shards.group.sent
    parallel.attention(q, k, v, shards=shards, method="ring", **options)
    return shards.group.sent - start, said.forward


def observed_masks(group: Any) -> list[float]:
    """The differences of observed calls, whose masks are those of several runs, one of a single token."""
    ids = torch.arange(N) // 6
    with observing(lambda call, compute: compute()):
        return [
            compare(group, None, "gather", "a run of one token", mask)
            for mask in (M.Boolean(_random(N, N)), M.Causal() & M.Boolean(_random(2, 4, N, N)), M.Documents(ids))
        ]


LIKE = ("documents", "ids of documents", "seed")
"""What is compared by its numbers; the rest of the call is alike."""


def disagrees(group: Any, what: str) -> None:
    rank = dist.get_rank(group)
    (q, k, v), _ = arguments_of(None)
    shards = Shards.zigzag(N, group)
    if what == "layout" and rank:
        shards = Shards.contiguous(N, group)
    if what == "the number of tokens" and rank:
        q, k, v = (x.repeat(1, 1, 2, 1) for x in (q, k, v))
        shards = Shards.zigzag(2 * N, group)
    q, k, v = (shards.take(x, dim=2)[0] for x in (q, k, v))
    options: dict[str, Any] = {"mask": M.Causal()}
    if what == "dtype" and rank:
        q, k, v = (x.float() for x in (q, k, v))
    if what == "encoding":
        options["encoding"] = hw.encoding("alibi", num_heads=4) if rank else hw.encoding("rope", head_dim=8)
    if what == "mask" and rank:
        options["mask"] = M.Window(3, 0)
    if what == "gradients":  # those of tokens' biases, which a ring exchanges too
        (q, k, v), others = arguments_of("forgetting")
        q, k, v = (shards.take(x, dim=2)[0] for x in (q, k, v))
        x = shards.take(others["x"])[0].requires_grad_(not rank)
        options |= {"encoding": others["encoding"], "q_input": x, "k_input": x}
    if what == "heads" and rank:
        k, v = k[:, :2], v[:, :2]
    if what == "capture":  # of a kind that all ranks have agreed on before
        parallel.attention(q, k, v, shards=shards, method="ring", **options)
        options["encoding"] = None
        with observing(lambda call, compute: compute()) if rank else nullcontext():
            parallel.attention(q, k, v, shards=shards, method="ring", **options)
        return
    if what == "documents":  # of which one rank would wait for keys that the other one does not send
        at = hw.Coordinates.packed([N]) if rank else hw.Coordinates.packed([12, N - 12])
        shards = Shards.contiguous(N, group)
        (options["q_positions"],) = shards.take(coordinates=at)
        options["mask"] = M.Documents()
        q, k, v = (shards.take(x, dim=2)[0] for x in arguments_of(None)[0])
    if what == "ids of documents":
        options["mask"] = M.Documents(torch.arange(N) // (12 + 12 * rank))
    if what == "version" and rank:
        _attention.__version__ += "+other"
    if what == "seed":
        options |= {"dropout": 0.5, "dropout_seed": rank}
    try:
        parallel.attention(q, k, v, shards=shards, method="ring" if what in LIKE else "gather", **options)
    finally:
        _attention.__version__ = _attention.__version__.removesuffix("+other")


def refuses(group: Any, what: str) -> None:
    """Calls that must raise."""
    (q, k, v), _ = arguments_of(None)
    shards = Shards.zigzag(N, group)
    q, k, v, at = shards.take(q, k, v, dim=2)
    if what == "plain":
        hw.attention(q, k, v, encoding="alibi", q_positions=at, k_positions=at)
    elif what == "plain masked":
        hw.attention(q, k, v, mask=M.Causal(), q_positions=at, k_positions=at)
    elif what == "appended":
        at.append(hw.Coordinates.span(1, start=N))
    elif what == "other shards":
        parallel.attention(q, k, v, shards=Shards([[(0, N - 1)], [(N - 1, N)]], group), q_positions=at)
    elif what == "encoding outside":
        hw.encoding("forgetting", embed_dim=32, num_heads=4).terms(at, at, None, torch.randn(1, len(at.index[0]), 32))
    elif what == "undeclared":
        parallel.attention(q, k, v, shards=shards, encoding=Undeclared(), mask=M.Causal(), method="ring")
    elif what == "no tokens":
        Shards([[(0, N)], []], group)
    elif what == "some of a shard":
        parallel.attention(q, k, v, shards=shards, q_positions=at.rows(0, 3))
    elif what == "replaced positions":
        parallel.attention(q, k, v, shards=shards, q_positions=replace(at, position=at.position + 1))
    elif what == "unknown method":
        parallel.attention(q, k, v, shards=Shards.contiguous(len(q[0, 0]), None), method="rign")
    elif what == "pairs":
        bias = hw.terms.DenseBias(torch.zeros(q.shape[2], k.shape[2]).double())
        parallel.attention(q, k, v, shards=shards, terms=[bias], method="ring")
    elif what == "whole":
        parallel.attention(*arguments_of(None)[0], shards=shards)
    elif what == "method":
        parallel.attention(q, k, v, shards=shards, method="rings")
    elif what == "no argument of statistics":
        hw.attention_statistics(q, k, v, shards=shards, method="ring")
    elif what == "head_shard":
        parallel.attention(q, k, v, shards=shards, head_shard=(0, 2, 4), mask=M.Causal())
    elif what.startswith("twice"):
        q, k, v = (x.requires_grad_() for x in (q, k, v))
        method = what.partition("by ")[2] or "ring"
        out = parallel.attention(q, k, v, shards=shards, method=method)
        loss = out.sum() if "sum" in what else out.square().sum()  # the gradient of a sum is a constant
        (gradient,) = torch.autograd.grad(loss, k, create_graph=True)
        (gradient.sum() + q.sum()).backward()
    elif what == "batched gradients":
        out = parallel.attention(q, k.requires_grad_(), v, shards=shards, method="ring")
        torch.autograd.grad(out, k, torch.stack([out.detach()] * 2), is_grads_batched=True)
    elif what == "forward mode":
        with forward_ad.dual_level():
            parallel.attention(forward_ad.make_dual(q, q), k, v, shards=shards, method="gather")
    elif what == "torch.func":
        torch.func.grad(lambda q: parallel.attention(q, k, v, shards=shards, method="heads").sum())(q)
    elif what == "compiled":
        torch.compile(lambda q: parallel.attention(q, k, v, shards=shards, method="ring"), backend="eager")(q)


class Undeclared(hw.positions.PositionEncoding):
    """A user's encoding whose terms might depend on other tokens."""

    def terms(self, q_at: Any, k_at: Any, q_input: Any = None, k_input: Any = None) -> Any:
        return (hw.terms.DistanceBias(hw.terms.Linear(torch.ones(1), torch.ones(1))),)


class Declared(Undeclared):
    """The same with a declaration."""

    across_shards = True

    def terms(self, q_at: Any, k_at: Any, q_input: Any = None, k_input: Any = None) -> Any:
        return super().terms(q_at, k_at)


def of_a_user(group: Any) -> tuple[Any, float]:
    """The method that auto takes for an encoding that declares nothing, and the difference of one that does."""
    (q, k, v), _ = arguments_of(None)
    shards = Shards.contiguous(N, group)
    local = shards.take(q, k, v, dim=2)[:3]
    expected = hw.attention(q, k, v, encoding=Declared(), mask=M.Causal())
    chosen = parallel.explain(*local, shards=shards, encoding=Undeclared(), mask=M.Causal()).method
    out = parallel.attention(*local, shards=shards, encoding=Declared(), mask=M.Causal(), method="ring")
    return chosen, difference(shards.join(out, dim=2), expected)


def one_process(group: Any) -> bool:
    """A group of one process, and none: plain calls."""
    (q, k, v), _ = arguments_of(None)
    shards = Shards.zigzag(N, None)
    *taken, at = shards.take(q, k, v, dim=2)
    out = parallel.attention(*taken, shards=shards, encoding="alibi", q_positions=at, mask=M.Causal())
    return torch.equal(out, hw.attention(q, k, v, encoding="alibi", mask=M.Causal()))


ON_DEVICES = (None, "rope", "t5", "fire", "forgetting")
"""Encodings of each kind of term that travels or stays: none, rotations, tables, pieces, biases of tokens."""


def on_devices(group: Any, method: str, device: str) -> dict[str, float]:
    """The differences of outputs and gradients of calls on the device of this process, in float64."""
    found = {}
    for name in ON_DEVICES:
        qkv, others = arguments_of(name)
        encoding = copy.deepcopy(others["encoding"])
        encoding = encoding if encoding is None else encoding.to(device)
        parameters, shards = parameters_of(encoding), Shards.zigzag(LENGTH, group)
        inputs = [others["x"]] if encoding is not None and encoding.reads_input else []
        whole = [x.to(device) for x in (*qkv, *inputs)]

        def results(call: Any, sides: list[Tensor], encoding: Any = encoding, parameters: Any = parameters) -> Any:
            leaves = [side.clone().requires_grad_() for side in sides]
            x = leaves[3] if len(leaves) > 3 else None
            out = call(*leaves[:3], encoding=encoding, mask=M.Causal(), q_input=x, k_input=x)
            return out, torch.autograd.grad(out.square().sum(), [*leaves, *parameters])

        own = [*shards.take(*whole[:3], dim=2)[:3], *shards.take(*whole[3:])[:-1]]
        out, grads = results(partial(parallel.attention, shards=shards, method=method), own)
        e_out, e_grads = results(hw.attention, whole)
        pairs = [(out, shards.take(e_out, dim=2)[0])]
        for a, b in zip(grads[: len(own)], e_grads, strict=False):
            pairs.append((a, shards.take(b, dim=2 if b.ndim == 4 else 1)[0]))
        for a, b in zip(grads[len(own) :], e_grads[len(own) :], strict=True):
            total = a.clone()
            dist.all_reduce(total, group=group)
            pairs.append((total, b))
        found[str(name)] = max(difference(a.detach().cpu(), b.detach().cpu()) for a, b in pairs)
    return found


def in_groups(group: Any, names: list[str], encodings: list[str]) -> dict[str, Any]:
    """The differences where the ring computes heads in groups, as it does for long shards."""
    most, ring.GROUPED = ring.GROUPED, 0
    try:
        return sweep_cases(group, "ring", "zigzag", names) | sweep(group, "ring", "zigzag", encodings)
    finally:
        ring.GROUPED = most
