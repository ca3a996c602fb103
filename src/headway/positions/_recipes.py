"""Recipes of whole stacks, an encoding and a mask for each layer, and the removal of encodings after training."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from torch import nn

from ..errors import HeadwayError, need_positive
from ..masks import Chunked, Mask, Window
from ._base import PositionEncoding
from ._encodings.llama4_temperature import Llama4Temperature
from ._encodings.nope import NoPE
from ._encodings.rope import RoPE
from ._encodings.rotary_values import RotaryValues
from ._rotary import Rotary


class Recipe(NamedTuple):
    """The encodings and masks of the layers of a causal stack: ``headway.models.Decoder(config, *recipe)``.

    Layers of one kind share one encoding.

    Attributes:
        encodings: the encoding of each layer, or None.
        masks: the mask of each layer, combined with the causal one, or None.
    """

    encodings: list[PositionEncoding | None]
    masks: list[Mask | None]


def llama4(
    num_layers: int, head_dim: int, interval: int = 4, base: float = 500_000.0, amount: float = 0.1, step: int = 8192
) -> Recipe:
    """Returns iRoPE: RoPE, and in every interval-th layer no positions but a temperature.

    The layers with RoPE attend to their own chunk of 8192 tokens, the others to all. Llama 4 also divides queries and
    keys of the layers with RoPE by their root mean square, after the rotation.

    Args:
        num_layers: the number of layers.
        head_dim: the width of each head, even.
        interval: every interval-th layer has no positions.
        base: the base of the frequencies, above 1.
        amount: as in ``Llama4Temperature``.
        step: as in ``Llama4Temperature``.

    References:
        Meta AI 2025 (meta2025llama4).
    """
    return _every(num_layers, interval, (RoPE(head_dim, base), Chunked(8192)), (Llama4Temperature(amount, step), None))


def smollm3(num_layers: int, head_dim: int, interval: int = 4, base: float = 2_000_000.0) -> Recipe:
    """Returns RoPE, and no positions in every interval-th layer.

    The only mask is the causal one. The released code can use a window in the layers without positions, while
    ``rnope_swa`` has it in the others.

    Args:
        num_layers: the number of layers.
        head_dim: the width of each head, even.
        interval: every interval-th layer has no positions.
        base: the base of the frequencies, above 1.

    References:
        Bakouch et al. 2025 (bakouch2025smollm3).
    """
    return _every(num_layers, interval, (RoPE(head_dim, base, layout="half"), None), (None, None))


def rnope_swa(num_layers: int, head_dim: int, interval: int = 4, base: float = 10_000.0, window: int = 4096) -> Recipe:
    """Returns RoPE in layers with a window and no positions in every interval-th layer: Command A and Cohere 2.

    The layers with RoPE attend to the last ``window`` tokens, the others to all. Released weights have other bases: use
    that of their configuration.

    Args:
        num_layers: the number of layers.
        head_dim: the width of each head, even.
        interval: every interval-th layer has no positions and no window.
        base: the base of the frequencies, above 1.
        window: the number of keys, the query's own included, to which layers with RoPE attend.

    References:
        Yang et al. 2025 (yang2025rope).
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
    """Returns RoPE of two bases: the small one in layers with a window, the large one in every interval-th layer.

    The layers with the small base attend to the last ``window`` tokens, the others to all. From 4 billion parameters
    on, the released weights divide the positions of the latter by 8.

    Args:
        num_layers: the number of layers.
        head_dim: the width of each head, even.
        interval: every interval-th layer has the large base and no window.
        base: the small base, above 1.
        far_base: the large base, above 1.
        window: the number of keys, the query's own included, to which layers with the small base attend; 512 in the
            model of 1 billion parameters.

    References:
        Gemma Team 2025 (gemma2025gemma3), section 2.
    """
    near, far = (RoPE(head_dim, theta, layout="half") for theta in (base, far_base))
    return _every(num_layers, interval, (near, Window(window - 1)), (far, None))


RECIPES: dict[str, Callable[..., Recipe]] = {
    "llama-4": llama4,
    "smollm-3": smollm3,
    "rnope-swa": rnope_swa,
    "gemma-3": gemma3,
}
"""The recipes by name. Each is called with num_layers, head_dim and the optional arguments of its docstring."""


ROTATIONS = (Rotary, RotaryValues)
"""The encodings that rotate queries, keys or values."""


def drop_positions(model: nn.Module, kinds: tuple[type[PositionEncoding], ...] = ROTATIONS) -> int:
    """Replaces every encoding of these kinds in a model by NoPE and returns the number of replacements.

    DroPE: a causal model learns faster with rotary positions than without, and generalizes to longer sequences without
    them. Train it with them, drop them, and continue training for a while (0.5 to 2 % of the tokens) at the old length,
    which restores the loss. Caches that hold prepared keys must be started again. The parts of a Compose are replaced
    one by one.

    Args:
        model: the module that owns the encodings.
        kinds: the classes of the encodings to replace; those that rotate queries, keys or values by default.

    Raises:
        HeadwayError: if the model has no such encoding; one that is passed with each call cannot be found.

    References:
        Gelberg et al. 2026 (gelberg2026extending).
    """
    children = [(holder, *child) for holder in model.modules() for child in holder.named_children()]
    places = [
        (holder, name)
        for holder, name, held in children
        if isinstance(held, kinds) and not isinstance(holder, RotaryValues)  # RotaryValues needs its rotation
    ]
    if not places:
        said = ", ".join(kind.__name__ for kind in kinds)
        raise HeadwayError(f"the model holds no encoding of the kinds {said}: give the module that owns the encodings")
    for holder, name in places:
        setattr(holder, name, NoPE())
    return len(places)


Layer = tuple[PositionEncoding | None, Mask | None]


def _every(num_layers: int, interval: int, usual: Layer, each: Layer) -> Recipe:
    """The usual layer, except at interval − 1, 2·interval − 1 … the other."""
    need_positive(num_layers=num_layers, interval=interval)
    layers = [usual if (layer + 1) % interval else each for layer in range(num_layers)]
    return Recipe([encoding for encoding, _ in layers], [mask for _, mask in layers])
