"""Prefix matching to the letter: attention to the token before an earlier copy of the query's."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ...kernels import Call
from ._targets import TokenScore


@dataclass(frozen=True, eq=False)
class PrefixMatching(TokenScore):
    """The weight that queries give to the tokens right before earlier copies of their own.

        S[h] = meanᵢ Σⱼ A[h,i,j] over the keys j with id(j + 1) = id(i) and j + 1 before i

    In "X A … A" the target of the second A is X. Olsson et al. define the prefix-matching score as the average of all
    entries from a token "back to the tokens that preceded the same token in earlier repeats", which is average="pairs".
    The induction head that they describe attends to the token after the copy, and public code of this name measures
    that: see ``Induction``.

    Args:
        ids: the id of each key's token, whole numbers [m] or [batch, m]; −1 where there is no token.
        average: "queries" for the mean over queries of their weight on all of their targets, or "pairs" for the mean
            over all pairs of a query and a target.

    References:
        Olsson et al. 2022, "In-context Learning and Induction Heads", section "Head activation evaluators".
    """

    name = "prefix_matching"

    def labels(self, call: Call) -> tuple[Tensor, Tensor, int]:
        return self._ids_beside(call, 0, queries=True), self._ids_beside(call, 1), -2
