"""Methods that rescale a plain RoPE so that a trained model reads beyond its window."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from ..coordinates import Coordinates
from ..errors import HeadwayError, unknown
from ._base import PositionEncoding
from ._encodings.dynamic_ntk import DynamicNTK
from ._encodings.llama3 import Llama3
from ._encodings.longrope import LongRoPE
from ._encodings.ntk_aware import need_slow_pairs
from ._encodings.position_interpolation import PositionInterpolation
from ._encodings.yarn import YaRN

MANY_TURNS = 32
"""A pair of dimensions that turns so often within the window has seen all of its angles (YaRN's beta_fast)."""

Method = Callable[[Any, float, int], PositionEncoding]
"""Maps a RoPE or PartialRoPE, the factor, and the trained window in tokens, to the encoding that replaces it."""


def none(rope: Any, factor: float, window: int) -> PositionEncoding:
    """Returns the encoding unchanged."""
    unchanged: PositionEncoding = rope
    return unchanged


def linear(rope: Any, factor: float, window: int) -> PositionEncoding:
    """Divides all frequencies by the factor (Chen et al. 2023)."""
    return PositionInterpolation(factor=factor, **_like(rope))


def ntk(rope: Any, factor: float, window: int) -> PositionEncoding:
    """Returns RoPE with the base base·factor^(d/(d − 2)), for d rotated dimensions: ``NTKAware`` (bloc97 2023)."""
    width = 2 * rope.pairs
    need_slow_pairs(width)
    rescaled: PositionEncoding = type(rope)(**{**rope.arguments(), "base": rope.base * factor ** (width / (width - 2))})
    return rescaled


def dynamic(rope: Any, factor: float, window: int) -> PositionEncoding:
    """Returns the same with the factor T/window for a length T read so far; ``factor`` is not used (emozilla)."""
    return DynamicNTK(max_length=window, **_like(rope))


def yarn(rope: Any, factor: float, window: int) -> PositionEncoding:
    """Slows slow pairs, keeps fast ones, and sharpens attention, as the authors' code does (Peng et al. 2024)."""
    return YaRN(factor=factor, max_length=window, **_like(rope))


def longrope_style(rope: Any, factor: float, window: int) -> PositionEncoding:
    """Returns LongRoPE with a rule in place of the paper's search (Ding et al. 2024): a frequency for each pair.

        λ_c = factor^(1 − γ_c),   γ_c = ln(r_c)/ln(32) within 0 … 1,   r_c = window·θ_c/2π

    So λ is 1 for pairs that turn 32 times within the window, and the factor for pairs that do not turn once. Between
    them it follows the logarithm of the turns. λ applies beyond the window only; up to the window all λ are 1. Scores
    grow by LongRoPE's μ at any length. Unlike the paper, this method has neither a search nor fine-tuning.
    """
    turns = [window * theta / (2 * math.pi) for theta in rope.frequencies(Coordinates.span(1)).tolist()]
    kept = [min(max(math.log(r) / math.log(MANY_TURNS), 0.0), 1.0) for r in turns]
    return LongRoPE(
        short_factor=[1.0] * rope.pairs,
        long_factor=[factor ** (1 - gamma) for gamma in kept],
        factor=factor,
        max_length=window,
        **_like(rope),
    )


def llama3(rope: Any, factor: float, window: int) -> PositionEncoding:
    """Keeps pairs above 4 turns within the window and slows pairs below 1, as Llama 3.1 (Grattafiori et al. 2024)."""
    return Llama3(factor=factor, max_length=window, **_like(rope))


METHODS: dict[str, Method] = {
    "none": none,
    "linear": linear,
    "ntk": ntk,
    "dynamic": dynamic,
    "yarn": yarn,
    "longrope-style": longrope_style,
    "llama3": llama3,
}
"""The methods of rescaling by name; "none" is the one that all others are compared with."""


def _like(rope: Any) -> dict[str, Any]:
    part = 2 * rope.pairs
    return {
        "head_dim": rope.head_dim,
        "base": rope.base,
        "layout": rope.layout,
        "rotary_dim": None if part == rope.head_dim else part,
    }


def need_method(method: str) -> None:
    """Raises HeadwayError unless the method is known.

    Args:
        method: its name.

    Raises:
        HeadwayError: if it is not one of ``METHODS``.
    """
    if method not in METHODS:
        raise unknown("method", method, METHODS)


def need_factor(factor: float) -> None:
    """Raises HeadwayError unless the factor is finite and above 1.

    Args:
        factor: the factor.

    Raises:
        HeadwayError: if it is not.
    """
    if not 1 < factor < math.inf:
        raise HeadwayError(f"factor is {factor}: give a number above 1, such as 4 for four times the window")
