"""A bias that each query mixes from a bank of curves over the distance."""

from __future__ import annotations

from torch import Tensor, nn

from ..coordinates import Coordinates
from ..errors import need_positive
from ..terms import DenseBias
from ._base import Input, Pair, PositionEncoding, Terms, normal
from ._content import Contextual, projected


class RelativeProjection(Contextual):
    """Each query mixes, for each head, a few learned curves over the distance back to a key.

        score[h,i,j] = s·⟨qᵢ, kⱼ⟩ + Σ_r w_h(xᵢ)_r·bank[r, pᵢ − pⱼ],   0 unless 0 ≤ pᵢ − pⱼ < max_distance
        w_h(x) = W_h·x + b_h,   x the layer's input

    Shapes: W ``weight`` [num_heads·curves, embed_dim] and ``bias`` [num_heads·curves], ``bank`` [curves, max_distance]
    from N(0, 0.02²); W and b as nn.Linear starts them. 16 curves over 1024 distances, and ``bias``, are those of
    x-transformers; Hugging Face's Inkling leaves b out (``bias=False``). The bias is not scaled with the scores.
    Of a distance that is no whole number, the whole one below counts. Memory O(rows·(m + max_distance)).
    Raises HeadwayError for sizes below 1 and inputs of another embed_dim.
    Cite: Thinking Machines 2026, the released model's code; there is no paper.
    """

    name = "relative-projection"
    citation = "thinkingmachines2026inkling"
    year = 2026
    evidence = "independent"
    extrapolates = True
    axes = 1
    causal_only = False

    def __init__(
        self, embed_dim: int, num_heads: int, curves: int = 16, max_distance: int = 1024, bias: bool = True
    ) -> None:
        super().__init__()
        need_positive(embed_dim=embed_dim, num_heads=num_heads, curves=curves, max_distance=max_distance)
        self.embed_dim, self.num_heads, self.curves, self.max_distance = embed_dim, num_heads, curves, max_distance
        linear = nn.Linear(embed_dim, num_heads * curves, bias=bias)
        self.weight, self.bias = linear.weight, linear.bias
        self.bank = normal(curves, max_distance)

    def terms(self, q_at: Coordinates, k_at: Coordinates, q_input: Input = None, k_input: Input = None) -> Terms:
        """The bias of a block of queries, by the query's own mixture."""
        mixed = projected(self.read(q_input), self.weight, self.bias)
        mixed = mixed.unflatten(-1, (self.num_heads, self.curves)).transpose(1, 2)
        return (DenseBias(_mixed, (mixed, self.bank, q_at.axis(), k_at.axis())),)

    def oracle(self, pair: Pair) -> float:
        assert pair.x is not None
        back, total = int(-pair.distance // 1), 0.0
        for r in range(self.curves if 0 <= back < self.max_distance else 0):
            row = pair.h * self.curves + r
            constant = 0.0 if self.bias is None else self.bias[row].item()
            total += (float(self.weight[row].double() @ pair.x[pair.i]) + constant) * self.bank[r, back].item()
        return pair.scale * pair.dot + total

    @classmethod
    def examples(cls) -> list[PositionEncoding]:
        return [cls(32, 4, max_distance=30), cls(48, 6, curves=3, max_distance=5, bias=False)]


def _mixed(rows: Tensor, mixed: Tensor, bank: Tensor, q_position: Tensor, k_position: Tensor) -> Tensor:
    by_distance = mixed[:, :, rows] @ bank
    back = q_position[:, rows, None] - k_position[:, None]
    back = (back.floor() if back.is_floating_point() else back).long()[:, None]
    near = back.clamp(0, bank.shape[1] - 1).expand(*by_distance.shape[:3], -1)
    return by_distance.gather(-1, near).masked_fill((back < 0) | (back >= bank.shape[1]), 0)
