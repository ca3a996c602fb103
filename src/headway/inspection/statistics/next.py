"""The weight of the token after the query's own."""

from __future__ import annotations

from dataclasses import dataclass

from ._neighbour import Neighbour


@dataclass(frozen=True, eq=False)
class Next(Neighbour):
    """The weight that each query gives to the token right after its own, [batch, H, n].

        A[h,i,j] with index(j) = index(i) + 1, in the same document; 0 where there is none in sight

    References:
        Clark et al. 2019, section 3.1; Voita et al. 2019, section 5.1 (positional heads).
    """

    name = "next"
    offset = 1
