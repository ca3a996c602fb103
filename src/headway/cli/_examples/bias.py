import math

import torch
from torch import Tensor, nn

from headway import Coordinates
from headway.positions import Pair, PositionEncoding
from headway.terms import Clip, DistanceBias, Rows


class Near(PositionEncoding):
    """One learned number per head and whole distance; all distances beyond `reach` share the last one.

    b_h(δ) = t_h[clamp(⌊δ⌋, −reach, reach)],  δ = key position − query position
    """

    name = "near"
    citation = "@misc{near, title={An example of headway's own}}"

    def __init__(self, num_heads: int, reach: int = 16) -> None:
        super().__init__()
        self.reach = reach
        self.table = nn.Parameter(torch.zeros(num_heads, 2 * reach + 1))

    def terms(
        self, q_at: Coordinates, k_at: Coordinates, q_input: Tensor | None = None, k_input: Tensor | None = None
    ) -> tuple[DistanceBias, ...]:
        return (DistanceBias(Rows(self.table, Clip(-self.reach, self.reach))),)

    def oracle(self, pair: Pair) -> float:
        step = max(-self.reach, min(self.reach, math.floor(pair.distance)))
        return pair.scale * pair.dot + self.table[pair.h, self.reach + step].item()

    @classmethod
    def examples(cls) -> list[PositionEncoding]:
        return [cls(num_heads=4), cls(num_heads=6, reach=2)]
