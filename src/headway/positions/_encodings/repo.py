"""Context re-positioning: positions that content determines, for another encoding."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...coordinates import Coordinates
from ...errors import HeadwayError, need_positive
from .._base import Input, Pair, PositionEncoding
from .._compose import Compose
from .._formulas import need_width


class RePo(PositionEncoding):
    """Replaces each position by a number computed from the token's hidden state.

        z(x) = w·( swish(G·x) ⊙ C·x ),   swish(a) = a/(1 + e^(−a));   pᵢ = z(xᵢ) in place of the given position

    It changes coordinates only, in every layer: ``Compose(RePo(embed_dim), RoPE(head_dim))``, or with any other
    encoding that acts in attention; encodings that add to the embeddings are not affected. One position serves all
    heads, as in the paper's variant without separate positions for each head; ``RePoRoPE`` is the variant with
    positions for each head. The authors leave ordinary positions in the lower third of the layers: a stack takes one
    encoding for each layer. Computed in float64.

    Args:
        embed_dim: the width of the layer's input, at least 1.
        hidden_dim: the width of G and C, at least 1; embed_dim/8 if None.

    Attributes:
        gate: G [hidden_dim, embed_dim]. All are initially N(0, 0.02²) truncated at 3 standard deviations, as in the
            authors' code, so that all tokens start near position 0, as without an encoding.
        content: C [hidden_dim, embed_dim].
        assign: w [1, hidden_dim].

    Raises:
        HeadwayError: if a size is below 1.

    References:
        Li et al. 2025, section 3.
    """

    name = "repo"
    citation = "li2025repo"
    year = 2025
    kind = "coordinates"
    evidence = "authors"
    across_shards = True
    cache_prepared = False
    reads_input = True

    def __init__(self, embed_dim: int, hidden_dim: int | None = None) -> None:
        super().__init__()
        hidden_dim = max(1, embed_dim // 8) if hidden_dim is None else hidden_dim
        need_positive(embed_dim=embed_dim, hidden_dim=hidden_dim)
        self.embed_dim, self.hidden_dim = embed_dim, hidden_dim
        self.gate, self.content = drawn(hidden_dim, embed_dim), drawn(hidden_dim, embed_dim)
        self.assign = drawn(1, hidden_dim)

    def relocate(
        self, q_at: Coordinates, k_at: Coordinates, q_input: Input = None, k_input: Input = None
    ) -> tuple[Coordinates, Coordinates]:
        """Returns both sides at the positions computed from their own inputs."""
        keys = self._read(k_at, k_input, "k_input")
        return keys if q_input is k_input and q_at is k_at else self._read(q_at, q_input, "q_input"), keys

    def _read(self, side: Coordinates, x: Input, name: str) -> Coordinates:
        if x is None:
            raise HeadwayError(f"{name} is None but RePo reads it: give {name} [batch, tokens, {self.embed_dim}]")
        need_width(x, "embed_dim", self.embed_dim)
        return side.placed_by(self, position=assigned(x, self.gate, self.content, self.assign))

    def oracle_positions(self, x: Tensor) -> Coordinates:
        """Returns the coordinates of one sequence as the paper writes it.

        Args:
            x: the layer's input, [n, embed_dim].
        """
        positions = [literally(token, self.gate, self.content, self.assign[0]) for token in x]
        return Coordinates.of(torch.tensor(positions, dtype=torch.float64), len(positions))

    @classmethod
    def examples(cls) -> list[PositionEncoding]:
        from .rope import RoPE

        return [_Read(cls(32), RoPE(8)), _Read(cls(48, 5), RoPE(8, base=500.0, layout="half"))]


class _Read(Compose):
    """A composition whose oracle places tokens by their content, which ``oracle_locate`` does not get."""

    def _seen_by(self, part: PositionEncoding, pair: Pair) -> Pair:
        assert pair.x is not None
        reader = next(each for each in self.each if isinstance(each, RePo))
        return replace(pair, coordinates=reader.oracle_positions(pair.x))


def drawn(rows: int, columns: int) -> nn.Parameter:
    """A matrix from N(0, 0.02²), truncated at 3 standard deviations."""
    return nn.Parameter(nn.init.trunc_normal_(torch.empty(rows, columns), std=0.02, a=-0.06, b=0.06))


def assigned(x: Tensor, gate: Tensor, content: Tensor, assign: Tensor) -> Tensor:
    """z(x), [batch, n, rows of assign] in float64."""
    x = x.double()
    return (F.silu(x @ gate.double().t()) * (x @ content.double().t())) @ assign.double().t()


def literally(x: Tensor, gate: Tensor, content: Tensor, w: Tensor) -> float:
    """z of one token, in Python numbers."""
    z = 0.0
    for weight, to_gate, to_content in zip(w.tolist(), gate, content, strict=True):
        a = float(to_gate.detach().double() @ x)
        z += weight * a / (1 + math.exp(-a)) * float(to_content.detach().double() @ x)
    return z
