"""Calls drawn by one number for the tests of the CPU kernel: sizes, layouts, positions, masks, terms, gradients."""

from __future__ import annotations

import ctypes
import itertools
import math
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from headway import masks as M
from headway import terms as T
from headway.call import make_call
from headway.coordinates import Coordinates
from headway.kernels import KERNELS, Call, Problem
from headway.kernels import reference as spec
from headway.kernels.cpu import _library

LENGTHS = (0, 1, 2, 3, 4, 5, 7, 17, 47, 48, 49, 63, 97, 111, 145, 191, 192, 193, 241, 400)
WIDTHS = (1, 2, 8, 16, 24, 33, 40, 64, 65, 72, 80, 129)
REACHES = (1, 4, 16, 100, 300)
LAYOUTS = ("contiguous", "heads last", "sliced", "gaps within rows", "rows expanded", "tokens expanded", "odd start")
FAR = ("huge", "huge gaps", "negative")
"""Positions at which the reference kernel's angles are no longer exact in float64."""
WAVES = ("sinusoids", "cosines")
UPSTREAMS = ("dense", "expanded", "transposed", "gaps")
TERMS = (
    "temperature", "clip", "clip one-sided", "steps", "whole steps", "grid", "classes", "linear", "logarithm", "power",
    "piecewise", "keys", "keys with u", "keys, own query", "keys by class", "keys by grid", "sinusoids", "queries",
    "queries, own key", "queries by class", "values", "values by steps", "values by class", "tokens", "dense",
    "dense for all", "dense by row", "dense by column", "cosines", "stretched", "sink by query",
)  # fmt: skip
SCANS = ("contextual positions", "gated path")
"""Terms of which a call has one at most, and whose reductions the kernel computes."""
RECORDED = (*SCANS, "slopes by content", "head network")
OF_ALL_KEYS = (*RECORDED, "head network of stretched distances")
"""Terms of which a call has one at most."""


