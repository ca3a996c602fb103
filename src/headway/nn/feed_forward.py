"""The feed-forward layer of a Transformer block."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import need_positive, right_call, unknown
from .linear import apply_linear

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "gelu_quick": lambda x: x * torch.sigmoid(1.702 * x),
    "silu": F.silu,
    "reglu": F.relu,
    "geglu": F.gelu,
    "geglu_tanh": partial(F.gelu, approximate="tanh"),
    "swiglu": F.silu,
}
GATED = frozenset({"reglu", "geglu", "geglu_tanh", "swiglu"})


class Activation(nn.Module):
    """Applies one of ACTIVATIONS that is not gated; raises HeadwayError for any other name."""

    def __init__(self, name: str) -> None:
        if name not in ACTIVATIONS or name in GATED:
            raise unknown("activation", name, [known for known in ACTIVATIONS if known not in GATED])
        super().__init__()
        self.name = name

    def forward(self, x: Tensor) -> Tensor:
        return ACTIVATIONS[self.name](x)

    def extra_repr(self) -> str:
        return self.name


class FeedForward(nn.Module):
    """Applies two linear maps with an activation between them, to each token independently.

        relu, gelu, gelu_tanh, gelu_quick, silu:  y = down(activation(up(x)))
        reglu, geglu, geglu_tanh, swiglu:         y = down(activation(gate(x)) · up(x)), by relu, gelu, gelu, silu

    Args:
        embed_dim: the width of input and output.
        hidden_dim: the number of hidden features.
        activation: one of the names above.
        bias: whether the linear maps have biases.
        dropout: the probability of dropping a hidden feature in training.
        device: the device of the parameters.
        dtype: the dtype of the parameters.

    Shape:
        x: [..., embed_dim]
        Output: [..., embed_dim]

    Raises:
        HeadwayError: if the activation is unknown or a size is below 1.

    References:
        Vaswani et al. 2017 (relu); Hendrycks and Gimpel 2016 (gelu); Shazeer 2020 (gates).
    """

    @right_call("FeedForward(embed_dim=512, hidden_dim=2048)")
    def __init__(
        self,
        embed_dim: int,
        hidden_dim: int,
        activation: str = "gelu",
        *,
        bias: bool = True,
        dropout: float = 0.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        if activation not in ACTIVATIONS:
            raise unknown("activation", activation, ACTIVATIONS)
        need_positive(embed_dim=embed_dim, hidden_dim=hidden_dim)
        super().__init__()
        made: dict[str, Any] = {"device": device, "dtype": dtype}
        self.activation = activation
        self.up_proj = nn.Linear(embed_dim, hidden_dim, bias=bias, **made)
        self.gate_proj = nn.Linear(embed_dim, hidden_dim, bias=bias, **made) if activation in GATED else None
        self.down_proj = nn.Linear(hidden_dim, embed_dim, bias=bias, **made)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Returns y [..., embed_dim] for x [..., embed_dim]."""
        activate = ACTIVATIONS[self.activation]
        parts: Any = self._modules  # since attributes that are modules take a microsecond each, which steps notice
        hidden, dropout = apply_linear(parts["up_proj"], x), parts["dropout"]
        hidden = activate(hidden) if self.gate_proj is None else activate(apply_linear(self.gate_proj, x)) * hidden
        hidden = dropout(hidden) if dropout.training else hidden
        return apply_linear(parts["down_proj"], hidden)
