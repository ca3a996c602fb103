"""The relative position bias of T5: a learned scalar for each bucket of distances."""

from __future__ import annotations

import bisect
import math

import torch
from torch import Tensor

from ...constants import constant
from ...coordinates import Coordinates
from ...errors import HeadwayError, need_positive
from ...terms import Bucketize, DistanceBias, Rows
from .._base import Input, Pair, PositionEncoding, Terms
from .._formulas import normal, numbers


class T5(PositionEncoding):
    """Adds a learned scalar for each head and bucket of distances; buckets grow with the distance.

        score[h,i,j] = s·⟨qᵢ, kⱼ⟩ + table[h, bucket(pⱼ − pᵢ)],   s = 1 unless a scale is given
        bucket(δ) = f(|δ|) + (B if δ > 0),  B = num_buckets/2   bidirectional
        bucket(δ) = f(max(−δ, 0)),          B = num_buckets     otherwise: later keys have distance 0
        f(n) = n for n < e = ⌊B/2⌋, else min(B − 1, e + ⌊ln(n/e)/ln(max_distance/e)·(B − e)⌋)

    A distance that is not a whole number is rounded down. With ``bidirectional``, no distance falls into bucket B.

    Args:
        num_heads: the number of query heads, at least 1.
        num_buckets: the number of buckets: even and at least 4 with ``bidirectional``, otherwise at least 2.
        max_distance: the distance from which on all distances share a bucket, above ⌊B/2⌋.
        bidirectional: whether distances to earlier and to later keys have separate buckets.

    Attributes:
        table: [num_heads, num_buckets], drawn from N(0, 0.02²), meant to be shared by the layers of a stack.

    Raises:
        HeadwayError: if num_buckets is odd with ``bidirectional`` or too small, or max_distance is ⌊B/2⌋ or less.

    References:
        Raffel et al. 2020, section 2.1.
    """

    name = "t5"
    citation = "raffel2020exploring"
    year = 2019
    evidence = "independent"
    same_terms = True
    extrapolates = True

    def __init__(
        self, num_heads: int, num_buckets: int = 32, max_distance: int = 128, bidirectional: bool = True
    ) -> None:
        super().__init__()
        need_positive(num_heads=num_heads)
        least = 4 if bidirectional else 2
        if num_buckets < least or (bidirectional and num_buckets % 2):
            what = "an even number, at least 4" if bidirectional else "at least 2"
            raise HeadwayError(f"num_buckets is {num_buckets} with bidirectional={bidirectional}: give {what}")
        self.num_heads, self.num_buckets, self.max_distance = num_heads, num_buckets, max_distance
        self.bidirectional = bidirectional
        self.per_side = num_buckets // 2 if bidirectional else num_buckets
        exact = self.per_side // 2
        if max_distance <= exact:
            raise HeadwayError(
                f"max_distance is {max_distance} but the first {exact} distances have a bucket each: give at least "
                f"{exact + 1}, or fewer num_buckets"
            )
        self.table = normal(num_heads, num_buckets)
        far = [bisect.bisect_left(range(max_distance), b, key=self._f) for b in range(1, self.per_side)]
        # boundaries rise with δ: a bucket from distance n on ends with δ = −n in the past and begins at n in the future
        past = [math.nextafter(-n, math.inf) for n in reversed(far)]
        self._boundaries = (*past, *map(float, far)) if bidirectional else tuple(past)

    def _f(self, n: int) -> int:
        B, e = self.per_side, self.per_side // 2
        if n < e:
            return n
        return min(B - 1, e + math.floor(math.log(n / e) / math.log(self.max_distance / e) * (B - e)))

    def default_scale(self, head_dim: int) -> float:
        """Returns 1: T5 does not divide by √head_dim and initializes its projections with smaller values instead."""
        return 1.0

    def tables(self, coordinates: Coordinates) -> tuple[Tensor, Tensor]:
        """Returns the distances at which the next bucket begins, in ascending order, and the buckets in that order."""
        device = coordinates.position.device
        boundaries = constant(numbers, self._boundaries, device=device)
        return boundaries, constant(_order, self.per_side, self.num_buckets, device=device)

    def terms(self, q_at: Coordinates, k_at: Coordinates, q_input: Input = None, k_input: Input = None) -> Terms:
        """Returns the bias, its buckets in the order of the distance: far past … 0 … far future."""
        boundaries, order = self.place(q_at).tables
        return (DistanceBias(Rows(self.table.index_select(1, order), Bucketize(boundaries, reach=self.max_distance))),)

    def oracle(self, pair: Pair) -> float:
        delta = math.trunc(pair.distance)
        bucket = self.per_side * (delta > 0) + self._f(abs(delta)) if self.bidirectional else self._f(max(-delta, 0))
        return pair.scale * pair.dot + self.table[pair.h, bucket].item()

    @classmethod
    def examples(cls) -> list[PositionEncoding]:
        return [cls(4), cls(6, num_buckets=8, max_distance=20, bidirectional=False)]


def _order(per_side: int, buckets: int, device: torch.device) -> Tensor:
    """The buckets from the far past to the far future."""
    return torch.tensor([*reversed(range(per_side)), *range(per_side + 1, buckets)], device=device)