@dataclass
class Case:
    """What was drawn. Every field can be given; ``make`` then turns it into the same call in any dtype."""

    seed: int
    batch: int
    heads: int
    kv_heads: int
    n: int
    m: int
    head_dim: int
    v_dim: int
    positions: str
    mask: str
    terms: tuple[str, ...]
    sink: bool
    cap: float | None
    lse: bool
    include_sink: bool
    dropout: float
    layouts: tuple[str, str, str]
    upstream: str
    wanted: float
    """Share of the leaves that want a gradient."""

    @staticmethod
    def drawn(seed: int, most: int = 1 << 19, **given: Any) -> Case:
        """A case of at most ``most`` scores."""
        r = random.Random(seed)
        kv_heads = r.choice((1, 1, 2, 3))
        found: dict[str, Any] = {
            "batch": r.choice((1, 1, 2, 3)),
            "heads": kv_heads * r.choice((1, 1, 2, 4)),
            "kv_heads": kv_heads,
            "n": r.choice(LENGTHS),
            "m": r.choice(LENGTHS),
            "head_dim": r.choice(WIDTHS),
            "v_dim": r.choice(WIDTHS),
            "positions": r.choice(tuple(POSITIONS)),
            "mask": r.choice(tuple(MASKS)),
            "terms": tuple(r.choice(TERMS) for _ in range(r.choice((0, 1, 1, 2, 3, 5)))),
            "sink": r.random() < 0.25,
            "cap": r.choice((None, None, None, 2.0, 30.0)),
            "lse": r.random() < 0.3,
            "include_sink": r.random() >= 0.3,
            "dropout": r.choice((0.0, 0.0, 0.0, 0.1, 0.5)),
            # values that are all one leave gradients of nothing but rounding
            "layouts": (r.choice(LAYOUTS), r.choice(LAYOUTS), r.choice(LAYOUTS[:-2] + LAYOUTS[-1:])),
            "upstream": r.choice(UPSTREAMS),
            "wanted": r.choice((0.0, 0.3, 0.6, 1.0, 1.0)),
        }
        found |= given
        if found["positions"] in FAR:
            found["terms"] = tuple(name for name in found["terms"] if name not in WAVES)
        while found["batch"] * found["heads"] * found["n"] * found["m"] > most:
            if found["batch"] > 1 and "batch" not in given:
                found["batch"] = 1
            elif found["heads"] > found["kv_heads"] and "heads" not in given:
                found["heads"] = found["kv_heads"]
            else:
                break
        return Case(seed, **found)

    def make(
        self, dtype: torch.dtype, term_dtype: torch.dtype | None = None, wants: Callable[[str], bool] | None = None
    ) -> Made:
        """The call, its leaves by name, and the gradients that come from above.

        wants: whether the leaf of this name wants a gradient; as was drawn if None.
        """
        term_dtype = term_dtype or dtype
        choice = random.Random(self.seed + 2)
        draw = Draws(self.seed, dtype, wants or (lambda name: choice.random() < self.wanted))
        b, h, kv, n, m = self.batch, self.heads, self.kv_heads, self.n, self.m
        q = draw("q", b, h, n, self.head_dim, layout=self.layouts[0])
        k = draw("k", b, kv, m, self.head_dim, layout=self.layouts[1])
        v = draw("v", b, kv, m, self.v_dim, layout=self.layouts[2])
        draw.dtype = term_dtype
        g = torch.Generator().manual_seed(self.seed + 1)
        q_side, k_side = POSITIONS[self.positions](g, b, n, m)
        mask = MASKS[self.mask](g, b, h, n, m)
        axes = min(q_side.position.shape[-1], k_side.position.shape[-1])
        terms: list[T.Term] = []
        for number, name in enumerate(self.terms):
            terms += term(name, f"{number} {name}", draw, g, self, axes)
        call = make_call(
            q, k, v, terms=terms, mask=mask, soft_cap=self.cap, q_positions=q_side, k_positions=k_side,
            sink=draw("sink", h) if self.sink else None, dropout=self.dropout,
        )  # fmt: skip
        seed = torch.tensor([(self.seed * 0x9E3779B97F4A7C15 + 12345) % (1 << 62)]) if self.dropout else None
        call = replace(call, wants_lse=self.lse, include_sink=self.include_sink or not self.lse, seed=seed)
        draw.dtype, draw.wants = dtype, lambda name: False
        up = draw("up", b, h, n, self.v_dim)
        if self.upstream == "expanded":
            up = up[:1, :1, :1, :1].expand_as(up) if up.numel() else up
        elif self.upstream == "transposed":
            up = up.mT.contiguous().mT
        elif self.upstream == "gaps":
            up = torch.stack([up, up], -1).flatten(-2)[..., ::2]
        draw.dtype = torch.float64 if dtype == torch.float64 else torch.float32
        upstream = [up, draw("up of lse", b, h, n)]
        leaves = {name: leaf for name, leaf in draw.leaves.items() if not name.startswith("up")}
        return Made(call, leaves, [x.detach() for x in upstream])


@dataclass
class Made:
    call: Call
    leaves: dict[str, Tensor]
    upstream: list[Tensor]

    def results(self, kernel: str | None) -> dict[str, Tensor]:
        """Output, log-sum-exp if wanted, the gradients of the leaves that want one; None computes naively."""
        if kernel is None:
            steps = spec.steps(self.call)
            out, lse = steps[4].to(self.call.q.dtype), None
        else:
            out, lse = KERNELS[kernel].run(self.call)
        found = {"out": out} | ({} if lse is None else {"lse": lse})
        pairs = [(x, up) for x, up in zip((out, lse), self.upstream, strict=True) if x is not None and x.requires_grad]
        wanted = {name: leaf for name, leaf in self.leaves.items() if leaf.requires_grad}
        if pairs and wanted:
            outputs, upstream = zip(*pairs, strict=True)
            grads = torch.autograd.grad(outputs, list(wanted.values()), upstream, allow_unused=True)
            for (name, leaf), grad in zip(wanted.items(), grads, strict=True):
                found[f"d {name}"] = torch.zeros_like(leaf) if grad is None else grad
        return {name: x.detach() for name, x in found.items()}


class Draws:
    """Leaves by name; the numbers are those of bfloat16, so that every dtype computes with the same."""

    def __init__(self, seed: int, dtype: torch.dtype, wants: Callable[[str], bool]) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.dtype = dtype
        self.wants = wants
        self.leaves: dict[str, Tensor] = {}

    def __call__(self, name: str, *shape: int, layout: str = "contiguous", size: float = 1.0) -> Tensor:
        values = torch.randn(shape, generator=self.generator, dtype=torch.float64) * size
        leaf = laid_out(values.bfloat16().to(self.dtype), layout).requires_grad_(self.wants(name))
        self.leaves[name] = leaf
        return leaf


