"""The bytes that a capture will take, before the model runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..call import make_call
from ..coordinates import Coordinates
from ..errors import HeadwayError, need_positive
from ..masks import Window
from ._numbers import slots_of, whole
from ._run import statistics_of

HEADS = ("num_heads", "num_attention_heads", "n_heads", "nhead", "n_head")
KV_HEADS = ("num_kv_heads", "num_key_value_heads")
HEAD_DIM = ("head_dim", "attention_head_size", "key_value_proj_dim", "d_kv")
WIDTH = ("embed_dim", "hidden_size", "d_model", "n_embd")
"""The names that libraries give to the sizes of an attention module."""


def heads_of(module: nn.Module) -> int | None:
    """The number of query heads of an attention module; None if unknown."""
    return _said(module, HEADS)


def _said(module: nn.Module, names: tuple[str, ...]) -> int | None:
    values = [getattr(place, name, None) for place in (module, getattr(module, "config", None)) for name in names]
    return next((x for x in values if isinstance(x, int) and not isinstance(x, bool)), None)


@dataclass
class Shape:
    """The sizes of an attention module that memory depends on, without a reference to the module."""

    name: str
    heads: int | None
    kv_heads: int | None = None
    head_dim: int | None = None

    @classmethod
    def of(cls, module: nn.Module, name: str) -> Shape:
        """The sizes of a module."""
        heads, width = heads_of(module), _said(module, WIDTH)
        head_dim = _said(module, HEAD_DIM)
        if head_dim is None and width is not None and heads:
            head_dim = width // heads
        return cls(name, heads, _said(module, KV_HEADS) or heads, head_dim)


@dataclass
class Estimate:
    """The memory that a capture of a call will take, for each value of ``keep``."""

    model: str
    """The name of the model's class."""
    shapes: Sequence[Shape]
    keep: str
    dtype: torch.dtype
    statistics: Any
    heads: Sequence[int] | None
    rows: Any

    def __call__(self, batch: int, n: int, m: int | None) -> int:
        """The bytes of a call of the model on ``batch`` rows of n queries and m keys."""
        m = n if m is None else m
        for name, size in (("batch", batch), ("n", n), ("m", m)):
            if whole(size) is None:
                raise HeadwayError(f"{name} is {size!r}: give a whole number")
        need_positive(batch=batch, n=n)
        if not self.shapes:
            raise HeadwayError(
                f"no module of {self.model} is known to be attention before it runs: read size after a short call"
            )
        of_statistics = self._of_statistics(batch, n, m) if self.keep == "statistics" else 0
        total = bytes_in(self.statistics) if self.keep == "statistics" else 0
        for shape in self.shapes:
            if shape.heads is None or shape.kv_heads is None or shape.head_dim is None:
                raise HeadwayError(f"{shape.name!r} does not say its heads: read size after a short call")
            if self.keep == "weights":
                heads = shape.heads if self.heads is None else len(self.heads)
                rows = n if self.rows is None else len(set(slots_of(self.rows, n)))
                total += batch * heads * rows * m * self.dtype.itemsize
            elif self.keep in ("qk", "qkv"):
                total += batch * (shape.heads * n + shape.kv_heads * m) * shape.head_dim * self.dtype.itemsize
                norms = batch * shape.heads * m * max(self.dtype.itemsize, 4)
                total += norms if self.keep == "qkv" else 0
            elif self.keep == "gradients":
                total += batch * shape.heads * n * max(self.dtype.itemsize, 4)
            else:
                total += shape.heads * of_statistics
        return total

    def _of_statistics(self, batch: int, n: int, m: int) -> int:
        """The bytes of the statistics of a head: measured on a call in which a query sees a single key."""
        q, k = torch.zeros(batch, 1, n, 1, dtype=self.dtype), torch.zeros(batch, 1, m, 1, dtype=self.dtype)
        at = Coordinates.span(n), Coordinates.span(m)
        call = make_call(q, k, k, mask=Window(0, 0), q_positions=at[0], k_positions=at[1])
        statistics = statistics_of(call, self.statistics)
        return bytes_in([statistics.counted, *(statistics[name] for name in statistics)])


def bytes_in(part: Any) -> int:
    """The bytes of the different tensors in records, lists and dictionaries."""
    tensors: dict[int, Tensor] = {}

    def look(x: Any) -> None:
        if isinstance(x, Tensor):
            tensors[id(x)] = x
        elif isinstance(x, dict):
            for value in x.values():
                look(value)
        elif isinstance(x, (list, tuple)):
            for value in x:
                look(value)
        elif hasattr(x, "__dict__") and not isinstance(x, (type, nn.Module)) and not callable(x):
            look(vars(x))

    look(part)
    return sum(x.numel() * x.element_size() for x in tensors.values())
