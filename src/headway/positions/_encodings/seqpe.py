"""SeqPE: positions that a small Transformer reads digit by digit."""

from __future__ import annotations

import math
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...coordinates import Coordinates
from ...errors import HeadwayError, need_finite, need_positive
from .._base import PositionEncoding
from .._formulas import added, need_width, readable, whole


class SeqPE(PositionEncoding):
    """Adds to the embeddings the output of a small causal Transformer that reads a position as decimal digits.

        x'ᵢ = xᵢ + (W·LN(h) + b)/temperature,  h the last of the num_layers layers' outputs for
        [ D[d₁] + P[1], …, D[d_S] + P[S], last ],   pᵢ = d₁ … d_S with zeros in front, S = max_digits
        each layer:  h ← h + attention(LN(h)),  h ← h + W₂·gelu(W₁·LN(h) + b₁) + b₂

    attention has num_heads heads, the scale (embed_dim/num_heads)^−½ and a causal mask; gelu is its tanh form; LN has
    ε = 10⁻⁵. With several axes the digits of one follow those of the other, and a vector for the axis is added.
    Computed in float64, once for each token and call.

    This is the variant "input_add" of the authors' code, whose results are for those that act on the scores; their two
    regularizers, losses on the encoder's vectors, belong to training and are not implemented.

    Args:
        embed_dim: the width of the embeddings, a multiple of num_heads.
        num_heads: the number of heads of the small Transformer, at least 1.
        max_digits: S, at least 1: positions are at most 10^max_digits − 1; training would not cover longer ones.
        num_layers: the number of layers, at least 1.
        dropout: the dropout of the layers' outputs, in training only, 0 ≤ dropout < 1.
        temperature: the divisor of the output, above 0.
        axes: the number of axes of the positions, at least 1.

    Shape:
        x: [batch, n, embed_dim]
        D: [10, embed_dim]
        P: [max_digits·axes, embed_dim]
        last: [embed_dim]; linear maps and vectors are drawn from N(0, 0.02²), biases are 0
        Output: [batch, n, embed_dim]

    Raises:
        HeadwayError: if sizes are below 1 or do not divide, dropout is out of range, temperature is not finite and
            above 0, x has another embed_dim or, in eager mode, a position is below 0 or has more digits.

    References:
        Li et al. 2025, section 3.
    """

    name = "seqpe"
    citation = "li2025seqpe"
    year = 2025
    evidence = "authors"

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        max_digits: int = 5,
        num_layers: int = 2,
        dropout: float = 0.1,
        temperature: float = 1.0,
        axes: int = 1,
    ) -> None:
        super().__init__()
        need_positive(embed_dim=embed_dim, num_heads=num_heads, max_digits=max_digits, num_layers=num_layers, axes=axes)
        if embed_dim % num_heads:
            raise HeadwayError(f"embed_dim {embed_dim} is not divisible by num_heads {num_heads}: choose a multiple")
        need_finite(temperature=temperature)
        if not temperature > 0:
            raise HeadwayError(f"temperature is {temperature}: give a number above 0")
        if not 0 <= dropout < 1:
            raise HeadwayError(f"dropout is {dropout}: give at least 0 and less than 1")
        self.embed_dim, self.num_heads, self.max_digits = embed_dim, num_heads, max_digits
        self.num_layers, self.dropout, self.temperature, self.axes = num_layers, dropout, temperature, axes
        self.digits, self.places = nn.Embedding(10, embed_dim), nn.Embedding(max_digits * axes, embed_dim)
        self.axis = nn.Parameter(torch.empty(axes, embed_dim)) if axes > 1 else None
        self.last = nn.Parameter(torch.empty(embed_dim))
        self.layers = nn.ModuleList(_Layer(embed_dim) for _ in range(num_layers))
        self.norm, self.out = nn.LayerNorm(embed_dim), nn.Linear(embed_dim, embed_dim)
        for name, parameter in self.named_parameters():
            if parameter.ndim > 1 or name == "last":
                nn.init.normal_(parameter, std=0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def embed(self, x: Tensor, coordinates: Coordinates | Tensor | None = None) -> Tensor:
        """Returns x [batch, n, embed_dim] with the encoder's output for each position added."""
        need_width(x, "embed_dim", self.embed_dim)
        p = whole(self.coordinates_for(x, coordinates).position)
        self._check(p)
        powers = 10 ** torch.arange(self.max_digits - 1, -1, -1, device=p.device)
        h = self.digits.weight.double()[(p[..., None] // powers % 10).flatten(2)] + self.places.weight.double()
        if self.axis is not None:
            h = h + self.axis.double().repeat_interleave(self.max_digits, dim=0)
        h = torch.cat([h, self.last.double().expand(*h.shape[:2], 1, -1)], dim=2)
        for layer in self._layers:
            h = h + self._dropped(self._attention(_norm(h, layer.norm_1), layer))
            hidden = F.gelu(_linear(_norm(h, layer.norm_2), layer.up), approximate="tanh")
            h = h + self._dropped(_linear(hidden, layer.down))
        return added(x, _linear(_norm(h[:, :, -1], self.norm), self.out) / self.temperature)

    @property
    def _layers(self) -> list[_Layer]:
        return cast("list[_Layer]", list(self.layers))

    def _attention(self, h: Tensor, layer: _Layer) -> Tensor:
        q, k, v = (
            part.unflatten(-1, (self.num_heads, -1)).transpose(2, 3) for part in _linear(h, layer.qkv).chunk(3, -1)
        )
        scores = q @ k.transpose(-1, -2) * (self.embed_dim // self.num_heads) ** -0.5
        ahead = torch.ones(h.shape[2], h.shape[2], dtype=torch.bool, device=h.device).triu(1)
        weights = scores.masked_fill(ahead, -math.inf).softmax(-1)
        return _linear((weights @ v).transpose(2, 3).flatten(3), layer.join)

    def _dropped(self, h: Tensor) -> Tensor:
        return F.dropout(h, self.dropout, self.training)

    def _check(self, p: Tensor) -> None:
        if p.numel() and readable(p):
            low, high = (int(value) for value in p.aminmax())
            if low < 0 or high >= 10**self.max_digits:
                raise HeadwayError(
                    f"position {low if low < 0 else high} cannot have {self.max_digits} digits: give positions from "
                    f"0, or build it with max_digits={max(len(str(high)), self.max_digits)}"
                )

    def oracle_embed(self, x: Tensor, coordinates: Coordinates) -> Tensor:
        x, d = x.clone(), self.embed_dim // self.num_heads
        for i in range(x.shape[0]):
            words = [f"{math.floor(p):0{self.max_digits}d}" for p in coordinates.position[0, i].tolist()]
            h = []
            for s, digit in enumerate("".join(words)):
                h.append(self.digits.weight[int(digit)].double() + self.places.weight[s].double())
                if self.axis is not None:
                    h[s] = h[s] + self.axis[s // self.max_digits].double()
            h.append(self.last.double())
            for layer in self._layers:
                qkv = [_linear(_norm(token, layer.norm_1), layer.qkv).reshape(3, self.num_heads, d) for token in h]
                for t in reversed(range(len(h))):
                    heads = []
                    for head in range(self.num_heads):
                        products = [float((qkv[t][0, head] @ qkv[s][1, head]).detach()) for s in range(t + 1)]
                        scores = [math.exp(product / d**0.5) for product in products]
                        mixed = [score / sum(scores) * qkv[s][2, head] for s, score in enumerate(scores)]
                        heads.append(torch.stack(mixed).sum(0))
                    h[t] = h[t] + _linear(torch.cat(heads), layer.join)
                for t, token in enumerate(h):
                    a = _linear(_norm(token, layer.norm_2), layer.up)
                    gelu = 0.5 * a * (1 + torch.tanh((2 / math.pi) ** 0.5 * (a + 0.044715 * a**3)))
                    h[t] = token + _linear(gelu, layer.down)
            x[i] += _linear(_norm(h[-1], self.norm), self.out) / self.temperature
        return x

    @classmethod
    def examples(cls) -> list[PositionEncoding]:
        small = cls(48, 6, max_digits=4, num_layers=1, temperature=4.0)
        return [cls(32, 4, temperature=8.0).eval(), small.eval()]


class _Layer(nn.Module):
    """The parameters of one layer; ``SeqPE`` computes with them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.join = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)


def _linear(x: Tensor, layer: nn.Linear) -> Tensor:
    return F.linear(x, layer.weight.double(), layer.bias.double())


def _norm(x: Tensor, layer: nn.LayerNorm) -> Tensor:
    return F.layer_norm(x, layer.normalized_shape, layer.weight.double(), layer.bias.double(), layer.eps)
