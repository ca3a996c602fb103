"""A bias that scores adapt: a small network across the heads of each pair."""

from __future__ import annotations

from ._base import PositionEncoding
from ._dape import DataAdaptive
from .t5 import T5


class DAPE(DataAdaptive):
    """The scores and another encoding's biases of all heads pass through a small network that is added to both.

        score[·,i,j] = z + B + W₂·leaky( W₁·[z; B] + b₁ ) + b₂,   z_h = s·⟨qᵢ, kⱼ⟩, B_h the bias of the pair

    Shapes: ``into`` W₁ [hidden, 2·num_heads, 1], ``into_bias`` b₁ [hidden], ``out`` W₂ [num_heads, hidden, 1],
    ``out_bias`` b₂ [num_heads], as nn.Linear starts them; hidden 32, and a slope of 0.01 below 0, as in the authors'
    code. ``bias`` is the encoding whose bias goes in, ALiBi if None: any that speaks DistanceBias alone (the paper's
    are ALiBi, KERPLE and FIRE). A block of rows holds hidden + 3·num_heads numbers for each pair, not num_heads.
    Raises HeadwayError for sizes below 1, a bias that speaks other terms, queries of another number of heads.
    Cite: Zheng et al. 2024, section 3.
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
