"""A bias that a small network computes for each distance."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor, nn

from ...errors import HeadwayError, need_positive
from .._base import Pair, PositionEncoding
from .._layers import linear, linear_by_hand, normed, normed_by_hand
from .._window import Windowed, two

FORMS = {"crossformer": 2, "x-transformers": 1, "x-transformers-log": 1}
"""The number of axes that each form reads."""


class DynamicPositionBias(Windowed):
    """Adds a bias that a network computes from the distance for each head.

        score[h,i,j] = s·⟨qᵢ, kⱼ⟩ + f(Δ)_h,   Δ = pᵢ − pⱼ

        form="crossformer"         Δ = (Δy, Δx); f = Linear, then three times Linear(relu(norm(·))), norm a layer norm
        form="x-transformers"      Δ is one number; f = Linear, then depth times Linear(silu(·))
        form="x-transformers-log"  the same of sign(Δ)·ln(1 + |Δ|)

    f is evaluated once for each distance within window; larger distances count as the largest in it. To compute what
    x-transformers does for all distances, give the length of the sequences as window.

    Args:
        num_heads: the number of query heads, at least 1.
        embed_dim: the width of the model, at least 1, from which the default ``width`` follows.
        window: one size, or (height, width) for "crossformer"; 7 for "crossformer" and 512 for the others if None.
        form: "crossformer", "x-transformers" or "x-transformers-log", as above.
        width: the width of the hidden layers, at least 1; if None, embed_dim/16 for "crossformer", as in its code,
            whose paper says embed_dim/4, and embed_dim/4 for the others, as in x-transformers.
        depth: the number of further layers of the forms of x-transformers, at least 1.

    Shape:
        positions: [batch, n, 2] as (y, x) for "crossformer", otherwise [batch, n]

    Raises:
        HeadwayError: if a size is below 1, window does not have one size for each axis, or form is unknown.

    References:
        Wang et al. 2022.
    """

    name = "dynamic-position-bias"
    citation = "wang2022crossformer"
    year = 2021
    evidence = "authors"

    def __init__(
        self,
        num_heads: int,
        embed_dim: int,
        window: int | Sequence[int] | None = None,
        form: str = "crossformer",
        width: int | None = None,
        depth: int = 2,
    ) -> None:
        if form not in FORMS:
            raise HeadwayError(f"form is {form!r}: give {', '.join(map(repr, FORMS))}")
        flat = FORMS[form] == 2
        if not flat and not isinstance(window, int | None):
            raise HeadwayError(f"window is {window!r} but the form {form!r} reads one axis: give one size")
        given = (7 if flat else 512) if window is None else window
        super().__init__(num_heads, window, (given,) if isinstance(given, int) and not flat else two(given))
        need_positive(embed_dim=embed_dim, depth=depth, width=1 if width is None else width)
        self.embed_dim, self.form, self.width, self.depth = embed_dim, form, width, depth
        hidden = max(1, embed_dim // (16 if flat else 4)) if width is None else width
        sizes = [FORMS[form], *[hidden] * (3 if flat else depth), num_heads]
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in itertools.pairwise(sizes))
        self.norms = nn.ModuleList(nn.LayerNorm(hidden) for _ in range(3 if flat else 0))

    def rows(self) -> Tensor:
        """Returns the output of the network for each distance."""
        x = self.offsets(next(self.parameters()).device)
        x = linear(self.layers[0], x.sign() * x.abs().log1p() if self.form == "x-transformers-log" else x)
        for number, layer in enumerate(self.layers[1:]):
            x = normed(self.norms[number], x).relu() if self.form == "crossformer" else F.silu(x)
            x = linear(layer, x)
        return x

    def oracle(self, pair: Pair) -> float:
        delta = [float(d) for d in self.oracle_offset(pair)]
        if self.form == "x-transformers-log":
            delta = [math.copysign(math.log(abs(d) + 1), d) for d in delta]
        x = linear_by_hand(self.layers[0], delta)
        for number, layer in enumerate(self.layers[1:]):
            if self.form == "crossformer":
                x = [max(0.0, u) for u in normed_by_hand(self.norms[number], x)]
            else:
                x = [u / (1 + math.exp(-u)) for u in x]
            x = linear_by_hand(layer, x)
        return pair.scale * pair.dot + x[pair.h]

    @classmethod
    def examples(cls) -> list[PositionEncoding]:
        return [cls(4, 32, width=5), cls(6, 48, window=20, form="x-transformers-log", width=5)]
