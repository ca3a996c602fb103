"""A bias that scores adapt: a small convolution across heads and neighbouring keys."""

from __future__ import annotations

from ._base import PositionEncoding
from ._dape import DataAdaptive
from .t5 import T5


class DAPEv2(DataAdaptive):
    """As DAPE, with each row of scores read like an image: the network sees a few keys beside each.

        score[·,i,j] = z + B + b₂ + Σ_s W₂[·,·,s]·g(j + s),   s = −⌊width/2⌋ … ⌊width/2⌋
        g(t) = leaky( b₁ + Σ_s W₁[·,·,s]·[z; B](t + s) ),   both 0 at keys that query i may not see

    Shapes and starts as in ``DAPE``, with ``width`` keys for the 1; width 3 is the paper's. The authors' code puts
    zeros beyond the query into the first convolution alone: its g lives on one step past the query, where there are
    later tokens, and not for the last one, so that a row changes when the text goes on. Here g is 0 there, which agrees
    with theirs in the last row, and decoding with a full pass.
    Raises HeadwayError as ``DAPE`` does, and for an even width.
    Cite: Zheng et al. 2024 (DAPE V2), section 3.
    """

    name = "dape-v2"
    citation = "zheng2024dapev2"
    year = 2024
    evidence = "authors"

    def __init__(self, num_heads: int, bias: PositionEncoding | None = None, hidden: int = 32, width: int = 3) -> None:
        super().__init__(num_heads, bias, hidden, width)

    @classmethod
    def examples(cls) -> list[PositionEncoding]:
        return [cls(4, hidden=5), cls(6, bias=T5(6, num_buckets=8, max_distance=20, bidirectional=False), hidden=3)]
