"""DAPE: a bias that a small network across heads adapts to the scores."""

from __future__ import annotations

from .._base import PositionEncoding
from .._dape import DataAdaptive
from .t5 import T5


class DAPE(DataAdaptive):
    """Adds to scores and biases the output of a small network that reads those of all heads.

        score[·,i,j] = z + B + W₂·leaky( W₁·[z; B] + b₁ ) + b₂,   z_h = s·⟨qᵢ, kⱼ⟩, B_h the bias of the pair

    The slope of the leaky ReLU below 0 is 0.01, as in the authors' code.

    Args:
        num_heads: the number of query heads, at least 1.
        bias: the encoding whose bias is B; ALiBi if None. It may be any whose terms are all DistanceBias; the paper
            uses ALiBi, KERPLE and FIRE.
        hidden: the width of the network, at least 1; 32 in the authors' code.

    Attributes:
        into: W₁ [hidden, 2·num_heads, 1], initialized as nn.Linear does, as are the others.
        into_bias: b₁ [hidden].
        out: W₂ [num_heads, hidden, 1].
        out_bias: b₂ [num_heads].

    Raises:
        HeadwayError: if a size is below 1, ``bias`` has other terms, or queries have another number of heads.

    References:
        Zheng et al. 2024, section 3.
    """

    name = "dape"
    citation = "zheng2024dape"
    year = 2024
    evidence = "authors"

    def __init__(self, num_heads: int, bias: PositionEncoding | None = None, hidden: int = 32) -> None:
        super().__init__(num_heads, bias, hidden, width=1)

    @classmethod
    def examples(cls) -> list[PositionEncoding]:
        return [cls(4, hidden=5), cls(6, bias=T5(6, num_buckets=8, max_distance=20, bidirectional=False), hidden=3)]
