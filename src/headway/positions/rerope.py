"""Rotary position encoding whose distances stop growing at a window."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..coordinates import Coordinates
from ..errors import HeadwayError
from ..terms import Product, rotate
from ._base import Input, Pair, PositionEncoding, Terms, need_base, need_width, rates
from ._rotary import Rotary


class ReRoPE(Rotary):
    """RoPE up to a distance w; from there on every distance is w, or grows but slowly.

        score[i,j] = s·⟨qᵢ, R(f(pⱼ − pᵢ))·kⱼ⟩,   R as in RoPE
        f(δ) = δ for |δ| < w, else ±(w + leak·(|δ| − w)) with the sign of δ

    window is w (512 in the authors' code, of 4096 trained tokens); leak = 0 is ReRoPE, which meets no distance above w
    in any sequence, 0 < leak < 1 Leaky ReRoPE, whose k is 1/leak. Both directions are alike; the authors' code is for a
    causal mask. All pairs are multiplied three times, near, past and future: no kernel but the reference does that.
    Keys are cached as they are. The authors' code multiplies queries by max(1, ln(p + 1)/ln(L)) besides: compose this
    with that temperature.
    Raises HeadwayError for an odd head_dim, a base of 1 or less, a window of 0 or less, a leak outside 0 … 1.
    Cite: Su 2023.
    """

    name = "rerope"
    citation = "su2023rerope"
    year = 2023
    kind = "scaling"
    evidence = "authors"
    extrapolates = True

    prepare = PositionEncoding.prepare

    def __init__(
        self,
        head_dim: int,
        window: float = 512,
        leak: float = 0.0,
        base: float = 10000.0,
        layout: str = "interleaved",
    ) -> None:
        super().__init__(head_dim, layout)
        need_base(base)
        if not 0 < window < math.inf:
            raise HeadwayError(f"window is {window}: give a distance above 0, such as 512")
        if not 0 <= leak < 1:
            raise HeadwayError(f"leak is {leak}: give 0, or a number below 1 such as 0.0625")
        self.window, self.leak, self.base = window, leak, base

    def frequencies(self, coordinates: Coordinates) -> Tensor:
        """ω_c of RoPE"""
        return rates(self.pairs, self.head_dim, self.base, coordinates.position.device)

    def tables(self, coordinates: Coordinates) -> tuple[Tensor, Tensor]:
        """Cosines and sines [4, b, 1, n, pairs]: of positions; of a far key, of a query after it and before it."""
        near = coordinates.axis().double()
        far, shift = self.leak * near, (1 - self.leak) * self.window
        places = torch.stack([near, far, far + shift, far - shift])
        phases = (places[..., None] * self.frequencies(coordinates))[:, :, None]
        return phases.cos(), phases.sin()

    def terms(self, q_at: Coordinates, k_at: Coordinates, q_input: Input = None, k_input: Input = None) -> Terms:
        """The product of queries and keys, turned for near pairs and for far ones."""
        window, layout, head_dim = self.window, self.layout, self.head_dim

        def product(q: Tensor, k: Tensor, rows: Tensor, *tensors: Tensor) -> Tensor:
            need_width(q, "head_dim", head_dim)
            p_q, p_k, q_cos, q_sin, k_cos, k_sin = tensors
            q_cos, q_sin = q_cos[..., rows, :], q_sin[..., rows, :]
            near_k, far_k = (rotate(k, k_cos[i], k_sin[i], layout).mT for i in (0, 1))
            near, past, future = (rotate(q, q_cos[i], q_sin[i], layout) for i in (0, 2, 3))
            delta = (p_k[:, None] - p_q[:, rows, None])[:, None]
            far = torch.where(delta < 0, past @ far_k, future @ far_k)
            return torch.where(delta.abs() < window, near @ near_k, far)

        tables = (*self.place(q_at).tables, *self.place(k_at).tables)
        return (Product(product, (q_at.axis(), k_at.axis(), *tables)),)

    def oracle_frequency(self, c: int, coordinates: Coordinates) -> float:
        return float(self.base ** (-2 * c / self.head_dim))

    def oracle_angle(self, pair: Pair, c: int, token: int) -> float:
        """0 for the query, and for the key the whole distance as it is read."""
        delta = pair.distance if token == pair.j else 0.0
        if abs(delta) >= self.window:
            delta = math.copysign(self.window + self.leak * (abs(delta) - self.window), delta)
        return delta * self.oracle_frequency(c, pair.coordinates)

    @classmethod
    def examples(cls) -> list[PositionEncoding]:
        return [cls(8, window=3), cls(8, window=2.5, leak=0.25, base=500.0, layout="half")]
