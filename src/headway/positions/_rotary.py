"""The family of encodings that turn queries and keys, pair by pair."""

from __future__ import annotations

import cmath
from collections.abc import Iterator

from torch import Tensor

from ..coordinates import Coordinates
from ..errors import HeadwayError, need_positive
from ..terms import Rotation
from ._base import Pair, PositionEncoding, need_width

LAYOUTS = ("interleaved", "half")


class Rotary(PositionEncoding):
    """Queries and keys are turned by an angle for each pair of their dimensions; the other dimensions stay.

        score[h,i,j] = s·μ²·Σ_c Re( q̄_c·k_c·e^{i(φ_c(j) − φ_c(i))} ) + s·Σ q_e·k_e over what is not turned

    A member of the family says ``frequencies`` (φ_c = p·ω_c), or ``phases`` where its angles come about otherwise, and
    for its oracle the formula of one frequency or of one angle.

    layout     which dimensions are the pair c: (2c, 2c+1) "interleaved", or (c, c + rotary_dim/2) "half"
    magnitude  μ, which multiplies what is turned
    """

    magnitude: float = 1.0

    def __init__(self, head_dim: int, layout: str = "interleaved", rotary_dim: int | None = None) -> None:
        super().__init__()
        need_positive(head_dim=head_dim)
        name, turned = ("head_dim", head_dim) if rotary_dim is None else ("rotary_dim", rotary_dim)
        if turned % 2 or not 2 <= turned <= head_dim:
            raise HeadwayError(
                f"{name} is {turned}{'' if rotary_dim is None else f' of a head_dim of {head_dim}'}: pairs are turned, "
                f"give an even number, such as {max(2, min(turned, head_dim) // 2 * 2)}"
            )
        if layout not in LAYOUTS:
            raise HeadwayError(f"layout is {layout!r}: give {' or '.join(map(repr, LAYOUTS))}")
        self.head_dim, self.layout, self.pairs = head_dim, layout, turned // 2

    def frequencies(self, coordinates: Coordinates) -> Tensor:
        """ω in float64: [pairs], or [b, 1 or n, pairs] where it depends on the length of the stream."""
        raise NotImplementedError

    def phases(self, coordinates: Coordinates) -> Tensor:
        """φ in float64: [b, n, pairs], or [b, heads, n, pairs] where heads differ."""
        return coordinates.axis().double()[..., None] * self.frequencies(coordinates)

    def tables(self, coordinates: Coordinates) -> tuple[Tensor, ...] | None:
        """``waves``, where coordinates alone decide them."""
        return self.waves(coordinates)

    def waves(self, coordinates: Coordinates) -> tuple[Tensor, ...]:
        """μ·cos φ and μ·sin φ, [b, heads or 1, n, pairs] in float64."""
        phases = self.phases(coordinates)
        phases = phases if phases.ndim == 4 else phases[:, None]
        cos, sin = phases.cos(), phases.sin()
        return (cos, sin) if self.magnitude == 1 else (self.magnitude * cos, self.magnitude * sin)

    def rotation(self, side: str, x: Tensor, coordinates: Coordinates) -> Rotation | None:
        """The turn of x [batch, heads, n, head_dim] by ``waves``."""
        need_width(x, "head_dim", self.head_dim)
        cos, sin = self.place(coordinates).tables
        return Rotation(cos, sin, self.layout)

    def prepare(self, x: Tensor, coordinates: Coordinates) -> Tensor:
        """x [batch, heads, n, head_dim] turned, in float32 or wider."""
        return self._rotated("query", x, coordinates)

    def _rotated(self, side: str, x: Tensor, coordinates: Coordinates) -> Tensor:
        rotation = self.rotation(side, x, coordinates)
        assert rotation is not None
        return rotation.of(x)

    # ------------------------------------------------------------ for the checks

    def oracle_frequency(self, c: int, coordinates: Coordinates) -> float:
        """ω_c as the paper writes it."""
        raise NotImplementedError

    def oracle_angle(self, pair: Pair, c: int, token: int) -> float:
        """φ_c of a token, as the paper writes it."""
        return pair.at(token) * self.oracle_frequency(c, pair.coordinates)

    def oracle(self, pair: Pair) -> float:
        q, k = pair.query, pair.key
        total, rest = 0.0, set(range(self.head_dim))
        for c, (first, second) in enumerate(self.dimensions()):
            a, b = complex(q[first], q[second]), complex(k[first], k[second])
            turn = self.oracle_angle(pair, c, pair.j) - self.oracle_angle(pair, c, pair.i)
            total += self.magnitude**2 * (a.conjugate() * b * cmath.exp(1j * turn)).real
            rest -= {first, second}
        return pair.scale * (total + sum(float(q[e] * k[e]) for e in rest))

    def dimensions(self) -> Iterator[tuple[int, int]]:
        """The two dimensions of each pair."""
        for c in range(self.pairs):
            yield (2 * c, 2 * c + 1) if self.layout == "interleaved" else (c, c + self.pairs)


class LearnedRotary(Rotary):
    """A rotary encoding whose phases read parameters, so that its cosines and sines are those of one forward pass."""

    def tables(self, coordinates: Coordinates) -> None:
        """None: coordinates alone decide nothing."""

    def learned_tables(self, coordinates: Coordinates) -> tuple[Tensor, ...]:
        """``waves``"""
        return self.waves(coordinates)

    def rotation(self, side: str, x: Tensor, coordinates: Coordinates) -> Rotation | None:
        """The turn of x [batch, heads, n, head_dim] by ``waves``."""
        need_width(x, "head_dim", self.head_dim)
        cos, sin = self.for_one_forward(coordinates).learned
        return Rotation(cos, sin, self.layout)
