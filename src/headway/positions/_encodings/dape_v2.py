"""DAPE V2: a bias that a small convolution across heads and neighbouring keys adapts to the scores."""

from __future__ import annotations

from .._base import PositionEncoding
from .._dape import DataAdaptive
from .t5 import T5


class DAPEv2(DataAdaptive):
    """Adds to scores and biases the output of a small convolution over heads and neighbouring keys.

        score[·,i,j] = z + B + b₂ + Σ_s W₂[·,·,s]·g(j + s),   s = −⌊width/2⌋ … ⌊width/2⌋
        g(t) = leaky( b₁ + Σ_s W₁[·,·,s]·[z; B](t + s) ),   both 0 at keys that are masked for query i

    Parameters and initial values are those of ``DAPE``, with ``width`` in place of 1. The authors' code puts zeros
    beyond the query into the first convolution only: its g continues one step past the query if there are later tokens,
    but not for the last one, so a row changes when the text grows. Here g is 0 past the query. This agrees with their
    code in the last row, and decoding agrees with a full pass.

    Args:
        num_heads: the number of query heads, at least 1.
        bias: the encoding whose bias is B; ALiBi if None. It may be any whose terms are all DistanceBias.
        hidden: the width of the network, at least 1.
        width: the number of keys that each convolution reads, odd; 3 in the paper.

    Raises:
        HeadwayError: as ``DAPE`` does, and if width is even.

    References:
        Zheng et al. 2024 (DAPE V2), section 3.
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
