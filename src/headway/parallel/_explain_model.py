"""How the layers of a model would share their attention, explained without sending anything."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import Self

from ..coordinates import Coordinates
from ..errors import HeadwayError
from ._attention import Explanation, explained, spoken
from ._context import Context, layers_asking
from ._shards import Shards
from .methods import Traffic


@dataclass(frozen=True)
class ModelExplanation:
    """How the layers of a model would share their attention; prints as a table.

    Attributes:
        layers: for each layer that a call reaches, by its name, the explanation of its first call.
        shards: which tokens each process has.
    """

    layers: dict[str, Explanation]
    shards: Shards = field(repr=False)

    @property
    def traffic(self) -> Traffic:
        """What this process sends in all layers together, with the chosen methods."""
        chosen = [one.traffic[one.method] for one in self.layers.values() if one.method in one.traffic]
        return Traffic(*map(sum, zip(*chosen, strict=True))) if chosen else Traffic(0, 0)

    def __str__(self) -> str:
        lines = [f"{len(self.layers)} layers   ({self.shards!r})", f"  together: {spoken(self.traffic)}"]
        for name, one in self.layers.items():
            lines.append(f"{name}  {str(one).partition('   (')[0]}")
            lines += str(one).split("\n")[1:]
        return "\n".join(lines)


def explain_model(
    model: nn.Module,
    shards: Shards,
    *inputs: Any,
    method: str = "auto",
    context_shards: Shards | None = None,
    **arguments: Any,
) -> ModelExplanation:
    """Explains how each layer of a model would share its attention in a ``context``, without sending anything.

        ids, at = shards.take(ids)
        print(hw.parallel.explain_model(model, shards, ids, positions=at, mask=hw.masks.Causal()))

    The model is called with this process's tokens, without gradients. Its layers compute everything but attention,
    whose output is 0. A single process may call it, unless all processes must call the model together, as with
    ``fully_shard``.

    Args:
        model: the model, or one layer.
        shards: which tokens each process has.
        *inputs: the inputs of the model in a ``context``.
        method: "auto", or the name of a method.
        context_shards: as for ``context``.
        **arguments: further arguments of the model.

    Returns:
        The explanation of each layer, which prints as a table.

    Raises:
        HeadwayError: as ``context`` does; for a cache; and for positions that are tensors, since the other processes
            have other parts of these.
    """
    devices = {parameter.device for parameter in model.parameters() if parameter.device.type == "cuda"}
    with (
        torch.no_grad(),
        torch.random.fork_rng(sorted(devices, key=str)),
        layers_asking(_Rehearsal, model, shards, method, context_shards) as one,
    ):
        model(*inputs, **arguments)
    return ModelExplanation(one.explained, shards)


class _Rehearsal(Context):
    """A context that explains attention instead of computing it. It sends nothing."""

    def __init__(self, shards: Shards, method: str, context_shards: Shards | None) -> None:
        super().__init__(shards, method, context_shards)
        self.explained: dict[str, Explanation] = {}

    def _follow(self, other: Self) -> None:
        super()._follow(other)
        self.explained = other.explained

    def attention(self, layer: nn.Module, q: Tensor, k: Tensor, v: Tensor, *, cross: bool, **arguments: Any) -> Tensor:
        for name in ("q_positions", "k_positions"):
            self._need_known(arguments.get(name))
        explanation = explained(self._call(q, k, v, cross, arguments), self.method)
        self.explained.setdefault(self._name(layer), explanation)
        return q.new_zeros((*q.shape[:3], v.shape[3]))

    def cached_attention(self, layer: nn.Module, *tensors: Tensor, **arguments: Any) -> Tensor:
        raise HeadwayError("a cache is given, which is filled by calls that are computed: leave it out")

    def coordinates(self, positions: Tensor | Coordinates | None, count: int, device: torch.device) -> Coordinates:
        self._need_known(positions)
        return super().coordinates(positions, count, device)

    def context_coordinates(self, positions: Tensor | Coordinates | None, context: Tensor) -> Coordinates:
        self._need_known(positions)
        return super().context_coordinates(positions, context)

    def _seed(self, device: torch.device) -> int:
        return 0

    def _begin(self) -> None:
        """A rehearsal is not counted, since a process may rehearse alone."""

    def _left_by(self, error: BaseException) -> None:
        """No other process waits for a rehearsal."""

    def _need_known(self, positions: Tensor | Coordinates | None) -> None:
        if isinstance(positions, Tensor) and self.shards.group.size > 1:
            raise HeadwayError("positions are tensors, and other processes hold the rest: give those of Shards.take")
