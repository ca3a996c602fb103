"""The base class of encodings that multiply the scores of each query by a factor."""

from __future__ import annotations

from torch import Tensor

from ..coordinates import Coordinates
from ..terms import QueryScale
from ._base import Input, Pair, PositionEncoding, Terms
from ._formulas import oracle_length, total_length


class Scaling(PositionEncoding):
    """Multiplies the products of a query with all keys by one factor; biases do not change.

        score[h,i,j] = s·τ[h,i]·⟨qᵢ, kⱼ⟩

    It does not distinguish positions: compose it with an encoding that does. A subclass defines ``temperature``.
    """

    kind = "scaling"
    axes = None

    def temperature(self, q_at: Coordinates) -> Tensor:
        """Returns τ, [b, heads or 1, n or 1] in float64.

        Args:
            q_at: the coordinates of the queries.

        Raises:
            NotImplementedError: if the subclass does not define it.
        """
        raise NotImplementedError

    def terms(self, q_at: Coordinates, k_at: Coordinates, q_input: Input = None, k_input: Input = None) -> Terms:
        """Returns the factor of each query as a QueryScale."""
        return (QueryScale(self.temperature(q_at)),)

    def oracle_temperature(self, pair: Pair) -> float:
        """Returns τ of ``pair`` as the paper writes it.

        Raises:
            NotImplementedError: if the subclass does not define it.
        """
        raise NotImplementedError

    def oracle(self, pair: Pair) -> float:
        return pair.scale * self.oracle_temperature(pair) * pair.dot


def log_of_seen(q_at: Coordinates, bidirectional: bool) -> Tensor:
    """ln n, [b, n or 1]: n is the number of keys up to each query, or of the tokens of the whole stream."""
    position = q_at.axis().double()
    if not bidirectional:
        return (position + 1).clamp(min=1.0).log()
    return total_length(q_at).clamp(min=1.0).log()


def number_seen(pair: Pair, bidirectional: bool) -> float:
    """n, for the oracles."""
    return oracle_length(pair.coordinates) if bidirectional else pair.at(pair.i) + 1
