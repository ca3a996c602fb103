"""Induction heads: attention to the token after an earlier copy of the query's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from .. import scores
from ..scores._targets import TokenScore
from ._copies import OfCopies


@dataclass(frozen=True, eq=False)
class Induction(OfCopies):
    """A head that attends to the tokens after earlier copies of the query's token, in random tokens that are repeated.

        figure = meanᵢ Σⱼ A[h,i,j]   over the keys j ≤ i with id(j − 1) = id(i)

    The guess is equal weights. The texts are 40 times 25 different tokens of the given texts, four times in a row,
    without the 4 % most and least frequent ones.

    Args:
        threshold: the least figure.
        margin: the least distance from equal weights.

    References:
        Olsson et al. 2022, "In-context Learning and Induction Heads"; Crosbie and Shutova 2024, "Induction Heads as an
        Essential Mechanism for Pattern Matching in In-context Learning", whose strong heads are at 0.3.
    """

    name: ClassVar[str] = "induction"
    score: ClassVar[type[TokenScore]] = scores.Induction
