"""The weight of the query's own token."""

from __future__ import annotations

from dataclasses import dataclass

from ._neighbour import Neighbour


@dataclass(frozen=True, eq=False)
class Current(Neighbour):
    """The weight that each query gives to its own token, [batch, H, n].

        A[h,i,j] with index(j) = index(i), in the same document; 0 where there is none in sight

    References:
        Clark et al. 2019, section 3.1.
    """

    name = "current"
    offset = 0
