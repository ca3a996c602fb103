"""Small layers of encodings: in float64, which autocast does not change, and in Python numbers for the oracles."""

from __future__ import annotations

import math

import torch.nn.functional as F
from torch import Tensor, nn


def linear(layer: nn.Module, x: Tensor) -> Tensor:
    """A linear layer in float64."""
    assert isinstance(layer, nn.Linear)
    return F.linear(x.double(), layer.weight.double(), None if layer.bias is None else layer.bias.double())


def normed(norm: nn.Module | None, x: Tensor) -> Tensor:
    """A layer norm in float64, or x if there is none."""
    if norm is None:
        return x.double()
    assert isinstance(norm, nn.LayerNorm)
    return F.layer_norm(x.double(), x.shape[-1:], norm.weight.double(), norm.bias.double(), norm.eps)


def linear_by_hand(layer: nn.Module, x: list[float]) -> list[float]:
    """A linear layer computed with Python numbers."""
    assert isinstance(layer, nn.Linear)
    bias = [0.0] * layer.out_features if layer.bias is None else layer.bias.tolist()
    rows = zip(layer.weight.tolist(), bias, strict=True)
    return [sum(w * value for w, value in zip(row, x, strict=True)) + b for row, b in rows]


def normed_by_hand(norm: nn.Module | None, x: list[float]) -> list[float]:
    """A layer norm computed with Python numbers, or x if there is none."""
    if norm is None:
        return x
    assert isinstance(norm, nn.LayerNorm)
    mean = sum(x) / len(x)
    spread = math.sqrt(sum((value - mean) ** 2 for value in x) / len(x) + norm.eps)
    gains = zip(x, norm.weight.tolist(), norm.bias.tolist(), strict=True)
    return [(value - mean) / spread * gain + bias for value, gain, bias in gains]
