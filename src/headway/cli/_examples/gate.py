import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from headway import Coordinates
from headway.positions import Pair, PositionEncoding
from headway.terms import TokenBias


class Gate(PositionEncoding):
    """A gate of each key, computed from its token, that multiplies the exponential of its scores.

    g_h(j) = log σ(⟨w_h, x_j⟩ + b_h)

    Queries have no gate: a number that a query adds to all of its scores cancels in the softmax.
    """

    name = "gate"
    citation = "@misc{gate, title={An example of headway's own}}"
    reads_input = True

    def __init__(self, num_heads: int, embed_dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(num_heads, embed_dim))
        self.bias = nn.Parameter(torch.zeros(num_heads))

    def terms(
        self, q_at: Coordinates, k_at: Coordinates, q_input: Tensor | None = None, k_input: Tensor | None = None
    ) -> tuple[TokenBias, ...]:
        assert k_input is not None  # since reads_input is True
        logits = k_input.double() @ self.weight.double().t() + self.bias.double()
        return (TokenBias(keys=F.logsigmoid(logits).transpose(1, 2)),)

    def oracle(self, pair: Pair) -> float:
        assert pair.x is not None
        logit = float(self.weight[pair.h] @ pair.x[pair.j] + self.bias[pair.h])
        return pair.scale * pair.dot - math.log1p(math.exp(-logit))

    @classmethod
    def examples(cls) -> list[PositionEncoding]:
        return [cls(num_heads=4, embed_dim=32), cls(num_heads=6, embed_dim=48)]
