"""Rescales the rotary encodings of a model, for a while or permanently, so that it reads beyond its window."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from ..errors import HeadwayError
from ..masks import Mask, Window
from ..models import Decoder
from ..positions import PositionEncoding, encoding_name, to_rope_parameters
from ..positions._encodings.dynamic_ntk import DynamicNTK
from ..positions._encodings.partial_rope import PartialRoPE
from ..positions._encodings.rope import RoPE
from ..positions._rescaling import METHODS, need_factor, need_method
from ._load import Checkpoint
from ._table import ARCHITECTURES

SHORTEST = 8
"""The fewest tokens that a model may have been trained for."""


@contextmanager
def extended(model: Decoder, method: str, factor: float, window: int | None = None) -> Iterator[Decoder]:
    """Rescales every plain RoPE of a model within a ``with`` block; its own encodings are put back at the end.

    An encoding stays if the masks of all its layers show less than the window: these layers meet no new angles.

    Args:
        model: a causal language model that ``headway.load`` returned, or another ``Decoder`` with a head.
        method: one of ``METHODS``.
        factor: how many times its window the model is to read, above 1.
        window: the tokens that the model was trained for; its config's max_position_embeddings if None.

    Yields:
        The model.

    Raises:
        HeadwayError: if the method is unknown, the factor is not above 1, the window is unknown, or the model does not
            predict the next token, has no RoPE, or is rescaled already.
    """
    new = rescaled(model, method, factor, window)
    before = {number: model.stack.encodings[number] for number in new}
    _put(model, new)
    try:
        yield model
    finally:
        _put(model, before)


def extend(model: Decoder, method: str, factor: float, window: int | None = None) -> Decoder:
    """Rescales a model permanently, so that ``headway.save`` writes rope_parameters that transformers reads.

    Args:
        model: a causal language model that ``headway.load`` returned.
        method: as for ``extended``.
        factor: as for ``extended``.
        window: as for ``extended``.

    Returns:
        The model.

    Raises:
        HeadwayError: as ``extended`` does, and if ``headway.load`` did not make the model or its config cannot express
            the encoding.
    """
    checkpoint = getattr(model, "checkpoint", None)
    if not isinstance(checkpoint, Checkpoint):
        raise HeadwayError(f"the model is a {type(model).__name__} that headway.load did not make: use extended(…)")
    new = rescaled(model, method, factor, window)
    window = trained_window(model, window)
    if method != "none":
        config = _said(model, new, round(factor * window), window)
        model.checkpoint = replace(checkpoint, config=config)
    _put(model, new)
    return model


def trained_window(model: nn.Module, window: int | None = None) -> int:
    """Returns the tokens that a model was trained for.

    Args:
        model: the model.
        window: the tokens, if known; else they are max_position_embeddings of its config.

    Raises:
        HeadwayError: if they are unknown, or fewer than 8.
    """
    checkpoint = getattr(model, "checkpoint", None)
    config = checkpoint.config if isinstance(checkpoint, Checkpoint) else {}
    tokens = config.get("max_position_embeddings", config.get("n_positions")) if window is None else window
    if tokens is None:
        raise HeadwayError("the config has no max_position_embeddings: give window, the tokens trained for")
    if tokens < SHORTEST:
        raise HeadwayError(f"window is {tokens}: give the tokens that the model was trained for, at least {SHORTEST}")
    return int(tokens)


def need_scalable(model: nn.Module, window: int | None = None) -> None:
    """Raises HeadwayError unless the model has a plain RoPE that can be rescaled.

    Args:
        model: the model.
        window: the tokens that it was trained for, as for ``extended``.
    """
    _ropes(model, window)


def rescaled(model: Decoder, method: str, factor: float, window: int | None) -> dict[int, PositionEncoding]:
    """Returns the rescaled encodings of a model by their number in the stack. Arguments are those of ``extended``."""
    need_method(method)
    need_factor(factor)
    ropes = _ropes(model, window)
    window = trained_window(model, window)
    return {number: METHODS[method](rope, factor, window) for number, rope in ropes.items()}


def _ropes(model: nn.Module, window: int | None) -> dict[int, RoPE | PartialRoPE]:
    """The plain rotary encodings of layers that see as far as the window."""
    if not isinstance(model, Decoder) or model.head is None:
        what = getattr(getattr(model, "checkpoint", None), "architecture", type(model).__name__)
        raise HeadwayError(f"the model is a {what}: give a causal language model, which predicts the next token")
    held = list(model.stack.encodings)
    names = ", ".join(encoding_name(one) for one in held if isinstance(one, PositionEncoding)) or "no positions"
    scaled = [one for one in held if isinstance(one, PositionEncoding) and one.kind == "scaling"]
    if scaled:
        raise HeadwayError(f"the model is rescaled already, by {encoding_name(scaled[0])}: give one with plain RoPE")
    ropes = {number: one for number, one in enumerate(held) if isinstance(one, (RoPE, PartialRoPE))}
    if not ropes:
        raise HeadwayError(f"the model has {names}: there is nothing to rescale, give one with RoPE")
    window = trained_window(model, window)
    layers = list(zip(model.stack.encoding_of_layer, model.stack.masks, strict=True))
    far = {
        number: rope
        for number, rope in ropes.items()
        if any(of is rope and not _is_near(mask, window) for of, mask in layers)
    }
    if not far:
        raise HeadwayError(f"every layer sees fewer than {window:,} tokens back: no angle is new, nothing to rescale")
    return far


def _is_near(mask: Mask | None, window: int) -> bool:
    return isinstance(mask, Window) and mask.left is not None and mask.left < window


def _put(model: Decoder, encodings: Mapping[int, nn.Module]) -> None:
    for number, one in encodings.items():
        model.stack.encodings[number] = one


def _said(model: Decoder, new: dict[int, PositionEncoding], length: int, window: int) -> dict[str, Any]:
    """The model's config with the new encodings."""
    checkpoint: Any = model.checkpoint
    kinds = {json.dumps(to_rope_parameters(one)): one for one in new.values()}
    old = dict(checkpoint.config)
    given = old.get("rope_parameters", old.get("rope_scaling")) or {}
    nested = any(isinstance(value, dict) for value in given.values())
    (text, one), *others = kinds.items()
    gone = ("rope_scaling", "rope_theta", "partial_rotary_factor")
    config = {key: value for key, value in old.items() if key not in gone}
    # transformers reads the trained length of "dynamic" from this key
    config["max_position_embeddings"] = window if isinstance(one, DynamicNTK) else length
    config["rope_parameters"] = json.loads(text)
    family = ARCHITECTURES[checkpoint.architecture]()
    if not nested and not others:
        with torch.device("meta"):
            again: Any = family.build(family.config(config), head=True)
        wanted = {**dict(enumerate(model.stack.encodings)), **new}
        if list(map(repr, again.stack.encodings)) == [repr(wanted[number]) for number in sorted(wanted)]:
            return config
    raise HeadwayError(
        f"the config of a {checkpoint.architecture} cannot express {encoding_name(one)}: use extended(…), or save "
        "another model"
    )
