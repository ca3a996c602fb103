"""The base class of encodings that correct scores and biases of all heads by a small network that reads both."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..biases import distance_bias
from ..coordinates import Coordinates
from ..errors import HeadwayError, need_positive
from ..terms import Bias, DistanceBias, ScoreMap, Stretched
from ._base import Input, Pair, PositionEncoding, Terms
from ._encodings.alibi import ALiBi

SLOPE = 0.01
"""The slope of the leaky ReLU below 0."""


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
        """Returns one map of the scores that computes the bias and the network.

        Raises:
            HeadwayError: if the bias has a term that is not a DistanceBias.
        """
        bias_terms = self.bias._terms_of(self._for_bias(q_at), self._for_bias(k_at), q_input, k_input)
        if not all(isinstance(term, DistanceBias) for term in bias_terms):
            said = ", ".join(type(term).__name__ for term in bias_terms)
            raise HeadwayError(f"the bias has the terms {said}: give one with DistanceBias only, such as ALiBi")
        values = [term.values for term in bias_terms if isinstance(term, DistanceBias)]
        parts = tuple((value, _learned(value)) for value in values)
        learned = [getattr(value, name) for value, names in parts for name in names]
        bare = tuple((_with(v, {name: getattr(v, name).detach() for name in names}), names) for v, names in parts)
        weights = (self.into, self.into_bias, self.out, self.out_bias)
        return (ScoreMap(_Corrected(bare, q_at, k_at), (*weights, *learned)),)

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
                units.append(total if total > 0 else SLOPE * total)
            return units

        score = self.out_bias[pair.h].item() + sum(read(pair.j)[pair.h :: H])
        for s in range(-reach, reach + 1):
            if 0 <= pair.j + s <= pair.i:
                score += sum(out[pair.h, c, s + reach].item() * v for c, v in enumerate(hidden(pair.j + s)))
        return score


def _learned(values: Bias) -> tuple[str, ...]:
    """Returns the names of the tensors that may require a gradient or may be cast."""
    held = [(field.name, getattr(values, field.name)) for field in fields(values)]
    return tuple(n for n, x in held if isinstance(x, Tensor) and (x.requires_grad or n not in values.exact))


def _uniform(*shape: int, fan_in: int) -> nn.Parameter:
    """Returns a parameter initialized as in nn.Linear and nn.Conv2d."""
    return nn.Parameter((2 * torch.rand(*shape) - 1) / math.sqrt(fan_in))


@dataclass(frozen=True, eq=False)
class _Corrected:
    """The function of a ScoreMap; ``parts`` are the biases with the names of the tensors that it gets as arguments."""

    parts: tuple[tuple[Bias, tuple[str, ...]], ...]
    q_at: Coordinates
    k_at: Coordinates

    def __call__(self, scores: Tensor, allowed: Tensor, q: Tensor, rows: Tensor, *tensors: Tensor) -> Tensor:
        if not scores.numel():
            return scores
        into, into_bias, out, out_bias, *held = tensors
        if scores.shape[1] != out.shape[0]:
            raise HeadwayError(
                f"q has {scores.shape[1]} heads but the encoding {out.shape[0]}: give num_heads={scores.shape[1]}"
            )
        bias = self.bias(rows, held).to(scores.dtype).expand_as(scores)
        heard = torch.cat([scores, bias], dim=1).masked_fill(~allowed.repeat(1, 2, 1, 1), 0)
        hidden = F.leaky_relu(_along_keys(heard, into, into_bias), SLOPE)
        hidden = hidden.masked_fill(~allowed.any(1, keepdim=True), 0)
        return scores + bias + _along_keys(hidden, out, out_bias)

    def bias(self, rows: Tensor, tensors: list[Tensor]) -> Tensor:
        """B of these rows in float64: [b, heads, rows, m]"""
        held = iter(tensors)
        values = [_with(part, {name: next(held) for name in names}) for part, names in self.parts]
        queries, keys = _positions(self.q_at, rows), _positions(self.k_at, None)
        each = [distance_bias(_of_rows(value, rows), queries, keys, torch.float64) for value in values]
        return sum(each[1:], each[0])


def _with(part: Bias, tensors: dict[str, Tensor]) -> Bias:
    return replace(part, **tensors)  # type: ignore[arg-type]


def _positions(at: Coordinates, rows: Tensor | None) -> Coordinates:
    """The positions of the queries in ``rows``, or of all of them."""
    position = at.position if rows is None else at.position[:, rows]
    return Coordinates(position, torch.zeros_like(position[..., 0], dtype=torch.int64))


def _of_rows(values: Bias, rows: Tensor) -> Bias:
    return replace(values, stretch=values.stretch[:, rows]) if isinstance(values, Stretched) else values


def _along_keys(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.conv2d(x, weight[:, :, None], bias, padding=(0, weight.shape[-1] // 2))
