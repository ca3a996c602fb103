"""The base classes of encodings that rotate pairs of dimensions of queries and keys."""

from __future__ import annotations

import cmath
from collections.abc import Iterator

from torch import Tensor

from ..coordinates import Coordinates
from ..errors import HeadwayError, need_positive
from ..terms import LAYOUTS, Rotation
from ._base import Pair, PositionEncoding, need_width


class Rotary(PositionEncoding):
    """Rotates pairs of dimensions of queries and keys by an angle each; the other dimensions do not change.

        score[h,i,j] = s·μ²·Σ_c Re( q̄_c·k_c·e^{i(φ_c(j) − φ_c(i))} ) + s·Σ q_e·k_e over the dimensions e not rotated

    A subclass defines ``frequencies`` (φ_c = p·ω_c), or ``phases`` if its angles are computed otherwise. For its oracle
    it defines the formula of one frequency, ``oracle_frequency``, or of one angle, ``oracle_angle``. The class
    attribute ``magnitude`` is μ, a factor of the rotated dimensions.

    Args:
        head_dim: the width of each head; even unless ``rotary_dim`` is given.
        layout: which dimensions form the pair c: (2c, 2c+1) for "interleaved", (c, c + rotary_dim/2) for "half".
        rotary_dim: the number of dimensions rotated, the first ones, even and at most head_dim; head_dim if None.

    Raises:
        HeadwayError: if head_dim is below 1, the number of rotated dimensions is odd or out of range, or layout is
            unknown.
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
        """Returns ω in float64: [pairs], or [b, 1 or n, pairs] if it depends on the sequence length.

        Args:
            coordinates: the placed coordinates of the tokens.

        Raises:
            NotImplementedError: if the subclass defines neither this nor ``phases``.
        """
        raise NotImplementedError

    def phases(self, coordinates: Coordinates) -> Tensor:
        """Returns φ in float64: [b, n, pairs], or [b, heads, n, pairs] if heads differ.

        Args:
            coordinates: the placed coordinates of the tokens.
        """
        return coordinates.axis().double()[..., None] * self.frequencies(coordinates)

    def tables(self, coordinates: Coordinates) -> tuple[Tensor, ...] | None:
        """Returns ``waves``, if they depend on coordinates only."""
        return self.waves(coordinates)

    def waves(self, coordinates: Coordinates) -> tuple[Tensor, ...]:
        """Returns μ·cos φ and μ·sin φ, each [b, heads or 1, n, pairs] in float64.

        Args:
            coordinates: the placed coordinates of the tokens.
        """
        phases = self.phases(coordinates)
        phases = phases if phases.ndim == 4 else phases[:, None]
        cos, sin = phases.cos(), phases.sin()
        return (cos, sin) if self.magnitude == 1 else (self.magnitude * cos, self.magnitude * sin)

    def rotation(self, side: str, x: Tensor, coordinates: Coordinates) -> Rotation | None:
        """Returns the rotation of x [batch, heads, n, head_dim] by ``waves``."""
        need_width(x, "head_dim", self.head_dim)
        cos, sin = self.place(coordinates).tables
        return Rotation(cos, sin, self.layout)

    def prepare(self, x: Tensor, coordinates: Coordinates) -> Tensor:
        """Returns x [batch, heads, n, head_dim] rotated, in float32 or wider."""
        return self._rotated("query", x, coordinates)

    def _rotated(self, side: str, x: Tensor, coordinates: Coordinates) -> Tensor:
        rotation = self.rotation(side, x, coordinates)
        assert rotation is not None
        return rotation.of(x)

    # ------------------------------------------------------------ for the checks

    def oracle_frequency(self, c: int, coordinates: Coordinates) -> float:
        """Returns ω_c as the paper writes it.

        Args:
            c: the pair.
            coordinates: the coordinates of one sequence.
        """
        raise NotImplementedError

    def oracle_angle(self, pair: Pair, c: int, token: int) -> float:
        """Returns φ_c of a token as the paper writes it.

        Args:
            pair: the query and the key.
            c: the pair of dimensions.
            token: the token whose angle it is, i or j of ``pair``.
        """
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
        """Returns the two dimensions of each pair."""
        for c in range(self.pairs):
            yield (2 * c, 2 * c + 1) if self.layout == "interleaved" else (c, c + self.pairs)


class LearnedRotary(Rotary):
    """Rotates by phases that depend on parameters, so that cosines and sines are computed in each forward pass.

    Args:
        head_dim: the width of each head; even unless ``rotary_dim`` is given.
        layout: which dimensions form the pair c: (2c, 2c+1) for "interleaved", (c, c + rotary_dim/2) for "half".
        rotary_dim: the number of dimensions rotated, even and at most head_dim; head_dim if None.
    """

    def tables(self, coordinates: Coordinates) -> None:
        """Returns None, since the phases do not depend on coordinates only."""

    def learned_tables(self, coordinates: Coordinates) -> tuple[Tensor, ...]:
        """Returns ``waves``."""
        return self.waves(coordinates)

    def rotation(self, side: str, x: Tensor, coordinates: Coordinates) -> Rotation | None:
        """Returns the rotation of x [batch, heads, n, head_dim] by ``waves``."""
        need_width(x, "head_dim", self.head_dim)
        cos, sin = self.for_one_forward(coordinates).learned
        return Rotation(cos, sin, self.layout)
