"""Induction heads: attention to the token after an earlier copy of the query's."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ...kernels import Call
from ._targets import TokenScore


@dataclass(frozen=True, eq=False)
class Induction(TokenScore):
    """The weight that queries give to the tokens right after earlier copies of their own.

        S[h] = meanᵢ Σⱼ A[h,i,j] over the keys j ≤ i with id(j − 1) = id(i)

    In "A B … A" the target of the second A is B, which an induction head predicts. Olsson et al. describe an induction
    head by this score, and public code measures it. Their text on the prefix-matching score defines another one:
    ``PrefixMatching``. They measure it on repeated random tokens, which nothing else predicts.

    Args:
        ids: the id of each key's token, whole numbers [m] or [batch, m]; −1 where there is no token.
        average: "queries" for the mean over queries of their weight on all of their targets, or "pairs" for the mean
            over all pairs of a query and a target.

    References:
        Olsson et al. 2022, "In-context Learning and Induction Heads"; Elhage et al. 2021, "A Mathematical Framework for
        Transformer Circuits".
    """

    name = "induction"

    def labels(self, call: Call) -> tuple[Tensor, Tensor, int]:
        return self._ids_beside(call, 0, queries=True), self._ids_beside(call, -1), 0
