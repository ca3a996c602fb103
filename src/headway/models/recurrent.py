"""The baseline without attention: a recurrent language model on torch's LSTM or RNN."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..errors import HeadwayError, need_positive
from ..nn.embedding import Embedding, tied
from ..nn.linear import apply_linear

CELLS: dict[str, type[nn.LSTM] | type[nn.RNN]] = {"lstm": nn.LSTM, "rnn": nn.RNN}
GATES = {"lstm": 4, "rnn": 1}

State = Tensor | tuple[Tensor, Tensor]
"""h [num_layers, batch, hidden_dim], or (h, c) of an LSTM."""


class RecurrentLM(nn.Module):
    """A recurrent language model on an LSTM or an Elman network.

        lstm:  i, f, o = σ(W·x + U·h + b);  g = tanh(W·x + U·h + b);  c = f⊙c + i⊙g;  h = o⊙tanh(c)
        rnn:   h = tanh(W·x + U·h + b)

    Args:
        vocab_size: the number of token ids.
        embed_dim: the width of the token embeddings.
        hidden_dim: the width of the hidden state.
        num_layers: the number of recurrent layers.
        cell: "lstm" or "rnn".
        dropout: the probability of dropping an element of the embeddings, between layers and before the head, in
            training; 0 ≤ dropout < 1.
        tied_head: whether logits are computed by the token embeddings, after a linear map to their width if hidden_dim
            differs from embed_dim, or by a matrix of their own.
        device: the device of the parameters.
        dtype: the dtype of the parameters.

    Shape:
        ids: int64 [batch, n]
        Output: [batch, n, vocab_size]

    Raises:
        HeadwayError: if the cell is unknown, a size is below 1 or dropout is outside of its range.

    References:
        Hochreiter and Schmidhuber 1997 (lstm); Gers et al. 2000 (its forget gate); Elman 1990 (rnn).
    """

    def __init__(
        self,
        vocab_size: int,
        embed_dim: int,
        hidden_dim: int,
        num_layers: int = 1,
        cell: str = "lstm",
        *,
        dropout: float = 0.0,
        tied_head: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        _check(cell, vocab_size=vocab_size, embed_dim=embed_dim, hidden_dim=hidden_dim, num_layers=num_layers)
        if not 0 <= dropout < 1:
            raise HeadwayError(f"dropout is {dropout}: give at least 0 and less than 1")
        super().__init__()
        made: dict[str, Any] = {"device": device, "dtype": dtype}
        self.cell = cell
        self.embed_dim = embed_dim
        self.embedding = Embedding(vocab_size, embed_dim, scale=embed_dim**0.5, **made)
        self.recurrence = CELLS[cell](
            embed_dim, hidden_dim, num_layers, batch_first=True, dropout=dropout if num_layers > 1 else 0.0, **made
        )
        narrow = tied_head and hidden_dim != embed_dim
        self.project = nn.Linear(hidden_dim, embed_dim, **made) if narrow else None
        self.head = None if tied_head else nn.Linear(hidden_dim, vocab_size, bias=False, **made)
        self.dropout = nn.Dropout(dropout)
        self.initialise()

    def initialise(self) -> None:
        """Initializes embeddings from N(0, 1/embed_dim), and the other parameters as torch does.

        The forget gates of an LSTM get biases of 1 (Jozefowicz et al. 2015).
        """
        nn.init.normal_(self.embedding.weight, std=self.embed_dim**-0.5)
        self.recurrence.reset_parameters()
        if self.cell == "lstm":
            width = self.recurrence.hidden_size
            for name, parameter in self.recurrence.named_parameters():
                if name.startswith("bias_ih"):
                    nn.init.ones_(parameter.data[width : 2 * width])
        for module in (self.project, self.head):
            if module is not None:
                module.reset_parameters()

    @property
    def num_parameters(self) -> int:
        """The number of learned parameters."""
        return sum(parameter.numel() for parameter in self.parameters())

    def forward(self, ids: Tensor) -> Tensor:
        """Returns the logits of each next token, [batch, n, vocab_size], for ids int64 [batch, n]."""
        return self.step(ids)[0]

    def step(self, ids: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """Returns the logits of each next token, and the state from which the following tokens continue.

        Args:
            ids: int64 [batch, n].
            state: the state after the preceding tokens; zeros if None.

        Returns:
            Logits [batch, n, vocab_size], and h [num_layers, batch, hidden_dim], or (h, c) of an LSTM.

        Raises:
            HeadwayError: if ids are not integers [batch, n].
        """
        x = self.dropout(self.embedding(ids))
        hidden, state = self.recurrence(x, state)
        hidden = self.dropout(hidden)
        if self.project is not None:
            hidden = apply_linear(self.project, hidden)
        logits = tied(self.embedding)(hidden, None) if self.head is None else apply_linear(self.head, hidden)
        return logits, state

    @staticmethod
    def hidden_dim_for(
        parameters: int,
        *,
        vocab_size: int,
        embed_dim: int,
        num_layers: int = 1,
        cell: str = "lstm",
        tied_head: bool = True,
    ) -> int:
        """Returns the largest hidden_dim with which the model has at most ``parameters`` parameters.

        Args:
            parameters: the largest number of parameters.
            vocab_size: the number of token ids.
            embed_dim: the width of the token embeddings.
            num_layers: the number of recurrent layers.
            cell: "lstm" or "rnn".
            tied_head: whether logits are computed by the token embeddings.

        Raises:
            HeadwayError: if the parameters are too few for hidden_dim 1, the cell is unknown or a size is below 1.
        """
        _check(cell, vocab_size=vocab_size, embed_dim=embed_dim, num_layers=num_layers)

        def count(hidden: int) -> int:
            gates = GATES[cell]
            recurrence = gates * hidden * (embed_dim + hidden + 2)
            recurrence += (num_layers - 1) * gates * hidden * (2 * hidden + 2)
            if not tied_head:
                return vocab_size * embed_dim + recurrence + vocab_size * hidden
            narrow = (hidden + 1) * embed_dim if hidden != embed_dim else 0
            return vocab_size * embed_dim + recurrence + narrow

        if count(1) > parameters:
            raise HeadwayError(
                f"{parameters} parameters are too few for embed_dim {embed_dim} and {vocab_size} tokens: "
                f"give at least {count(1)}"
            )
        low, high = 1, 2
        while count(high) <= parameters:
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if count(middle) <= parameters else (low, middle)
        return low


def _check(cell: str, **sizes: int) -> None:
    if cell not in CELLS:
        raise HeadwayError(f"cell is {cell!r}: give {' or '.join(map(repr, CELLS))}")
    need_positive(**sizes)
