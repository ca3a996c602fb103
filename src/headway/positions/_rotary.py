"""The base classes of encodings that rotate pairs of dimensions of queries and keys."""

from __future__ import annotations

import cmath
from collections.abc import Iterator
from typing import ClassVar

import torch
from torch import Tensor, nn

from ..constants import constant
from ..coordinates import Coordinates
from ..errors import HeadwayError, need_positive
from ..terms import LAYOUTS, Rotation
from ..tracing import watched
from ._base import Pair, PositionEncoding
from ._formulas import need_width
from ._lie import for_heads, need_divisor

KEPT = 1 << 15
"""The angles of a block of consecutive positions whose cosines and sines are kept between calls: 512 KiB."""
CPU = torch.device("cpu")
FIRST = Coordinates.span(1, device=CPU)


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
    constant_rates: ClassVar[bool] = False
    """Whether ``frequencies`` are the same for all coordinates, so that cosines and sines of consecutive positions are
    kept between calls. Each class says so for itself: a subclass may change them."""

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
        """Returns ``waves``, if they depend on coordinates only; those of consecutive positions on a CPU are kept."""
        # watched first, since lengths are symbols in a compiler
        if watched() or not coordinates.consecutive or coordinates.start is None or not coordinates.position.is_cpu:
            return self.waves(coordinates)
        start, n, rates = coordinates.start, coordinates.index.shape[1], self._kept_rates()
        if rates is None or start % self._block + n > self._block:
            return self.waves(coordinates)
        first, cos, sin = self._kept_waves(start, rates)
        at = start - first
        return cos[:, :, at : at + n], sin[:, :, at : at + n]

    def rotation_block(self, position: int) -> tuple[int, Rotation] | None:
        rates = self._kept_rates()
        if rates is None:
            return None
        first, cos, sin = self._kept_waves(position, rates)
        return first, Rotation(cos, sin, self.layout)

    @property
    def _block(self) -> int:
        """The positions of a block."""
        return max(KEPT // self.pairs, 1)

    def _kept_rates(self) -> tuple[float, ...] | None:
        """Returns ``frequencies`` as numbers, new ones when an attribute has changed; None if they are not constant."""
        if self.foreign or not type(self).__dict__.get("constant_rates", False):
            return None
        kept = self.__dict__.get("_rates")
        if kept is None or kept[0] != self._edition:
            # a tensor may require a gradient
            known = not any(isinstance(value, Tensor) for value in vars(self).values())
            kept = self._edition, tuple(self.frequencies(FIRST).tolist()) if known else None
            self.__dict__["_rates"] = kept
        found: tuple[float, ...] | None = kept[1]
        return found

    def _kept_waves(self, position: int, rates: tuple[float, ...]) -> tuple[int, Tensor, Tensor]:
        """The first position of the block that has a position, and the ``waves`` of the block."""
        first = position - position % self._block
        return first, *constant(_waves, self._block, first, rates, self.magnitude, device=CPU)

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


def _waves(
    n: int, first: int, rates: tuple[float, ...], magnitude: float, device: torch.device
) -> tuple[Tensor, Tensor]:
    """μ·cos φ and μ·sin φ of the positions first … first + n − 1, [1, 1, n, pairs]."""
    position = torch.arange(first, first + n, device=device, dtype=torch.float64)
    phases = (position[:, None] * torch.tensor(rates, dtype=torch.float64, device=device))[None, None]
    cos, sin = phases.cos(), phases.sin()
    return (cos, sin) if magnitude == 1 else (magnitude * cos, magnitude * sin)


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


class HeadwiseRotary(LearnedRotary):
    """Rotates by phases of each key head, which queries that share the head share.

    Args:
        num_heads: the number of query heads, at least 1.
        head_dim: the width of each head, even.
        num_kv_heads: the number of key and value heads, a divisor of num_heads; num_heads if None.
        layout: which dimensions form the pair c: (2c, 2c+1) for "interleaved", (c, c + head_dim/2) for "half".

    Raises:
        HeadwayError: if sizes are below 1, head_dim is odd, layout is unknown, or the numbers of heads do not fit.
    """

    def __init__(
        self, num_heads: int, head_dim: int, num_kv_heads: int | None = None, layout: str = "interleaved"
    ) -> None:
        super().__init__(head_dim, layout)
        need_positive(num_heads=num_heads)
        need_divisor(num_heads, num_kv_heads)
        self.num_heads, self.num_kv_heads = num_heads, num_kv_heads

    def rotation(self, side: str, x: Tensor, coordinates: Coordinates) -> Rotation | None:
        """Returns the rotation of x [batch, num_heads or num_kv_heads, n, head_dim]."""
        need_width(x, "head_dim", self.head_dim)
        cos, sin = for_heads(x, self.num_heads, *self.for_one_forward(coordinates).learned)
        return Rotation(cos, sin, self.layout)


class AxesRotary(HeadwiseRotary):
    """Rotates by all axes at once, φ_{h,c}(p) = Σ_a p_a·f[a,h,c], with learned frequencies for each key head.

    A subclass sets the parameter ``f``. The arguments are those of ``HeadwiseRotary``.

    Attributes:
        f: [axes, num_kv_heads, head_dim/2].
    """

    f: nn.Parameter

    def phases(self, coordinates: Coordinates) -> Tensor:
        """Returns φ, [b, num_kv_heads, n, pairs] in float64."""
        return torch.einsum("bna,ahc->bhnc", coordinates.position.double(), self.f.double())

    def oracle_angle(self, pair: Pair, c: int, token: int) -> float:
        h = pair.h * (self.num_kv_heads or self.num_heads) // self.num_heads
        return sum(pair.at(token, a) * self.f[a, h, c].item() for a in range(self.f.shape[0]))
