"""Duplicate-token heads: attention to earlier copies of the query's token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from .. import scores
from ..scores._targets import TokenScore
from ._copies import OfCopies


@dataclass(frozen=True, eq=False)
class DuplicateToken(OfCopies):
    """A head that attends to earlier copies of the query's token, in random tokens that are repeated.

        figure = meanᵢ Σⱼ A[h,i,j]   over the keys j < i with id(j) = id(i)

    The guess is equal weights. The texts are those of ``Induction``.

    Args:
        threshold: the least figure.
        margin: the least distance from equal weights.

    References:
        Wang et al. 2023, "Interpretability in the Wild" (duplicate-token heads).
    """

    name: ClassVar[str] = "duplicate_token"
    score: ClassVar[type[TokenScore]] = scores.DuplicateToken
