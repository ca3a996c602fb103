"""Value residuals: the values of the first layer within those of later ones."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ...errors import HeadwayError
from ._base import FirstValues, Part


class ValueResidual(Part):
    """Mixes the values of the first layer into those of each later layer, with two learned factors.

        v′ = λ₁·v⁽⁰⁾ + λ₂·v,   λ₁ = λ₂ = ½ at first

    Args:
        layer: the number of the layer in its stack. Layer 0 passes its values on and has no parameters.
        device: the device of the parameters.
        dtype: the dtype of the parameters.

    Raises:
        HeadwayError: if layer is below 0. A call raises it without ``first_values``, or if layer 0 was not called
            before with the same ones.

    References:
        Zhou et al. 2024, arXiv:2410.17897 (ResFormer with learned factors).
    """

    reads_first_values = True
    mix: nn.Parameter | None

    def __init__(
        self, layer: int, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> None:
        if layer < 0:
            raise HeadwayError(f"layer is {layer}: give the number of the layer, from 0")
        super().__init__()
        self.register_parameter("mix", nn.Parameter(torch.empty(2, device=device, dtype=dtype)) if layer else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Resets both factors to ½."""
        if self.mix is not None:
            nn.init.constant_(self.mix, 0.5)

    def values(self, v: Tensor, first: FirstValues | None) -> Tensor:
        """Mixes both values, or hands ``v`` over in layer 0; see ``Part.values`` for ``v`` and ``first``.

        Raises:
            HeadwayError: if first is None, or in a later layer holds no values, or some whose gradients would be lost.
        """
        if first is None:
            raise HeadwayError(
                "first_values is not given: give one headway.nn.FirstValues() to all layers of a forward pass"
            )
        if self.mix is None:
            first.values, first.with_gradients = v, torch.is_grad_enabled()
            return v
        if first.values is None:
            raise HeadwayError("first_values holds no values: call the layer that was made with layer=0 before others")
        if torch.is_grad_enabled() and not first.with_gradients:
            raise HeadwayError(
                "first_values were computed without gradients, as a checkpoint with use_reentrant=True does, and those "
                "of the first layer would be lost: give use_reentrant=False"
            )
        return self.mix[0] * first.values + self.mix[1] * v
