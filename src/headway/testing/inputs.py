"""Inputs of the checks: an encoding's sizes, random parameters, an attention layer, and examples of every term."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..attention import attention
from ..coordinates import Coordinates
from ..masks import Causal
from ..positions import PositionEncoding
from ..positions._base import IN_ATTENTION
from ..terms import (
    Bucketize,
    ChannelDecay,
    Classes,
    Clip,
    ContentSlope,
    ContextualPositions,
    Cosines,
    DenseBias,
    DistanceBias,
    GatedPath,
    Grid,
    HeadNetwork,
    HouseholderPath,
    LimitedRotation,
    Linear,
    Log,
    Normalizer,
    Piecewise,
    Power,
    Product,
    QueryScale,
    RelativeKeys,
    RelativeQueries,
    RelativeValues,
    Rows,
    ScoreMap,
    Sink,
    Sinusoids,
    StickWeights,
    Stretched,
    Term,
    TokenBias,
)


@dataclass(frozen=True)
class CheckSizes:
    """The sizes with which an encoding is checked: its own ones, and small defaults for the others."""

    heads: int
    head_dim: int
    embed_dim: int
    max_length: int | None

    @staticmethod
    def of(encoding: PositionEncoding) -> CheckSizes:
        heads, _, head_dim, embed_dim, _ = encoding.sizes
        heads = heads or (embed_dim // head_dim if embed_dim and head_dim else 4)
        head_dim = head_dim or (embed_dim // heads if embed_dim else 8)
        return CheckSizes(heads, head_dim, embed_dim or heads * head_dim, encoding.table_end)


def randomized(encoding: PositionEncoding, generator: torch.Generator, dtype: torch.dtype) -> PositionEncoding:
    """Returns the encoding with each parameter set to a random value between 0.25 and 1.75 in size, of either sign."""
    encoding = encoding.to(dtype)
    with torch.no_grad():
        for parameter in encoding.parameters():
            if parameter.is_floating_point():
                drawn = torch.rand(parameter.shape, generator=generator, dtype=torch.float64) * 1.5 + 0.25
                sign = (torch.rand(parameter.shape, generator=generator) < 0.5).double() * 2 - 1
                parameter.copy_(drawn * sign)
    return encoding


class Layer(torch.nn.Module):
    """An attention layer, from embeddings to the outputs of the heads, that calls every hook of an encoding."""

    def __init__(self, encoding: PositionEncoding, generator: torch.Generator, dtype: torch.dtype) -> None:
        super().__init__()
        self.encoding = encoding
        self.sizes = CheckSizes.of(encoding)
        width = self.sizes.heads * self.sizes.head_dim

        def weight() -> torch.nn.Parameter:
            drawn = torch.randn(self.sizes.embed_dim, width, generator=generator, dtype=torch.float64)
            return torch.nn.Parameter((drawn * self.sizes.embed_dim**-0.5).to(dtype))

        self.q_weight, self.k_weight, self.v_weight = weight(), weight(), weight()

    def embed(self, x: Tensor, coordinates: Coordinates) -> Tensor:
        return self.encoding.embed(x, self.encoding.place(coordinates))

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Projects x [batch, n, embed_dim] to the heads' queries, keys and values."""
        q, k, v = (
            (x @ weight).unflatten(-1, (self.sizes.heads, self.sizes.head_dim)).transpose(1, 2)
            for weight in (self.q_weight, self.k_weight, self.v_weight)
        )
        return q, k, v

    @property
    def in_attention(self) -> PositionEncoding | None:
        """The encoding that attention is given: None if it acts only on embeddings."""
        acts = self.encoding.acts
        return None if "embed" in acts and not acts & IN_ATTENTION else self.encoding

    def forward(
        self, x: Tensor, coordinates: Coordinates, *, mask: object = None, kernel: str = "auto", dropout: float = 0.0
    ) -> Tensor:
        x = self.embed(x, coordinates)
        mask = Causal() if mask is None and self.encoding.causal_only else mask
        shared: dict[str, Any] = {"mask": mask, "kernel": kernel, "dropout": dropout, **where(coordinates, x)}
        return attention(*self.project(x), encoding=self.in_attention, **shared)


def where(coordinates: Coordinates, x: Tensor) -> dict[str, Any]:
    """Returns the arguments of self-attention that place its tokens, and its input."""
    return {"q_positions": coordinates, "k_positions": coordinates, "q_input": x, "k_input": x}


