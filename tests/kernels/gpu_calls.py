"""Calls of every path of the Triton kernel, for tests that only a GPU can decide; without one they are interpreted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import headway as hw
from headway import masks as M
from headway import terms as T
from headway.coordinates import Coordinates

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
BATCH, HEADS, KV, WIDTH = 2, 4, 2, 64
HALF = torch.bfloat16


def draw(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, device=DEVICE).to(dtype).requires_grad_()


def inputs(n: int, dtype: torch.dtype = HALF, batch: int = BATCH, heads: int = HEADS, kv: int = KV) -> list[Tensor]:
    return [draw(batch, h, n, WIDTH, dtype=dtype) for h in (heads, kv, kv)]


def at(n: int) -> dict[str, Any]:
    """Positions that rise by one."""
    return {"q_positions": Coordinates.span(n, device=DEVICE), "k_positions": Coordinates.span(n, device=DEVICE)}


def gaps(n: int) -> dict[str, Any]:
    side = Coordinates.of(torch.arange(n, device=DEVICE) * 2, n)
    return {"q_positions": side, "k_positions": side}


def image(n: int, width: int = 64) -> dict[str, Any]:
    """Places of an image in the order of its rows."""
    slots = torch.arange(n, device=DEVICE)
    side = Coordinates.of(torch.stack([slots // width, slots % width], -1)[None], n)
    return {"q_positions": side, "k_positions": side}


def blocks(n: int) -> Tensor:
    """A mask with a part of the blocks of 64 in sight."""
    side = torch.arange(n, device=DEVICE) // 64
    return (3 * side[:, None] + 5 * side[None, :]) % 7 < 3


def rows() -> T.DistanceBias:
    return T.DistanceBias(T.Rows(draw(HEADS, 65), T.Clip(-60, 4)))


def relative(tables: list[Tensor]) -> tuple[Any, ...]:
    kinds = (T.RelativeKeys, T.RelativeQueries, T.RelativeValues)
    return tuple(kind(T.Rows(table, T.Clip(-16, 16))) for kind, table in zip(kinds, tables, strict=False))


def rates() -> Tensor:
    return torch.logspace(0, -4, 32, device=DEVICE)


def positive(*shape: int) -> Tensor:
    return torch.rand(*shape, device=DEVICE).requires_grad_()


EDGES = (0.2, 0.5, 0.7, 1.0, 1.4, 1.7, 2.0)


def pieces(n: int) -> list[Tensor]:
    """The intercepts, slopes, rate and stretches of straight pieces that meet at the edges."""
    slope = draw(HEADS, len(EDGES) + 1)
    steps = -slope.detach().diff() * torch.tensor(EDGES, device=DEVICE)
    intercept = torch.nn.functional.pad(steps.cumsum(-1), (1, 0)).requires_grad_()
    return [intercept, slope, positive(1), positive(1, n)]


CALLS: dict[str, Callable[[int], tuple[list[Tensor], dict[str, Any]]]] = {
    "plain": lambda n: ([], {"mask": M.Causal()}),
    "table": lambda n: ([(bias := rows()).values.table], {"terms": (bias,), "mask": M.Causal(), **at(n)}),
    "table with gaps": lambda n: ([(bias := rows()).values.table], {"terms": (bias,), **gaps(n)}),
    "one slope": lambda n: (
        [slope := draw(HEADS)],
        {"terms": (T.DistanceBias(T.Linear(slope, slope)),), "mask": M.Causal(), **at(n)},
    ),
    "logarithm with gaps": lambda n: (
        [*(parts := [draw(HEADS), positive(HEADS)])],
        {"terms": (T.DistanceBias(T.Log(*parts)),), "mask": M.Causal(), **gaps(n)},
    ),
    "rows of an image": lambda n: (
        [table := draw(HEADS, 7 * 19)],
        {
            "terms": (T.DistanceBias(T.Rows(table, T.Grid((T.Clip(-3, 3), T.Clip(-9, 9, axis=1))))),),
            **image(n),
        },
    ),
    "rotations": lambda n: (
        [],
        {"encoding": hw.encoding("rope", head_dim=WIDTH).to(DEVICE), "mask": M.Causal(), **at(n)},
    ),
    "documents": lambda n: ([], {"mask": M.Causal() & M.Documents(torch.arange(n, device=DEVICE) // 70)}),
    "blocks": lambda n: ([], {"mask": M.Boolean(blocks(n))}),
    "two slopes": lambda n: (
        [slope := draw(HEADS), other := draw(HEADS)],
        {"terms": (T.DistanceBias(T.Linear(slope, other)),), "mask": M.Window(50, 50), **at(n)},
    ),
    "dense": lambda n: ([bias := draw(HEADS, n, n, dtype=HALF)], {"terms": (T.DenseBias(bias),), "mask": M.Causal()}),
    "relative keys, queries and values": lambda n: (
        [*(tables := [draw(1, 33, WIDTH), draw(HEADS, 33, WIDTH), draw(1, 33, WIDTH)])],
        {"terms": relative(tables), "mask": M.Causal(), **at(n)},
    ),
    "relative keys and values with gaps": lambda n: (
        [*(tables := [draw(1, 33, WIDTH), draw(1, 33, WIDTH)])],
        {"terms": relative([tables[0], tables[0], tables[1]])[::2], "mask": M.Causal(), **gaps(n)},
    ),
    "sinusoids": lambda n: (
        [weight := draw(HEADS, WIDTH, 64)],
        {"terms": (T.RelativeKeys(T.Sinusoids(weight, rates())),), "mask": M.Causal(), **at(n)},
    ),
    "stretched": lambda n: (
        [*(parts := pieces(n))],
        {"terms": (T.DistanceBias(T.Stretched(torch.tensor(EDGES, device=DEVICE), *parts)),), **at(n)},
    ),
    "tokens, sinks and a cap": lambda n: (
        [*(parts := [draw(BATCH, HEADS, n), draw(BATCH, 1, n), draw(BATCH, HEADS, n), draw(HEADS)])],
        {
            "terms": (T.TokenBias(parts[0], parts[1]), T.QueryScale(parts[2])),
            "sink": parts[3],
            "soft_cap": 5.0,
            "mask": M.Causal() | M.KeepFirst(3),
        },
    ),
}
"""For each path what is learned, and the arguments of a call of n tokens."""


def both_ways(
    tensors: list[Tensor], learned: list[Tensor], arguments: dict[str, Any], kernel: str = "triton"
) -> list[Tensor]:
    """The output and every gradient."""
    out = hw.attention(*tensors, kernel=kernel, **arguments)
    return [out, *torch.autograd.grad(out.square().sum(), [*tensors, *learned])]
