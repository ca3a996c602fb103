"""RoPE++: heads for the imaginary part of rotary attention, in addition to those for the real part."""

from __future__ import annotations

import cmath

import torch
from torch import Tensor

from ...coordinates import Coordinates
from ...errors import HeadwayError, need_positive
from ...terms import Rotation
from .._base import Pair, PositionEncoding
from .._formulas import need_base, need_width, rates
from .._rotary import Rotary

IMAGINARY = ("odd", "second-half", "all")


class RoPEPP(Rotary):
    """Applies RoPE, and in some heads scores by the imaginary part of its products, which RoPE discards (RoPE++).

        score[h,i,j] = s·Σ_c Re( q̄_c·k_c·e^{i(pⱼ − pᵢ)ω_c} ) in real heads, −s·Σ_c Im( q̄_c·k_c·e^{i(pⱼ − pᵢ)ω_c} ) in
        imaginary ones,   ω_c = base^(−2c/head_dim)

    The query of an imaginary head is that of a real one after a quarter turn back; keys are the same for both. In the
    paper a real and an imaginary head share one projection of queries: give ``attention`` each query twice,
    ``q.repeat_interleave(2, dim=1)``, with "odd". A layer has a projection for each head, as the authors' code has in
    its modes "imagx" (here "odd"), "imagh" ("second-half") and "imago" ("all").

    Args:
        num_heads: the number of query heads, at least 1.
        head_dim: the width of each head, even.
        imaginary: which of the query heads are imaginary: "odd" (1, 3, …), "second-half" or "all".
        base: the base of the frequencies, above 1.
        layout: which dimensions form the pair c: (2c, 2c+1) for "interleaved", (c, c + head_dim/2) for "half".

    Shape:
        x: [batch, heads, n, head_dim]
        Output: [batch, heads, n, head_dim]

    Raises:
        HeadwayError: if head_dim is odd, imaginary is unknown, or queries have another number of heads.

    References:
        Liu et al. 2025, section 3.
    """

    name = "rope-pp"
    citation = "liu2025beyond"
    year = 2025
    evidence = "authors"

    def __init__(
        self,
        num_heads: int,
        head_dim: int,
        imaginary: str = "odd",
        base: float = 10000.0,
        layout: str = "half",
    ) -> None:
        super().__init__(head_dim, layout)
        need_positive(num_heads=num_heads)
        need_base(base)
        if imaginary not in IMAGINARY:
            raise HeadwayError(f"imaginary is {imaginary!r}: give one of {', '.join(map(repr, IMAGINARY))}")
        self.num_heads, self.imaginary, self.base = num_heads, imaginary, base

    def frequencies(self, coordinates: Coordinates) -> Tensor:
        """Returns ω_c = base^(−2c/head_dim), [pairs] in float64."""
        return rates(self.pairs, self.head_dim, self.base, coordinates.position.device)

    def rotation(self, side: str, x: Tensor, coordinates: Coordinates) -> Rotation | None:
        """Returns the rotation of keys; None for queries, which ``split`` turns back first."""
        return None if side == "query" else super().rotation(side, x, coordinates)

    def rotation_block(self, position: int) -> None:
        """Returns None, since queries and keys rotate by different angles."""

    def split(self, side: str, x: Tensor, coordinates: Coordinates) -> tuple[Tensor, Rotation | None]:
        """Returns queries with those of imaginary heads turned back, or keys, and the rotation of either."""
        if side == "query":
            x = self._turned_back(x)
        return x, None if side == "value" else super().rotation(side, x, coordinates)

    def prepare_query(self, q: Tensor, coordinates: Coordinates) -> Tensor:
        """Returns q [batch, num_heads, n, head_dim] rotated, in imaginary heads by a quarter turn less."""
        q, rotation = self.split("query", q, coordinates)
        assert rotation is not None
        return rotation.of(q)

    def prepare(self, x: Tensor, coordinates: Coordinates) -> Tensor:
        """Returns keys [batch, kv_heads, n, head_dim] rotated, as by RoPE."""
        return self._rotated("key", x, coordinates)

    def _turned_back(self, q: Tensor) -> Tensor:
        """(a, b) → (b, −a) in the imaginary heads, which rounds nothing."""
        need_width(q, "head_dim", self.head_dim)
        if q.shape[1] != self.num_heads:
            raise HeadwayError(
                f"q has {q.shape[1]} heads but the encoding was built for {self.num_heads}: build it with "
                f"num_heads={q.shape[1]}"
            )
        if self.layout == "half":
            a, b = q.chunk(2, dim=-1)
            back = torch.cat([b, -a], dim=-1)
        else:
            a, b = q.unflatten(-1, (-1, 2)).unbind(-1)
            back = torch.stack([b, -a], dim=-1).flatten(-2)
        heads = torch.arange(self.num_heads, device=q.device)
        chosen = {"odd": heads % 2 == 1, "second-half": heads >= self.num_heads // 2, "all": heads >= 0}
        return torch.where(chosen[self.imaginary][:, None, None], back, q)

    # ------------------------------------------------------------ for the checks

    def oracle_frequency(self, c: int, coordinates: Coordinates) -> float:
        return float(self.base ** (-2 * c / self.head_dim))

    def oracle(self, pair: Pair) -> float:
        if not {"odd": pair.h % 2, "second-half": pair.h >= self.num_heads // 2, "all": True}[self.imaginary]:
            return super().oracle(pair)
        total = 0.0
        for c, (first, second) in enumerate(self.dimensions()):
            q, k = complex(pair.query[first], pair.query[second]), complex(pair.key[first], pair.key[second])
            turn = pair.distance * self.oracle_frequency(c, pair.coordinates)
            total -= (q.conjugate() * k * cmath.exp(1j * turn)).imag
        return pair.scale * total

    @classmethod
    def examples(cls) -> list[PositionEncoding]:
        return [cls(4, 8), cls(6, 8, "second-half", base=500.0, layout="interleaved")]