def laid_out(x: Tensor, layout: str) -> Tensor:
    """The numbers of a tensor of four dimensions in other places of memory (expanded ones are all the first's)."""
    if layout == "heads last":
        return x.permute(2, 0, 3, 1).contiguous().permute(1, 3, 0, 2)
    if layout == "sliced":
        wide = x.new_full((x.shape[0], x.shape[1] + 1, x.shape[2] + 2, x.shape[3] + 3), torch.nan)
        part = wide[:, 1:, 1:-1, 2:-1]
        return part.copy_(x)
    if layout == "gaps within rows":
        wide = x.new_full((*x.shape[:3], 3 * x.shape[3]), torch.nan)
        return wide[..., 1::3].copy_(x)
    if layout == "rows expanded" and x.shape[0]:
        return x[:1].expand_as(x)
    if layout == "tokens expanded" and x.shape[2]:
        return x[:, :, :1].expand_as(x)
    if layout == "odd start":
        flat = x.new_full((x.numel() + 1,), torch.nan)
        return flat[1:].view(x.shape).copy_(x)
    return x


# ---------------------------------------------------------------- positions


def _sides(make: Callable[..., Coordinates]) -> Callable[..., tuple[Coordinates, Coordinates]]:
    """Queries and keys as the last of one row of tokens."""

    def sides(g: torch.Generator, batch: int, n: int, m: int) -> tuple[Coordinates, Coordinates]:
        total = max(n, m)
        tokens = make(g, batch, total)
        return tokens.rows(total - n, total), tokens.rows(total - m, total)

    return sides


def _of(make: Callable[..., Tensor]) -> Callable[..., tuple[Coordinates, Coordinates]]:
    return _sides(lambda g, batch, n: Coordinates.of(make(g, batch, n), n))


def _lengths(g: torch.Generator, n: int) -> list[int]:
    cuts = sorted({0, n, *torch.randint(0, n + 1, (5,), generator=g).tolist()})
    return [b - a for a, b in itertools.pairwise(cuts)] or [0]


def _rising(g: torch.Generator, batch: int, n: int, most: int) -> Tensor:
    return torch.randint(1, most + 1, (batch, n), generator=g).cumsum(1)


