"""Previous-token heads."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ...kernels import Call
from ._targets import TargetScore, token_beside


@dataclass(frozen=True, eq=False)
class PreviousToken(TargetScore):
    """The mean weight that queries give to the token right before their own.

        S[h] = meanᵢ A[h,i,j] with index(j) = index(i) − 1, in the same document

    The mean is over the queries that have such a key in sight, so an exact previous-token head has 1. For the other
    queries, the statistic "previous" is 0.

    References:
        Olsson et al. 2022, "In-context Learning and Induction Heads"; Clark et al. 2019, section 3.1.
    """

    name = "previous_token"

    def labels(self, call: Call) -> tuple[Tensor, Tensor, int]:
        slots = token_beside(call, -1, queries=True)
        return slots, torch.arange(call.k.shape[2], device=slots.device)[None], -1
