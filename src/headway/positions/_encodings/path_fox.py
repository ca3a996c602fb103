"""PaTH-FoX: positions by the path between two tokens, with a forgetting gate."""

from __future__ import annotations

from ...coordinates import Coordinates
from ...terms import HouseholderPath
from .._base import Input, Pair, PositionEncoding, Terms
from .forgetting import ForgettingGate
from .path import PaTH


class PaTHFoX(PaTH):
    """Combines PaTH with the forgetting gate of each token on the path.

        score[h,i,j] = s·( qᵢᵀ·Hᵢ ⋯ Hⱼ₊₁·kⱼ + Σ_{t=j+1…i} ln f_h(t) )

    H is as in ``PaTH`` and f as in ``ForgettingGate``, which is the attribute ``gate``. As in the authors' code the
    scale s multiplies the gates too. In the Forgetting Transformer it does not: that sum is
    ``Compose(PaTH(…), ForgettingGate(…))``.

    Args:
        embed_dim: the width of the layer's input, at least 1.
        num_heads: the number of query heads, at least 1.
        head_dim: the width of each head, at least 1; embed_dim / num_heads if None.
        num_kv_heads: the number of key and value heads, a divisor of num_heads; num_heads if None.
        rank: as in ``PaTH``.
        width: as in ``PaTH``.

    References:
        Yang et al. 2025, section 3.1.
    """

    name = "path-fox"
    citation = "yang2025path lin2025forgetting"
    extrapolates = True

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        head_dim: int | None = None,
        num_kv_heads: int | None = None,
        rank: int = 32,
        width: int = 3,
    ) -> None:
        super().__init__(embed_dim, num_heads, head_dim, num_kv_heads, rank, width)
        self.gate = ForgettingGate(embed_dim, num_heads)

    def terms(self, q_at: Coordinates, k_at: Coordinates, q_input: Input = None, k_input: Input = None) -> Terms:
        """Returns the product along the path plus the sum of the gates, which replaces ⟨q, k⟩."""
        return (HouseholderPath(*self.path(k_at, k_input), *self.gate.sums(q_at, k_at, k_input)),)

    def oracle(self, pair: Pair) -> float:
        return super().oracle(pair) + pair.scale * self.gate.oracle_bias(pair)

    @classmethod
    def examples(cls) -> list[PositionEncoding]:
        return [cls(32, 4), cls(48, 6, rank=5, width=2)]
