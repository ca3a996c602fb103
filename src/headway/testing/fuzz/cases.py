"""Random calls of attention: their fields, how these are drawn, and which values are simpler."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from functools import cache
from random import Random
from typing import Any

import torch

from ...kernels import KERNELS
from ...positions import ENCODINGS, PositionEncoding
from ...positions._base import IN_ATTENTION
from ..kernels import term_names
from .layouts import LAYOUTS
from .masks import MASKS

DTYPES = ("float32", "bfloat16", "float16", "float64")
PLACES = ("stream", "far", "gaps", "packed", "cross")
"""The positions of tokens: 0 … m − 1, a million further, in no order, in documents, or queries apart from keys."""
GRADIENTS = ("none", "all", "q", "k and v", "rest")
"""Which tensors require a gradient; the rest are those of terms and encodings, and sinks."""
LSE = ("no", "with the sink", "without the sink")
HEAD_DIMS = (1, 2, 3, 8, 16, 17, 32, 40, 64, 80, 96, 128, 256)
EDGES = (15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257)
"""Lengths near the sizes of vectors and blocks."""
MOST = 1 << 21
"""Scores of a case, at most."""


@dataclass(frozen=True, repr=False)
class Case:
    """A call of attention; every tensor follows from its fields."""

    term: str = "none"
    """Names of ``term_names()``, joined by " + ", or "none"."""
    encoding: str = "none"
    """The name of an encoding and the number of its example, as "rope 0", which set heads and head_dim; or "none"."""
    mask: str = "none"
    """Names of ``MASKS``, joined by " & " or " | "."""
    batch: int = 1
    kv_heads: int = 1
    group: int = 1
    """Query heads for each head of keys and values."""
    n: int = 1
    m: int = 1
    head_dim: int = 8
    v_dim: int = 8
    dtype: str = "float32"
    layout: str = "contiguous"
    """The layout of q, k and v in memory, one of ``LAYOUTS``."""
    places: str = "stream"
    spread: float = 1.0
    """A power of two by which queries are multiplied."""
    sink: str = "none"
    """"none", "heads" or "queries"."""
    soft_cap: float | None = None
    scale: float | None = None
    dropout: float = 0.0
    lse: str = "no"
    gradients: str = "none"
    upstream: str = "contiguous"
    """The layout of the output's gradient in memory: "contiguous", or "expanded" from one number."""
    kernel: str = "auto"
    device: str = "cpu"
    """Where the kernel computes. The expected results are computed on the CPU."""
    poisoned: bool = False
    """Whether keys and values that no query sees are NaN for the kernel."""
    seed: int = 0

    def __repr__(self) -> str:
        own = [(field.name, getattr(self, field.name), field.default) for field in fields(self)]
        return f"Case({', '.join(f'{name}={value!r}' for name, value, default in own if value != default)})"

    def simpler(self, name: str) -> Iterator[Case]:
        """Yields cases in which the field with this name is simpler than here, the simplest first."""
        value, default = getattr(self, name), getattr(Case, name)
        counts = isinstance(value, int) and name != "seed"
        tries: list[Any] = [default] if value != default and not (counts and value < default) else []
        if name in ("mask", "term"):
            tries += [part for part in re.split(r" [&|+] ", value) if part != value]
        elif counts:
            tries += sorted({0, value // 2, value - 1} - {value, default, -1})
        for other in tries:
            yield replace(self, **{name: other})


@cache
def encodings() -> dict[str, PositionEncoding]:
    """The examples of all encodings that act within attention, by name and number."""
    return {
        f"{name} {number}": example
        for name, kind in ENCODINGS.items()
        for number, example in enumerate(kind.examples())
        if example.acts & IN_ATTENTION
    }


def draw(random: Random) -> Case:
    """Draws a case."""
    what = random.random()
    n, m = _length(random), _length(random)
    places = random.choice(PLACES)
    case = Case(
        term=_term(random) if what < 0.45 else "none",
        encoding=random.choice(list(encodings())) if what > 0.65 else "none",
        mask=_mask(random),
        batch=random.choice((0, *[1] * 10, *[2] * 10, *[3] * 4)),
        kv_heads=random.choice((1, 1, 2, 3)),
        group=random.choice((1, 1, 2, 4)),
        n=n if places == "cross" else min(n, m),
        m=m if places == "cross" else max(n, m),
        head_dim=(dim := random.choice(HEAD_DIMS)),
        v_dim=random.choice((dim, dim, *HEAD_DIMS[:9])),
        dtype=random.choices(DTYPES, (5, 4, 3, 1))[0],
        layout=random.choice(("contiguous", *LAYOUTS)),
        places=places,
        spread=random.choice((1.0, 1.0, 0.125, 4.0)),
        sink=random.choices(("none", "heads", "queries"), (6, 1, 1))[0],
        soft_cap=random.choice((None, None, None, 0.5, 30.0)),
        scale=random.choice((None, None, None, 0.0, 0.25, -1.0)),
        dropout=random.choice((0.0, 0.0, 0.0, 0.1, 0.75)),
        lse=random.choices(LSE, (6, 1, 1))[0],
        gradients=random.choices(GRADIENTS, (4, 6, 1, 1, 1))[0],
        upstream=random.choice(("contiguous", "expanded")),
        kernel=random.choices(("auto", *KERNELS), (6, *(4 if name == "cpu" else 1 for name in KERNELS)))[0],
        seed=random.randrange(1 << 31),
    )
    while case.batch * case.kv_heads * case.group * case.n * case.m > MOST:
        case = replace(case, n=case.n // 2, m=case.m // 2)
    return case


def _length(random: Random) -> int:
    kind = random.random()
    return random.randrange(10) if kind < 0.5 else random.choice(EDGES) if kind < 0.85 else random.randrange(10, 700)


def _term(random: Random) -> str:
    names = [name for name in term_names() if name != "none"]
    return " + ".join(random.choice(names) for _ in range(random.choice((1, 1, 2, 3))))


def _mask(random: Random) -> str:
    names = [*MASKS]
    kind = random.random()
    if kind < 0.25:
        return "none"
    if kind < 0.7:
        return random.choice(names)
    return random.choice((" & ", " | ")).join(random.sample(names, random.choice((2, 2, 3))))


def dtype_of(case: Case) -> torch.dtype:
    """The dtype of q, k and v."""
    dtype: torch.dtype = getattr(torch, case.dtype)
    return dtype