def on_axes(coordinates: Coordinates, axes: int | None) -> Coordinates:
    """Returns coordinates with that many axes; they are the digits of the position to base 4."""
    if axes in (None, 1):
        return coordinates
    p = coordinates.position[..., 0]
    digits = [p // 4 ** (axes - 1 - axis) % (4 if axis else 1 << 62) for axis in range(axes)]
    return replace(coordinates, position=torch.stack(digits, dim=-1))


def gaps(n: int, generator: torch.Generator, limit: int | None) -> Coordinates:
    """Returns n random distinct positions below ``limit``, in no order."""
    top = min(limit or 200, 200)
    drawn = torch.randperm(top, generator=generator)[:n]
    return Coordinates.of(drawn, n, length=top)


# ---------------------------------------------------------------- terms

Draw = Callable[..., Tensor]
"""Returns a random leaf tensor of the shape that its arguments give."""
STEPS = torch.tensor([-7.0, -2.0, 0.0, 1.0, 5.0])
FREQUENCIES = torch.tensor([1.0, 0.3, 0.05])


def term_examples(
    draw: Draw, *, batch: int, heads: int, kv_heads: int, n: int, m: int, head_dim: int, v_dim: int
) -> dict[str, list[Term]]:
    """Returns examples of every kind of term in every form, some with several terms of one kind.

    Functions among them depend on all of their arguments. Positions must have two axes.
    """
    return {
        "temperature": [QueryScale(draw(1, heads, n))],
        **_tables_by_distance(draw, heads, n, m),
        **_functions_of_distance(draw, heads, n, m),
        **_relative_terms(draw, batch, heads, n, head_dim, v_dim),
        **_terms_of_tokens_and_scores(draw, batch, heads, n, m, head_dim),
        **_products(draw, batch, heads, kv_heads, n, m, head_dim),
    }


def _tables_by_distance(draw: Draw, heads: int, n: int, m: int) -> dict[str, list[Term]]:
    ids = torch.arange(max(n, m)) % 2
    classes = Classes(ids[None, :n], ids[None, :m], 2)
    return {
        "distance bias, clipped rows": [DistanceBias(Rows(draw(heads, 9), Clip(-4, 4)))],
        "distance bias, steps": [DistanceBias(Rows(draw(heads, 6), Bucketize(STEPS, reach=9)))],
        "distance bias, two tables": [
            DistanceBias(Rows(draw(heads, 9), Clip(-4, 4))),
            DistanceBias(Rows(draw(1, 5), Clip(-2, 2))),
        ],
        "distance bias, two axes": [DistanceBias(Rows(draw(heads, 15), Grid((Clip(-2, 2, 0), Clip(-1, 1, 1)))))],
        "distance bias, classes": [DistanceBias(Rows(draw(heads, 4), classes))],
        "distance bias, clipped by class": [DistanceBias(Rows(draw(heads, 20), Grid((Clip(-2, 2), classes))))],
    }


def _functions_of_distance(draw: Draw, heads: int, n: int, m: int) -> dict[str, list[Term]]:
    positive = torch.nn.functional.softplus
    knots = torch.tensor([-6.0, -1.5, 0.0, 4.0])
    edges, stretch = torch.tensor([0.4, 0.9]), torch.linspace(0.2, 0.9, max(n, m))

    def pieces(slope: Tensor, first: Tensor) -> tuple[Tensor, Tensor]:
        """Intercepts with which straight pieces meet at the edges, and the slopes of the pieces."""
        steps = (slope[:, :-1] - slope[:, 1:]) * edges.to(slope.dtype)
        return first[:, None] + torch.cat([torch.zeros_like(slope[:, :1]), steps.cumsum(-1)], dim=-1), slope

    return {
        "distance bias, linear": [DistanceBias(Linear(draw(heads), draw(heads)))],
        "distance bias, logarithm": [DistanceBias(Log(draw(heads), positive(draw(heads))))],
        "distance bias, power": [DistanceBias(Power(draw(heads), positive(draw(heads))))],
        "distance bias, piecewise": [DistanceBias(Piecewise(knots, draw(heads, 4)))],
        "distance bias, cosines": [DistanceBias(Cosines(draw(heads, 3), FREQUENCIES))],
        "distance bias, stretched": [
            DistanceBias(Stretched(edges, *pieces(draw(heads, 3), draw(heads)), positive(draw(1)), stretch[None, :n]))
        ],
    }


def _relative_terms(draw: Draw, batch: int, heads: int, n: int, head_dim: int, v_dim: int) -> dict[str, list[Term]]:
    return {
        "relative keys": [RelativeKeys(Rows(draw(1, 9, head_dim), Clip(-4, 4)), query_bias=draw(heads, head_dim))],
        "relative keys, own query": [
            RelativeKeys(Rows(draw(heads, 9, head_dim), Clip(-4, 4)), query=draw(batch, heads, n, head_dim))
        ],
        "relative keys, not scaled": [
            RelativeKeys(Rows(draw(1, 9, 3), Clip(-4, 4)), query=draw(batch, heads, n, 3), scaled=False)
        ],
        "relative keys, sinusoids": [RelativeKeys(Sinusoids(draw(heads, head_dim, 6), FREQUENCIES))],
        "relative queries": [RelativeQueries(Rows(draw(heads, 6, head_dim), Bucketize(STEPS, reach=9)))],
        "relative values": [RelativeValues(Rows(draw(1, 9, v_dim), Clip(-4, 4)))],
        "relative keys, queries and values": [
            RelativeKeys(Rows(draw(1, 9, head_dim), Clip(-4, 4))),
            RelativeQueries(Rows(draw(1, 9, head_dim), Clip(-4, 4))),
            RelativeValues(Rows(draw(heads, 5, v_dim), Clip(-2, 2))),
        ],
    }


def _terms_of_tokens_and_scores(
    draw: Draw, batch: int, heads: int, n: int, m: int, head_dim: int
) -> dict[str, list[Term]]:
    factors = torch.linspace(0.5, 1.5, m)

    def rows(number: Tensor, table: Tensor) -> Tensor:
        return table[:, :, number] * factors.to(table.dtype)

    def product(q: Tensor, k: Tensor, rows: Tensor, weight: Tensor) -> Tensor:
        return (q * weight) @ k.transpose(-1, -2)

    def score_map(scores: Tensor, allowed: Tensor, q: Tensor, rows: Tensor, weight: Tensor) -> Tensor:
        seen = torch.where(allowed, scores, torch.zeros_like(scores))
        return scores + weight * torch.tanh(seen.cumsum(-1))

    def normalizer(scores: Tensor, allowed: Tensor, weight: Tensor) -> Tensor:
        return torch.where(allowed, torch.sigmoid(scores + weight), torch.zeros_like(scores))

    def network(width: int) -> HeadNetwork:
        biases = DistanceBias(Linear(draw(heads), draw(1))), DistanceBias(Rows(draw(heads, 9), Clip(-4, 4)))
        return HeadNetwork(biases, draw(3, 2 * heads, width), draw(3), draw(heads, 3, width), draw(heads))

    return {
        "token bias": [TokenBias(draw(1, heads, n), draw(batch, 1, m))],
        "dense bias": [DenseBias(draw(1, heads, n, m))],
        "dense bias, function": [DenseBias(rows, (draw(batch, 1, n, m),))],
        "sink by query": [Sink(draw(batch, heads, n))],
        "product": [Product(product, (draw(head_dim),))],
        "score map": [ScoreMap(score_map, (draw(heads, 1, 1),))],
        "normalizer": [Normalizer(normalizer, (draw(heads, 1, 1),))],
        "contextual positions": [ContextualPositions(draw(1, 4, head_dim))],
        "contextual positions of each head": [ContextualPositions(draw(heads, 3, head_dim))],
        "gated path": [GatedPath(draw(batch, heads, n, 3), draw(batch, heads, m, 3), torch.linspace(0.5, 1.5, heads))],
        "head network": [network(1)],
        "head network, three keys wide": [network(3)],
        "stick weights": [StickWeights()],
        "stick weights, remainder": [StickWeights(remainder=True)],
        "stick weights, current and remainder": [StickWeights(attend_current=True, remainder=True)],
    }


def _products(
    draw: Draw, batch: int, heads: int, kv_heads: int, n: int, m: int, head_dim: int
) -> dict[str, list[Term]]:
    def waves(kinds: int, tokens: int) -> tuple[Tensor, Tensor]:
        angle = torch.linspace(-3, 3, kinds * tokens * (head_dim // 2), dtype=torch.float64)
        angle = angle.view(kinds, 1, 1, tokens, head_dim // 2)
        return angle.cos(), angle.sin()

    def path(sums: bool) -> HouseholderPath:
        w = torch.nn.functional.normalize(draw(batch, kv_heads, m, head_dim), dim=-1)
        beta = 2 * draw(batch, kv_heads, m).sigmoid()
        summed = draw(batch, heads, m).cumsum(-1) if sums else None
        return HouseholderPath(w, beta, None if summed is None else summed[..., m - n :].clone(), summed)

    slope = torch.nn.functional.softplus(draw(heads))
    return {
        "limited rotation": [LimitedRotation(2.5, *waves(3, n), *waves(2, m))],
        "householder path": [path(False)],
        "householder path with sums": [path(True)],
        "channel decay": [ChannelDecay(-draw(batch, heads, m, head_dim).square())],
        "slope by content": [ContentSlope(slope, draw(heads, head_dim), draw(heads, head_dim))],
    }
