"""Tokens into vectors, and hidden states back into logits."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import HeadwayError


class Embedding(nn.Embedding):
    """A vector for each token id, and where there are kinds of tokens one for each kind.

        x = scale·E[id] + S[type]

    Shapes: ids int64 [batch, n], each 0 … vocab_size − 1; types the same, 0 … num_types − 1, or None: 0 for all;
    → [batch, n, embed_dim]. E begins as N(0, 1/embed_dim). device, dtype: of the parameters.
    Raises HeadwayError for ids that are no integers [batch, n], and for types where there are none.
    Cite: Vaswani et al. 2017, section 3.4 (scale); Devlin et al. 2019 (types).
    """

    def __init__(
        self,
        vocab_size: int,
        embed_dim: int,
        *,
        scale: float = 1.0,
        num_types: int = 0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **options: Any,
    ) -> None:
        options |= {"device": device, "dtype": dtype}
        super().__init__(vocab_size, embed_dim, **options)
        self.scale = scale
        self.types = nn.Embedding(num_types, embed_dim, **options) if num_types else None

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=self.embedding_dim**-0.5)

    def forward(self, ids: Tensor, types: Tensor | None = None) -> Tensor:
        """ids [batch, n] → [batch, n, embed_dim]"""
        _need_ids("ids", ids)
        x: Tensor = F.embedding(ids, self.weight)
        x = x if self.scale == 1 else x * self.scale
        if types is not None:
            _need_ids("types", types)
            if self.types is None or types.shape != ids.shape:
                why = "the model has no types of tokens: leave it out"
                raise HeadwayError(
                    f"types have shape {tuple(types.shape)} but "
                    + (why if self.types is None else f"ids {tuple(ids.shape)}: give one type for each id")
                )
        if self.types is not None:
            x = x + (self.types.weight[0] if types is None else self.types(types))
        return x


class Head(nn.Module):
    """From hidden states to a logit for each token id.

        logits = cap(scale·W·transform(x) + b),  cap(y) = soft_cap·tanh(y/soft_cap)

    Shapes: x [..., embed_dim] → [..., vocab_size]. W [vocab_size, width] is the layer's own, or without one
    (``tied``) that of the token embeddings, handed over in each call; width is embed_dim unless ``transform``, any
    module, changes it. device, dtype: of W and b; ``transform`` stays as it is.
    """

    weight: Tensor | None
    bias: Tensor | None

    def __init__(
        self,
        width: int,
        vocab_size: int,
        *,
        tied: bool = False,
        bias: bool = False,
        transform: nn.Module | None = None,
        scale: float = 1.0,
        soft_cap: float | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.scale, self.soft_cap = scale, soft_cap
        self.transform = transform
        self.packed: nn.Module | None = None
        """The matrix and the bias as ``pack`` lays them out."""
        made: dict[str, Any] = {"device": device, "dtype": dtype}
        self.register_parameter("weight", None if tied else nn.Parameter(torch.empty(vocab_size, width, **made)))
        self.register_parameter("bias", nn.Parameter(torch.empty(vocab_size, **made)) if bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        if self.weight is not None:
            nn.init.normal_(self.weight, std=0.02)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, x: Tensor, embeddings: Tensor) -> Tensor:
        """x [..., embed_dim] and the token embeddings [vocab_size, width] → [..., vocab_size]"""
        x = x if self.transform is None else self.transform(x)
        x = x if self.scale == 1 else x * self.scale
        if self.packed is not None:
            logits: Tensor = self.packed(x)
        else:
            logits = F.linear(x, embeddings if self.weight is None else self.weight, self.bias)
        return logits if self.soft_cap is None else self.soft_cap * torch.tanh(logits / self.soft_cap)


def _need_ids(name: str, ids: Tensor) -> None:
    if not isinstance(ids, Tensor) or ids.dtype not in (torch.int64, torch.int32):
        kind = ids.dtype if isinstance(ids, Tensor) else type(ids).__name__
        raise HeadwayError(f"{name} are {kind}: give an int64 tensor [batch, n]")
    if ids.ndim != 2:
        raise HeadwayError(f"{name} have shape {tuple(ids.shape)}: give [batch, n]")