def _two_axes(g: torch.Generator, batch: int, n: int) -> Tensor:
    return torch.stack([torch.arange(n) // 7, torch.arange(n) % 7], -1)[None]


def _apart(g: torch.Generator, batch: int, n: int, m: int) -> tuple[Coordinates, Coordinates]:
    """Queries and keys of two rows of tokens, with indices that do not end together."""
    q = Coordinates.of(torch.arange(n) + 37, n, start=5)
    return q, Coordinates.of(torch.arange(m), m, start=2)


def _unordered(g: torch.Generator, batch: int, n: int, m: int) -> tuple[Coordinates, Coordinates]:
    def side(size: int) -> Coordinates:
        index = torch.stack([torch.randperm(size, generator=g) for _ in range(batch)])
        return Coordinates(index[..., None] * 2, index)

    return side(n), side(m)


def _jumps(g: torch.Generator, batch: int, n: int) -> Tensor:
    jump = (torch.rand(1, n, generator=g) < 0.03).long() * torch.randint(-3000, 3000, (1, n), generator=g)
    return (1 + jump).cumsum(1)


def _mixed(g: torch.Generator, batch: int, n: int, m: int) -> tuple[Coordinates, Coordinates]:
    """Whole positions of queries, floats of keys."""
    q = Coordinates.of(torch.arange(n) + max(m - n, 0), n)
    return q, Coordinates.of(torch.arange(m).double() + 0.25, m)


POSITIONS: dict[str, Callable[..., tuple[Coordinates, Coordinates]]] = {
    "plain": _sides(lambda g, batch, n: Coordinates.span(n)),
    "packed": _sides(lambda g, batch, n: Coordinates.packed(_lengths(g, n))),
    "padded in front": _sides(
        # padding of other lengths may be drawn as a mask, which a call would refuse
        lambda g, batch, n: Coordinates.padded(torch.randint(0, n + 1, (batch,), generator=g), n)._with(padding=None)
    ),
    "gaps": _of(lambda g, batch, n: _rising(g, 1, n, 4)),
    "gaps by row": _of(lambda g, batch, n: _rising(g, batch, n, 3)),
    "shuffled": _of(lambda g, batch, n: torch.randperm(n, generator=g)),
    "shuffled by row": _of(lambda g, batch, n: torch.stack([torch.randperm(n, generator=g) for _ in range(batch)])),
    "repeated": _of(lambda g, batch, n: torch.arange(n) // 3),
    "reversed": _of(lambda g, batch, n: torch.arange(n).flip(0)),
    "all at one": _of(lambda g, batch, n: torch.full((n,), 5)),
    "jumps": _of(_jumps),
    "floats": _of(lambda g, batch, n: torch.rand(batch, n, generator=g).cumsum(1) * 2),
    "doubles": _of(lambda g, batch, n: torch.rand(1, n, generator=g, dtype=torch.float64) * n),
    "whole floats": _of(lambda g, batch, n: torch.arange(n).float()),
    "two axes": _of(_two_axes),
    "huge": _of(lambda g, batch, n: 10**12 + torch.arange(n)),
    "huge gaps": _of(lambda g, batch, n: _rising(g, 1, n, 10**12)),
    "negative": _of(lambda g, batch, n: torch.arange(n) - 10**15),
    "apart": _apart,
    "unordered": _unordered,
    "mixed": _mixed,
}

# ---------------------------------------------------------------- masks


def _holes(g: torch.Generator, *shape: int) -> M.Boolean:
    holes = torch.rand(shape, generator=g) < 0.7
    if holes.numel():
        holes[..., shape[-2] // 2, :] = False
        holes[..., shape[-1] // 3] = False
    return M.Boolean(holes)


def _sparse(g: torch.Generator, n: int, m: int) -> M.Boolean:
    return M.Boolean(torch.rand(n, m, generator=g) < 0.02)


def _ids(g: torch.Generator, batch: int, n: int, m: int) -> M.Documents:
    def side(size: int) -> Tensor:
        return torch.randint(0, 3, (batch, size), generator=g)

    return M.Documents(side(m), side(n))


def _per_row(g: torch.Generator, batch: int, most: int) -> Tensor:
    return torch.randint(0, most + 1, (batch,), generator=g)


MASKS: dict[str, Callable[..., M.Mask | None]] = {
    "none": lambda g, b, h, n, m: None,
    "causal": lambda g, b, h, n, m: M.Causal(),
    "window": lambda g, b, h, n, m: M.Window(40, 9),
    "window of nothing behind": lambda g, b, h, n, m: M.Window(None, 3),
    "narrow window": lambda g, b, h, n, m: M.Window(0, 0),
    "window that keeps the first": lambda g, b, h, n, m: M.Causal() & (M.Window(left=60) | M.KeepFirst(3)),
    "documents": lambda g, b, h, n, m: _ids(g, b, n, m),
    "causal documents": lambda g, b, h, n, m: M.Causal() & _ids(g, b, n, m),
    "padding behind": lambda g, b, h, n, m: M.Padding(_per_row(g, b, m)),
    "padding in front": lambda g, b, h, n, m: M.Causal() & M.Padding(_per_row(g, b, m), "left"),
    "chunked": lambda g, b, h, n, m: M.Chunked(50),
    "prefix": lambda g, b, h, n, m: M.Causal() | M.Prefix(_per_row(g, b, m)),
    "dilated": lambda g, b, h, n, m: M.Causal() & M.Dilated(3),
    "dilated by 12": lambda g, b, h, n, m: M.Dilated(12),
    "holes by head": lambda g, b, h, n, m: _holes(g, b, h, n, m),
    "holes": lambda g, b, h, n, m: _holes(g, n, m),
    "holes for each key": lambda g, b, h, n, m: _holes(g, b, 1, 1, m),
    "sparse": lambda g, b, h, n, m: _sparse(g, n, m),
    "three parts": lambda g, b, h, n, m: (M.Causal() & M.Window(5)) | M.KeepFirst(2) | _sparse(g, n, m),
    "three joined": lambda g, b, h, n, m: M.Causal() & M.Padding(_per_row(g, b, m)) & _holes(g, b, 1, n, m),
    "two and two": lambda g, b, h, n, m: (M.Window(9) | M.KeepFirst(2)) & (M.Window(70, 4) | M.KeepFirst(1)),
    "nothing": lambda g, b, h, n, m: M.Boolean(torch.zeros(1, 1, 1, 1, dtype=torch.bool)),
}

# ---------------------------------------------------------------- terms


def term(name: str, label: str, draw: Draws, g: torch.Generator, case: Case, axes: int) -> list[T.Term]:
    """A term of that name; its leaves are called after the label."""
    b, h, kv, n, m, d, dv = (
        case.batch, case.heads, case.kv_heads, case.n, case.m, case.head_dim, case.v_dim,
    )  # fmt: skip
    r = random.Random(case.seed * 31 + len(draw.leaves))
    reach, axis, own = r.choice(REACHES), r.randrange(axes), r.choice((1, h))

    def leaf(what: str, *shape: int, size: float = 1.0) -> Tensor:
        return draw(f"{label} {what}", *shape, size=size)

    def mapped() -> T.Map:
        kind = name.split(" by ")[1] if " by " in name else r.choice(("clip", "one-sided"))
        if kind == "steps":
            return _steps(r, axis)
        if kind == "class":
            return T.Classes(torch.randint(0, 3, (b, n), generator=g), torch.randint(0, 3, (1, m), generator=g), 3)
        if kind == "grid":
            return T.Grid((T.Clip(-3, 3, axes - 1), T.Clip(-2, 2, 0)))
        return T.Clip(-reach, reach, axis) if kind == "clip" else T.Clip(-reach, 2, axis)

    def rows(*width: int) -> T.Rows:
        by = mapped()
        return T.Rows(leaf("table", own, by.count, *width, size=d**-0.25 if width else 1.0), by)

    if name == "temperature":
        return [T.QueryScale(leaf("factor", r.choice((1, b)), own, r.choice((1, n)), size=0.5) + 1)]
    if name.startswith("keys"):
        if name == "keys with u":
            return [T.RelativeKeys(rows(d), query_bias=leaf("u", own, d))]
        if name == "keys, own query":
            return [T.RelativeKeys(rows(24), leaf("u", h, 24), leaf("query", b, h, n, 24))]
        return [T.RelativeKeys(rows(d))]
    if name == "sinusoids":
        rates = torch.tensor([1.0, 0.3, 0.01])
        u = leaf("u", own, d) if r.random() < 0.5 else None
        return [T.RelativeKeys(T.Sinusoids(leaf("weight", own, d, 6, size=0.3), rates, axis), query_bias=u)]
    if name.startswith("queries"):
        if name == "queries, own key":
            return [T.RelativeQueries(rows(40), leaf("key", b, kv, m, 40))]
        return [T.RelativeQueries(rows(d))]
    if name.startswith("values"):
        return [T.RelativeValues(rows(dv))]
    if name == "tokens":
        kind = r.choice(("queries", "keys", "both"))
        queries = leaf("queries", r.choice((1, b)), own, n) if kind != "keys" else None
        return [T.TokenBias(queries, leaf("keys", b, r.choice((1, h)), m) if kind != "queries" else None)]
    if name == "contextual positions":
        # a count has the errors of all scores of its row, which vectors far apart would magnify
        return [T.ContextualPositions(leaf("vectors", own, r.choice((1, 3, 20, 64)), d, size=d**-0.5))]
    if name == "gated path":
        width, slope = r.choice((1, 3, 8, 17)), torch.linspace(0.1, 1, h)
        sides = leaf("query", r.choice((1, b)), h, n, width), leaf("path", r.choice((1, b)), h, m, width)
        return [T.GatedPath(*sides, slope)]
    if name == "slopes by content":
        gates = r.choice((("keys",), ("queries",), ("keys", "queries")))
        weights = [leaf(side, h, d, size=d**-0.5) if side in gates else None for side in ("keys", "queries")]
        return [T.ContentSlope(leaf("slope", h, size=0.1 * d**-0.5), *weights, axis)]
    if name.startswith("head network"):
        hidden, width = r.choice((1, 3, 8, 21)), r.choice((1, 1, 3, 5, 25))
        # not "power": the reference computes these biases in float64, and leaves no naive error to allow for
        kinds = r.sample(
            ("clip", "steps", "classes", "linear", "logarithm", "piecewise", "cosines"), r.choice((1, 1, 2))
        )
        if case.positions in FAR:
            kinds = ["piecewise" if kind in WAVES else kind for kind in kinds]
        if name != "head network":
            kinds[0] = "stretched"

        def addend(number: int, kind: str) -> T.DistanceBias:
            def own_leaf(what: str, *shape: int, size: float = 1.0) -> Tensor:
                return leaf(f"{number} {what}", *shape, size=size)

            return T.DistanceBias(_bias(kind, own_leaf, reach, axis, own, r, g, case, axes))

        biases = tuple(addend(number, kind) for number, kind in enumerate(kinds))
        # the scores that come out have the errors of all that go in
        into = leaf("into", hidden, 2 * h, width, size=(2 * h * width) ** -0.5)
        out = leaf("out", h, hidden, width, size=(hidden * width) ** -0.5)
        return [T.HeadNetwork(biases, into, leaf("into bias", hidden), out, leaf("out bias", h))]
    if name == "sink by query":
        return [T.Sink(leaf("logits", r.choice((1, b)), own, r.choice((1, n))))]
    if name.startswith("dense"):
        by_row, by_column = name != "dense by column", name != "dense by row"
        rows_of_batch, of_heads = (1, 1) if name == "dense for all" else (r.choice((1, b)), own)
        shape = (rows_of_batch, of_heads, n if by_row else 1, m if by_column else 1)
        return [T.DenseBias(leaf("values", *shape))]
    return [T.DistanceBias(_bias(name, leaf, reach, axis, own, r, g, case, axes))]


def _bias(
    name: str, leaf: Callable[..., Tensor], reach: int, axis: int, own: int, r: random.Random, g: torch.Generator,
    case: Case, axes: int,
) -> T.Bias:  # fmt: skip
    positive = torch.nn.functional.softplus
    by: T.Map
    if name in ("clip", "clip one-sided"):
        by = (
            T.Clip(-reach, reach, axis)
            if name == "clip"
            else T.Clip(*r.choice(((-reach, 0), (3, 40), (-50, -20))), axis)
        )
        return T.Rows(leaf("table", own, by.count), by)
    if name in ("steps", "whole steps"):
        by = _steps(r, axis) if name == "steps" else T.Bucketize(torch.tensor([-90, -33, -2, 0, 1, 7, 120]), axis)
        return T.Rows(leaf("table", own, by.count), by)
    if name == "grid":
        by = T.Grid((T.Clip(-5, 5, 0), T.Clip(-2, 2, axes - 1)))
        return T.Rows(leaf("table", own, by.count), by)
    if name == "classes":
        by = T.Classes(
            torch.randint(0, 4, (1, case.n), generator=g), torch.randint(0, 4, (case.batch, case.m), generator=g), 4
        )
        return T.Rows(leaf("table", own, by.count), by)
    other = r.choice((1, case.heads))
    if name == "linear":
        return T.Linear(leaf("past", own, size=0.02), leaf("future", other, size=0.02), axis)
    if name == "logarithm":
        return T.Log(leaf("weight", own), positive(leaf("rate", other)), axis)
    if name == "power":
        return T.Power(leaf("weight", own, size=0.1), positive(leaf("exponent", other)) * 0.7, axis)
    if name == "cosines":
        rates = torch.tensor([1.0, 0.3, 0.05, 0.01, 3.0], dtype=torch.float64)
        return T.Cosines(leaf("weight", own, 5, size=0.5), rates, axis)
    if name == "stretched":
        edges = torch.tensor([-math.inf, -0.6, 0.0, 0.2, 0.5, 0.5, 1.1, math.inf])
        slope, first = leaf("slope", own, 9), leaf("first", own)
        steps = (slope[:, :-1] - slope[:, 1:]) * edges.nan_to_num(posinf=0, neginf=0).to(slope.dtype)
        intercept = first[:, None] + torch.cat([torch.zeros_like(slope[:, :1]), steps.cumsum(-1)], -1)
        stretch = leaf("stretch", r.choice((1, case.batch)), case.n, size=0.4)
        return T.Stretched(edges, intercept, slope, positive(leaf("rate", 1)), stretch, axis)
    knots = torch.tensor([-150.5, -20.0, -1.5, 0.0, 4.0, 77.0])
    return T.Piecewise(knots, leaf("values", own, 6), axis)


def _steps(r: random.Random, axis: int) -> T.Bucketize:
    """Rows that grow wider with the distance, as T5 has them."""
    far = [math.ceil(8 * (r.choice((64, 128, 500)) / 8) ** (i / 8)) for i in range(9)]
    past = [-float(x) + 1 for x in reversed(far)]
    return T.Bucketize(torch.tensor(sorted({*past, *map(float, range(-6, 8)), *map(float, far)})), axis)


# ---------------------------------------------------------------- reductions


# ---------------------------------------------------------------- comparing


def reasons(case: Case, dtype: torch.dtype) -> list[str]:
    return KERNELS["cpu"].why_not(Problem.of(case.make(dtype, torch.float32).call))


Piece = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)
ParallelFor = ctypes.CFUNCTYPE(
    ctypes.c_int32, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p
)
"""torch_parallel_for: begin, end, grain, a function for a piece, its context."""


@contextmanager
def pool_of(parallel_for: Any) -> Iterator[None]:
    """Inside, the library spreads its work by a function of the test's own."""
    c, held = _library.load().c, ParallelFor(parallel_for)
    c.hw_use_pool(ctypes.cast(held, ctypes.c_void_p))
    try:
        yield
    finally:
        c.hw_use_pool(_library._torch_pool()[0])


@contextmanager
def heads_shared_out() -> Iterator[None]:
    """Inside, small heads are shared out among workers, as large ones are, though one thread does all of it."""

    def parallel_for(begin: int, end: int, grain: int, piece: int, context: int) -> int:
        Piece(piece)(begin, end, context)
        return 0

    with pool_of(parallel_for), pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "get_num_threads", lambda: 19)  # which comes out even for no number of heads drawn here
        yield


SHARING = [pytest.param(nullcontext, id="whole heads"), pytest.param(heads_shared_out, id="heads shared out")]


def errors(case: Case, dtype: torch.dtype, factor: float = 5.0, units: float = 32.0) -> dict[str, str]:
    """Results that are wrong by more than ``factor`` times the naive error and ``units`` in the last place."""
    found = case.make(dtype, torch.float32).results("cpu")
    exact = case.make(torch.float64).results("reference")
    if dtype == torch.float32:
        naive = case.make(dtype).results("reference")
    else:
        plain = replace(case, lse=False, dropout=0.0)
        naive = plain.make(dtype).results(None)
        base = exact if not case.dropout and not case.lse else plain.make(torch.float64).results("reference")
    wrong = {}
    assert found.keys() == exact.keys()
    for name, value in found.items():
        expected = exact[name]
        if value.shape != expected.shape:
            wrong[name] = f"shape {tuple(value.shape)}, expected {tuple(expected.shape)}"
            continue
        if not value.numel():
            continue
        there = torch.isfinite(expected)
        if not torch.equal(value[~there].double().nan_to_num(7.0), expected[~there].nan_to_num(7.0)):
            wrong[name] = "differs where the exact result is not finite"
            continue
        error = (value.double() - expected)[there].abs()
        if not error.numel():
            continue
        size = expected[there].abs().max().item()
        if dtype == torch.float32:
            usual = (naive[name].double() - expected)[there].abs().max().item()
        elif name in naive:
            usual = (naive[name].double() - base[name]).nan_to_num(0).abs().max().item() / (1 - case.dropout)
        else:
            usual = 0.0
        # gradients are differences of products over v's width, which may cancel to nothing
        epsilon, least = torch.finfo(dtype).eps, 2 * case.v_dim**0.5 if name.startswith("d ") else 1e-3
        allowed = factor * usual + units * epsilon * max(size, least)
        if not error.max().item() <= allowed:
            wrong[name] = f"off by {error.max().item():.3g}, allowed {allowed:.3g} (naive {usual:.3g}, size {size:.3g})"
    return wrong
