"""Captures of small random models, for reports that tests write."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import headway as hw
from headway.inspection import Seen, capture

FORMS: dict[str, dict[str, Any]] = {
    "none": {},
    "causal": {"mask": hw.masks.Causal()},
    "window": {"mask": hw.masks.Causal() & hw.masks.Window(9, 0)},
    "two ranges": {"mask": hw.masks.Causal() & (hw.masks.Window(5, 0) | hw.masks.KeepFirst(3))},
    "rope": {"encoding": "rope", "mask": hw.masks.Causal()},
    "alibi": {"encoding": "alibi", "mask": hw.masks.Causal()},
    "both ways": {"encoding": "alibi"},
    "cap": {"soft_cap": 2.0, "encoding": "alibi", "mask": hw.masks.Causal()},
}
"""Arguments of attention whose heads can be exact."""


class Calls(nn.Module):
    """Layers that attend to random queries and keys of their own."""

    def __init__(self, n: int, layers: int = 2, heads: int = 4, kv_heads: int = 2, width: int = 16) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(3)

        def drawn(count: int) -> torch.Tensor:
            x = torch.randn(1, count, n, width, generator=generator)
            return x + 2 * torch.randn(1, count, 1, width, generator=generator)  # a mean that is not 0

        self.sides = [(1.5 * drawn(heads), drawn(kv_heads), drawn(kv_heads)) for _ in range(layers)]
        self.layers = nn.ModuleList(nn.Identity() for _ in range(layers))
        self.arguments: dict[str, Any] = {}
        for number, layer in enumerate(self.layers):
            layer.register_forward_hook(self._attending(number))

    def _attending(self, number: int) -> Callable[..., torch.Tensor]:
        return lambda module, given, output: hw.attention(*self.sides[number], **self.arguments)

    def forward(self) -> torch.Tensor:
        for layer in self.layers:
            out = layer(torch.zeros(1))
        return out


def seen(n: int, layers: int = 2, heads: int = 4, kv_heads: int = 2, width: int = 16, **arguments: Any) -> Seen:
    """What a capture of random layers saw."""
    model = Calls(n, layers, heads, kv_heads, width)
    model.arguments = arguments
    with torch.no_grad(), capture(model, keep="qk") as found:
        model()
    return found
