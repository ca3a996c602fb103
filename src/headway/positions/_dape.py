"""The base class of encodings that correct scores and biases of all heads by a small network that reads both."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from ..coordinates import Coordinates
from ..errors import HeadwayError, need_positive
from ..terms import DistanceBias, HeadNetwork
from ._base import Input, Pair, PositionEncoding, Terms
from ._encodings.alibi import ALiBi


class DataAdaptive(PositionEncoding):
    """Computes score = z + B + f([z; B]) from the scores z and another encoding's bias B, of all heads together.

    f is two convolutions over ``width`` keys, with 2·num_heads, ``hidden`` and num_heads channels, and a leaky ReLU
    (slope 0.01) between them. Before each convolution, masked entries are 0.

    Args:
        num_heads: the number of query heads, at least 1.
        bias: the encoding whose bias is B; ALiBi if None.
        hidden: the number of hidden channels, at least 1.
        width: the number of keys that each convolution reads, odd.

    Raises:
        HeadwayError: if a size is below 1, width is even, or ``bias`` is not an encoding that acts through terms only.
    """

    extrapolates = False
    causal_only = True

    def __init__(self, num_heads: int, bias: PositionEncoding | None, hidden: int, width: int) -> None:
        super().__init__()
        need_positive(num_heads=num_heads, hidden=hidden, width=width)
        if width % 2 == 0:
            raise HeadwayError(f"width is {width}: it must reach as far to either side, give an odd number, such as 3")
        bias = ALiBi(num_heads) if bias is None else bias
        if not isinstance(bias, PositionEncoding) or bias.acts - {"terms", "locate"} or "terms" not in bias.acts:
            raise HeadwayError(f"bias is {bias!r}: give an encoding that adds only biases, such as ALiBi({num_heads})")
        self.num_heads, self.hidden, self.width, self.bias = num_heads, hidden, width, bias
        self.axes, self.reads_input = bias.axes, bias.reads_input
        self.foreign = self.foreign or bias.foreign
        self.into = _uniform(hidden, 2 * num_heads, width, fan_in=2 * num_heads * width)
        self.into_bias = _uniform(hidden, fan_in=2 * num_heads * width)
        self.out = _uniform(num_heads, hidden, width, fan_in=hidden * width)
        self.out_bias = _uniform(num_heads, fan_in=hidden * width)

    def relocate(
        self, q_at: Coordinates, k_at: Coordinates, q_input: Input = None, k_input: Input = None
    ) -> tuple[Coordinates, Coordinates]:
        """Returns both sides where the bias relocates them."""
        q_at, k_at = self.bias._relocated(self._for_bias(q_at), self._for_bias(k_at), q_input, k_input)
        return q_at.placed_by(self, q_at.tables), k_at.placed_by(self, k_at.tables)

    def _for_bias(self, coordinates: Coordinates) -> Coordinates:
        """Returns the coordinates as the bias has placed them."""
        placed = self.place(coordinates)
        return placed.placed_by(self.bias, placed.tables)

    def locate(self, coordinates: Coordinates) -> Coordinates:
        """Returns the coordinates as the bias locates them."""
        return self.bias._located(coordinates)

    def tables(self, coordinates: Coordinates) -> Any:
        """Returns the tables of the bias."""
        return self.bias.tables_of(coordinates)

    def terms(self, q_at: Coordinates, k_at: Coordinates, q_input: Input = None, k_input: Input = None) -> Terms:
        """Returns one term with the bias and the network.

        Raises:
            HeadwayError: if the bias has a term that is not a DistanceBias.
        """
        bias_terms = self.bias._terms_of(self._for_bias(q_at), self._for_bias(k_at), q_input, k_input)
        if not all(isinstance(term, DistanceBias) for term in bias_terms):
            said = ", ".join(type(term).__name__ for term in bias_terms)
            raise HeadwayError(f"the bias has the terms {said}: give one with DistanceBias only, such as ALiBi")
        biases = tuple(term for term in bias_terms if isinstance(term, DistanceBias))
        return (HeadNetwork(biases, self.into, self.into_bias, self.out, self.out_bias),)

    def oracle(self, pair: Pair) -> float:
        H, reach = self.num_heads, self.width // 2
        into, out = self.into.double(), self.out.double()

        def read(t: int) -> list[float]:
            """z and B of every head at key t."""
            each = [replace(pair, h=h, j=t) for h in range(H)]
            z = [other.scale * other.dot for other in each]
            return z + [self.bias.oracle(other) - own for other, own in zip(each, z, strict=True)]

        def hidden(t: int) -> list[float]:
            units = []
            for c in range(self.hidden):
                total = self.into_bias[c].item()
                for s in range(-reach, reach + 1):
                    if 0 <= t + s <= pair.i:
                        total += sum(into[c, r, s + reach].item() * value for r, value in enumerate(read(t + s)))
                units.append(total if total > 0 else HeadNetwork.SLOPE * total)
            return units

        score = self.out_bias[pair.h].item() + sum(read(pair.j)[pair.h :: H])
        for s in range(-reach, reach + 1):
            if 0 <= pair.j + s <= pair.i:
                score += sum(out[pair.h, c, s + reach].item() * v for c, v in enumerate(hidden(pair.j + s)))
        return score


def _uniform(*shape: int, fan_in: int) -> nn.Parameter:
    """Returns a parameter initialized as in nn.Linear and nn.Conv2d."""
    return nn.Parameter((2 * torch.rand(*shape) - 1) / math.sqrt(fan_in))
