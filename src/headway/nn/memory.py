"""The memory of Transformer-XL: each layer's hidden states of earlier segments."""

from __future__ import annotations

import torch
from torch import Tensor

from ..coordinates import Coordinates
from ..errors import HeadwayError
from ._transaction import Transactional


class SegmentMemory(Transactional):
    """A memory of the hidden states of the last ``length`` tokens before a segment, for each layer, without gradients.

        h̃ = [stop-gradient(memory) ∘ h],  q from h, k and v from h̃

    A stack called with ``memory=`` attends to it and then appends its own segment. With a causal mask and a memory
    that holds all earlier tokens, processing segments one by one gives the same result as one pass over all of them.
    With a shorter memory, each layer sees ``length`` tokens further back than the layer below it.

    Args:
        length: the number of tokens to keep, at least 1.

    Raises:
        HeadwayError: if ``length`` is below 1.

    References:
        Dai et al. 2019 (Transformer-XL), section 3.2.
    """

    def __init__(self, length: int) -> None:
        if length < 1:
            raise HeadwayError(f"memory length is {length}: give at least 1")
        super().__init__()
        self.length = length
        self.states: list[Tensor] = []
        """The input of each layer, [batch, tokens, embed_dim]."""
        self.coordinates: Coordinates | None = None
        self._before: tuple[list[Tensor], Coordinates | None] | None = None

    def __len__(self) -> int:
        return self.states[0].shape[1] if self.states else 0

    def store(self, states: list[Tensor], coordinates: Coordinates) -> None:
        """Appends a segment and keeps the last ``length`` tokens.

        Args:
            states: the input of each layer, [batch, n, embed_dim].
            coordinates: the coordinates of the tokens in the memory and in the segment.
        """
        if self.states:
            states = [torch.cat(pair, dim=1) for pair in zip(self.states, states, strict=True)]
        # copies, so that dropped states are freed
        states = [state[:, -self.length :].detach().clone() for state in states]
        self.states, total = states, coordinates.index.shape[1]
        self.coordinates = coordinates.as_given().rows(max(0, total - self.length), total)

    def reorder(self, rows: Tensor) -> None:
        """Selects rows of the batch, as beam search needs.

        Args:
            rows: int64 [new batch], the numbers of the rows in their new order; rows may be repeated or left out.
        """
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
