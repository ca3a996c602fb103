"""Duplicate-token heads."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ...kernels import Call
from ._targets import TokenScore


@dataclass(frozen=True, eq=False)
class DuplicateToken(TokenScore):
    """The weight that queries give to earlier copies of their own token.

        S[h] = meanᵢ Σⱼ A[h,i,j] over the keys j before i with id(j) = id(i)

    Args:
        ids: the id of each key's token, whole numbers [m] or [batch, m]; −1 where there is no token.
        average: "queries" for the mean over queries of their weight on all of their targets, or "pairs" for the mean
            over all pairs of a query and a target.

    References:
        Wang et al. 2022, "Interpretability in the Wild: a Circuit for Indirect Object Identification in GPT-2 small".
    """

    name = "duplicate_token"

    def labels(self, call: Call) -> tuple[Tensor, Tensor, int]:
        return self._ids_beside(call, 0, queries=True), self._ids_beside(call, 0), -1
