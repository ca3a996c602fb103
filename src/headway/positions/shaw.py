"""Learned vectors for clipped distances, added to keys and values."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from ..coordinates import Coordinates
from ..terms import Clip, RelativeKeys, RelativeValues, Rows, Term
from ._base import PositionEncoding, at, need_positive


class Shaw(PositionEncoding):
    """Each distance up to a limit has a vector that joins the key and one that joins the value.

        score[i,j] = s·⟨qᵢ, kⱼ + a^K[clip(pⱼ − pᵢ)]⟩,   clip(δ) = max(−k, min(k, δ))
        out[i] = Σⱼ A[i,j]·(vⱼ + a^V[clip(pⱼ − pᵢ)])

    Shapes: keys a^K and values a^V [2k + 1, head_dim], shared by all heads; row k + δ stands for the distance δ.
    max_distance is k. Raises HeadwayError for sizes below 1.
    Cite: Shaw et al. 2018, section 3.2.
    """

    citation = """@inproceedings{shaw2018self,
  title     = {Self-Attention with Relative Position Representations},
  author    = {Shaw, Peter and Uszkoreit, Jakob and Vaswani, Ashish},
  booktitle = {Proceedings of the 2018 Conference of the North American Chapter of the Association for
               Computational Linguistics},
  year      = {2018},
  eprint    = {1803.02155},
  archivePrefix = {arXiv},
}"""

    def __init__(self, head_dim: int, max_distance: int = 16) -> None:
        super().__init__()
        need_positive(head_dim=head_dim, max_distance=max_distance)
        self.head_dim, self.max_distance = head_dim, max_distance
        self.keys = nn.Parameter(torch.empty(2 * max_distance + 1, head_dim))
        self.values = nn.Parameter(torch.empty(2 * max_distance + 1, head_dim))
        nn.init.xavier_uniform_(self.keys)
        nn.init.xavier_uniform_(self.values)

    def terms(
        self,
        q_coordinates: Coordinates,
        k_coordinates: Coordinates,
        q_input: Tensor | None = None,
        k_input: Tensor | None = None,
    ) -> tuple[Term, ...]:
        """Relative keys and relative values."""
        clip = Clip(-self.max_distance, self.max_distance)
        return RelativeKeys(Rows(self.keys[None], clip)), RelativeValues(Rows(self.values[None], clip))

    def oracle(
        self,
        h: int,
        i: int,
        j: int,
        q: Tensor,
        k: Tensor,
        x: Tensor | None,
        coordinates: Coordinates,
        scale: float,
    ) -> float:
        key = k[h, j] + self.keys[self._row(i, j, coordinates)].double()
        return scale * (q[h, i] @ key).item()

    def oracle_value(self, h: int, i: int, j: int, v: Tensor, coordinates: Coordinates) -> Tensor:
        return v[h, j] + self.values[self._row(i, j, coordinates)].double()

    def _row(self, i: int, j: int, coordinates: Coordinates) -> int:
        distance = math.floor(at(coordinates, j) - at(coordinates, i))
        return self.max_distance + max(-self.max_distance, min(self.max_distance, distance))

    @classmethod
    def examples(cls) -> list[PositionEncoding]:
        return [cls(8), cls(8, max_distance=3)]
