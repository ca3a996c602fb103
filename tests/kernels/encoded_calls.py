"""Arguments of ``attention`` with an encoding whose parameters hide nothing, for tests below ``attention``."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from headway.coordinates import Coordinates
from headway.masks import Causal
from headway.positions import ENCODINGS
from headway.positions._base import IN_ATTENTION as HOOKS
from headway.testing.inputs import Layer, on_axes, randomized

IN_ATTENTION = [name for name, kind in ENCODINGS.items() if kind.examples()[0].acts & HOOKS]
"""The encodings that do something in attention."""


def encoded(name: str, n: int = 9, dtype: torch.dtype = torch.float64) -> tuple[list[Tensor], dict[str, Any]]:
    """q, k, v and the other arguments of a causal call; gradients reach ``arguments["encoding"]``'s parameters."""
    generator = torch.Generator().manual_seed(0)
    layer = Layer(randomized(ENCODINGS[name].examples()[0], generator, dtype), generator, dtype).eval()
    at = on_axes(Coordinates.span(n), layer.encoding.axes)
    x = layer.embed(torch.randn(2, n, layer.sizes.embed_dim, generator=generator, dtype=torch.float64).to(dtype), at)
    x = x.detach()
    qkv = [side.detach().requires_grad_() for side in layer.project(x)]
    where = {"q_positions": at, "k_positions": at, "q_input": x, "k_input": x}
    return qkv, {"encoding": layer.in_attention, "mask": Causal(), **where}
