"""Stick-breaking attention: from the query backwards, each key gets a share of the weight that is left."""

from __future__ import annotations

import math

from ...coordinates import Coordinates
from ...terms import StickWeights
from .._base import Input, Pair, PositionEncoding, Terms


class StickBreaking(PositionEncoding):
    """Replaces the softmax: the nearest key gets its share, the next one its share of the rest, and so on.

        A[h,i,j] = σ(z_ij)·Π_{t=j+1…i−1} (1 − σ(z_it)) for j < i,   z_ij = s·⟨qᵢ, kⱼ⟩

    A row sums to at most 1, and the first one to 0. Both options are those of the authors' code and off there by
    default. In the scores of an explanation, a weight of 0 has the logarithm −1000. Keys are in the order of the
    stream. There is no log-sum-exp and no sink. Masked keys have a weight of 0 and do not reduce the rest.

    Args:
        attend_current: whether the query's own token gets the first share (j ≤ i, the product up to i).
        remainder: whether the query's own value gets the weight that is left, Π over all (1 − σ).

    References:
        Tan et al. 2025, section 2.
    """

    name = "stick-breaking"
    citation = "tan2025scaling"
    year = 2024
    evidence = "authors"
    extrapolates = True
    axes = None
    causal_only = True

    def __init__(self, attend_current: bool = False, remainder: bool = False) -> None:
        super().__init__()
        self.attend_current, self.remainder = attend_current, remainder

    def terms(self, q_at: Coordinates, k_at: Coordinates, q_input: Input = None, k_input: Input = None) -> Terms:
        """Returns the weights in place of the softmax."""
        return (StickWeights(self.attend_current, self.remainder),)

    def oracle(self, pair: Pair) -> float:
        weight = self.oracle_share(pair)
        return math.log(weight) if weight else StickWeights.NOTHING

    def oracle_share(self, pair: Pair) -> float:
        """Returns A[h,i,j] of ``pair`` as the paper writes it."""

        def beta(t: int) -> float:
            return 1 / (1 + math.exp(-pair.scale * float(pair.query @ pair.keys[pair.h, t])))

        last = pair.i if self.attend_current else pair.i - 1
        share = beta(pair.j) * math.prod(1 - beta(t) for t in range(pair.j + 1, last + 1)) if pair.j <= last else 0.0
        if self.remainder and pair.j == pair.i:
            share += math.prod(1 - beta(t) for t in range(last + 1))
        return share

    def oracle_weights(self, h: int, i: int, scores: list[float]) -> list[float]:
        return [math.exp(score) for score in scores]

    @classmethod
    def examples(cls) -> list[PositionEncoding]:
        return [cls(), cls(attend_current=True, remainder=True)]
