"""Whole stacks: an encoding and a mask for each layer; and what removes encodings after training."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from torch import nn

from ..errors import HeadwayError, need_positive
from ..masks import Chunked, Mask, Window
from ._base import PositionEncoding
from ._rotary import Rotary
from .llama4_temperature import Llama4Temperature
from .nope import NoPE
from .rope import RoPE
from .rotary_values import RotaryValues


class Recipe(NamedTuple):
    """What each layer of a causal stack has: ``headway.models.Decoder(config, *recipe)``.

    Layers of one kind share one encoding. The masks join the causal one.
    """

    encodings: list[PositionEncoding | None]
    masks: list[Mask | None]


def llama4(
    num_layers: int, head_dim: int, interval: int = 4, base: float = 500_000.0, amount: float = 0.1, step: int = 8192
) -> Recipe:
    """iRoPE: RoPE, and in every interval-th layer no positions but a temperature.

    Masks: the layers with RoPE see their own chunk of 8192 tokens, the others all. Llama 4 also divides queries and
    keys of the layers with RoPE by their root mean square, after the turn.
    Cite: Meta AI 2025 (meta2025llama4).
    """
    return _every(num_layers, interval, (RoPE(head_dim, base), Chunked(8192)), (Llama4Temperature(amount, step), None))


def smollm3(num_layers: int, head_dim: int, interval: int = 4, base: float = 2_000_000.0) -> Recipe:
    """RoPE, and none in every interval-th layer.

    Masks: none beside the causal one. The released code can put a window on the layers without positions, where
    ``rnope_swa`` has it on the others.
    Cite: Bakouch et al. 2025 (bakouch2025smollm3).
    """
    return _every(num_layers, interval, (RoPE(head_dim, base, layout="half"), None), (None, None))


def rnope_swa(num_layers: int, head_dim: int, interval: int = 4, base: float = 10_000.0, window: int = 4096) -> Recipe:
    """RoPE in layers that see a window, none in every interval-th layer, which sees all: Command A and Cohere 2.

    Masks: the layers with RoPE see the last ``window`` tokens, their own included. Released weights have bases of their
    own: take that of their configuration.
    Cite: Yang et al. 2025 (yang2025rope).
    """
    return _every(num_layers, interval, (RoPE(head_dim, base), Window(window - 1)), (None, None))


def gemma3(
    num_layers: int,
    head_dim: int,
    interval: int = 6,
    base: float = 10_000.0,
    far_base: float = 1_000_000.0,
    window: int = 1024,
) -> Recipe:
    """RoPE of two bases: the small one in layers that see a window, the large one in every interval-th, which sees all.

    Masks: the layers of the small base see the last ``window`` tokens, their own included (512 in the model of 1
    billion parameters). From 4 billion parameters on, the released weights divide the positions of the latter by 8.
    Cite: Gemma Team 2025 (gemma2025gemma3), section 2.
    """
    near, far = (RoPE(head_dim, theta, layout="half") for theta in (base, far_base))
    return _every(num_layers, interval, (near, Window(window - 1)), (far, None))


RECIPES: dict[str, Callable[..., Recipe]] = {
    "llama-4": llama4,
    "smollm-3": smollm3,
    "rnope-swa": rnope_swa,
    "gemma-3": gemma3,
}
"""By name; each is called with num_layers and head_dim, and what its docstring tells besides."""


ROTATIONS = (Rotary, RotaryValues)
"""What turns queries, keys and values."""


def drop_positions(model: nn.Module, kinds: tuple[type[PositionEncoding], ...] = ROTATIONS) -> int:
    """Puts NoPE in the place of every encoding of these kinds that the model holds, and tells how many places.

    DroPE: a causal model learns faster with rotary positions than without, and reaches further once they are gone.
    Train it with them, drop them, and train on for a while (0.5 to 2 % of the tokens) at the old length, which brings
    back the loss. Caches that hold prepared keys are to be started anew. The parts of a Compose are replaced one by
    one. Raises HeadwayError where the model holds none: one that was handed over with each call cannot be found.
    Cite: Gelberg et al. 2026 (gelberg2026extending).
    """
    children = [(holder, *child) for holder in model.modules() for child in holder.named_children()]
    places = [
        (holder, name)
        for holder, name, held in children
        if isinstance(held, kinds) and not isinstance(holder, RotaryValues)  # which is nothing without its rotation
    ]
    if not places:
        said = ", ".join(kind.__name__ for kind in kinds)
        raise HeadwayError(f"the model holds no encoding of the kinds {said}: give the module that owns the encodings")
    for holder, name in places:
        setattr(holder, name, NoPE())
    return len(places)


Layer = tuple[PositionEncoding | None, Mask | None]


def _every(num_layers: int, interval: int, usual: Layer, each: Layer) -> Recipe:
    """The usual layer, and at interval − 1, 2·interval − 1 … the other."""
    need_positive(num_layers=num_layers, interval=interval)
    layers = [usual if (layer + 1) % interval else each for layer in range(num_layers)]
    return Recipe([encoding for encoding, _ in layers], [mask for _, mask in layers])
