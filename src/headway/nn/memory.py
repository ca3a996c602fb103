"""The memory of Transformer-XL: hidden states of earlier segments, for every layer."""

from __future__ import annotations

import torch
from torch import Tensor

from ..coordinates import Coordinates
from ..errors import HeadwayError
from ._transaction import Transactional


class SegmentMemory(Transactional):
    """Hidden states of the last ``length`` tokens before a segment, for every layer, without gradients.

        h̃ = [stop-gradient(memory) ∘ h],  q from h, k and v from h̃

    A stack that is called with ``memory=`` attends to it and then appends its own segment. Under a causal mask, and
    with a memory that holds all earlier tokens, segments one by one give what one pass over all of them gives. With a
    shorter memory each layer sees ``length`` tokens further back than the layer below it.

    Args:
        length: tokens that are kept, at least 1.

    Raises:
        HeadwayError: for a length below 1.

    References:
        Dai et al. 2019 (Transformer-XL), section 3.2.
    """

    def __init__(self, length: int) -> None:
        if length < 1:
            raise HeadwayError(f"memory length is {length}: give at least 1")
        self.length = length
        self.states: list[Tensor] = []
        """The input of each layer, [batch, tokens, embed_dim]."""
        self.coordinates: Coordinates | None = None
        self._before: tuple[list[Tensor], Coordinates | None] | None = None

    def __len__(self) -> int:
        return self.states[0].shape[1] if self.states else 0

    def store(self, states: list[Tensor], coordinates: Coordinates) -> None:
        """Appends a segment and keeps the last ``length`` tokens."""
        if self.states:
            states = [torch.cat(pair, dim=1) for pair in zip(self.states, states, strict=True)]
        # copies, so that dropped states are freed
        states = [state[:, -self.length :].detach().clone() for state in states]
        self.states, total = states, coordinates.index.shape[1]
        self.coordinates = coordinates.as_given().rows(max(0, total - self.length), total)

    def reorder(self, rows: Tensor) -> None:
        """Rows of the batch in another order, repeated or left out: int64 [new batch]."""
        coordinates = None if self.coordinates is None else self.coordinates.select(rows)
        self.states, self.coordinates = [state[rows] for state in self.states], coordinates

    def _begin(self) -> None:
        self._in_call, self._before = True, (self.states, self.coordinates)

    def _commit(self) -> None:
        self._in_call, self._before = False, None

    def _rollback(self) -> None:
        assert self._before is not None
        self.states, self.coordinates = self._before
        self._commit()
