"""Conversion between rotary encodings and the rope_parameters of Hugging Face configs."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import HeadwayError, unknown
from ._base import PositionEncoding
from ._encodings.dynamic_ntk import DynamicNTK
from ._encodings.llama3 import Llama3
from ._encodings.longrope import LongRoPE
from ._encodings.p_rope import ProportionalRoPE
from ._encodings.partial_rope import PartialRoPE
from ._encodings.position_interpolation import PositionInterpolation
from ._encodings.rope import RoPE
from ._encodings.yarn import YaRN
from ._rescaled import Rescaled

LENGTH = "original_max_position_embeddings"
PART = "partial_rotary_factor"
ARGUMENTS = {LENGTH: "max_length", PART: "fraction"}
"""The constructor arguments of keys whose names differ."""
THEIRS = ("type", "finetuned")
"""Keys that are ignored."""
ELSEWHERE = {
    ("yarn", "factor"): " or max_position_embeddings=",
    ("yarn", LENGTH): " or max_position_embeddings=",
    ("llama3", LENGTH): " or max_position_embeddings=",
    ("longrope", "factor"): " or max_position_embeddings=",
    ("longrope", LENGTH): ", which Phi-3 keeps beside them in its config",
}
"""Arguments that can replace a missing key."""


@dataclass(frozen=True)
class Kind:
    """The encoding of one rope_type, with the keys it needs and the optional ones."""

    encoding: type[PositionEncoding]
    needed: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()


KINDS = {
    "default": Kind(RoPE),
    "linear": Kind(PositionInterpolation, ("factor",)),
    "dynamic": Kind(DynamicNTK, ("factor",)),
    "yarn": Kind(
        YaRN,
        ("factor", LENGTH),
        ("attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate"),
    ),
    "longrope": Kind(LongRoPE, ("short_factor", "long_factor", "factor", LENGTH), ("attention_factor",)),
    "llama3": Kind(Llama3, ("factor", "low_freq_factor", "high_freq_factor", LENGTH)),
    "proportional": Kind(ProportionalRoPE, (PART,), ("factor",)),
}
KNOWN = ", ".join(KINDS)


def from_rope_parameters(
    parameters: Mapping[str, Any] | None,
    head_dim: int,
    *,
    base: float | None = None,
    max_position_embeddings: int | None = None,
    layout: str = "half",
) -> PositionEncoding:
    """Returns the encoding that a config's ``rope_parameters`` (``rope_scaling`` in older ones) describe.

        from_rope_parameters({"rope_type": "llama3", "factor": 8.0, …}, head_dim=128)
        from_rope_parameters(config.rope_scaling, 128, base=config.rope_theta)

    Args:
        parameters: the dictionary; RoPE if None. Keys that are None count as missing.
        head_dim: the width of each head.
        base: rope_theta if the dictionary has none; 10000 if neither has one.
        max_position_embeddings: that of the config, needed by "dynamic", and by "yarn", "llama3" and "longrope" if the
            dictionary lacks the keys that follow from it.
        layout: "half" as in most of these models, "interleaved" for GPT-J, Cohere and Llama 4.

    Raises:
        HeadwayError: if rope_type is unknown, keys are missing, wrong or not read by that type, or the dictionary
            contains dictionaries, one for each kind of layer.
    """
    given = {key: value for key, value in (parameters or {}).items() if value is not None}
    nested = [key for key, value in given.items() if isinstance(value, Mapping)]
    if nested:
        raise HeadwayError(f"rope_parameters hold a set for each of {', '.join(nested)}: give one of them")
    name = given.pop("rope_type", given.get("type", "default"))
    name = "longrope" if name == "su" else name
    if name not in KINDS:
        raise unknown("rope_type", name, KINDS)
    kind = KINDS[name]
    theta = given.pop("rope_theta", 10000.0 if base is None else base)
    part = given.pop(PART, 1.0)
    if name == "proportional":
        given[PART] = part
    _fill(name, given, max_position_embeddings)
    _check(name, kind, given)
    _need_number("rope_theta", theta)
    _need_number(PART, part)
    common = {"head_dim": head_dim, "base": theta, "layout": layout}
    if name == "default":
        return RoPE(**common) if part == 1 else PartialRoPE(fraction=part, **common)
    if name == "dynamic":
        common["max_length"] = max_position_embeddings
    if name != "proportional" and part != 1:
        common["rotary_dim"] = int(head_dim * part)
    taken = {ARGUMENTS.get(key, key): given[key] for key in (*kind.needed, *kind.optional) if key in given}
    return kind.encoding(**common, **taken)


def to_rope_parameters(encoding: PositionEncoding) -> dict[str, Any]:
    """Returns the ``rope_parameters`` of an encoding; ``from_rope_parameters`` builds the same encoding from them.

    Keys at their default are left out. A config stores elsewhere: head_dim, the layout, and max_position_embeddings,
    which is the max_length of DynamicNTK.

    Args:
        encoding: a rotary encoding.

    Raises:
        HeadwayError: if Hugging Face has no such encoding, or no key for one of its arguments.
    """
    cls = RoPE if isinstance(encoding, PartialRoPE) else type(encoding)
    name = next((name for name, kind in KINDS.items() if kind.encoding is cls), None)
    if name is None:
        raise HeadwayError(f"{type(encoding).__name__} has no rope_type: there are {KNOWN}")
    held: dict[str, Any] = {key: getattr(encoding, key) for key in inspect.signature(type(encoding)).parameters}
    kind, usual = KINDS[name], inspect.signature(type(encoding)).parameters
    parameters = {"rope_type": name, "rope_theta": held["base"]}
    if isinstance(encoding, LongRoPE):
        held["short_factor"] = list(encoding.short_factor or [1.0] * encoding.pairs)
        held["long_factor"] = list(encoding.long_factor or [encoding.factor] * encoding.pairs)
    if isinstance(encoding, Rescaled) and name != "proportional" and encoding.width < encoding.head_dim:
        parameters[PART] = held.get("fraction") or _part(encoding.width, encoding.head_dim)
    for key in (*kind.needed, *kind.optional):
        argument = ARGUMENTS.get(key, key)
        if key in kind.needed or held[argument] != usual[argument].default:
            parameters[key] = held[argument]
    said = {ARGUMENTS.get(key, key) for key in parameters} | {"head_dim", "base", "layout", "rotary_dim", "fraction"}
    said |= {"max_length"} if name == "dynamic" else set()
    for argument, value in held.items():
        if argument not in said and value != usual[argument].default:
            raise HeadwayError(
                f"{argument} is {value!r}: rope_parameters have no key for it, leave {usual[argument].default!r}"
            )
    return parameters


def _fill(name: str, given: dict[str, Any], longest: int | None) -> None:
    """Adds the keys that transformers derives from max_position_embeddings."""
    if name in ("yarn", "llama3") and longest is not None:
        given.setdefault(LENGTH, longest)
    original = given.get(LENGTH)
    if name in ("yarn", "longrope") and longest is not None and isinstance(original, (int, float)) and original > 0:
        given.setdefault("factor", max(1.0, longest / original))
    if name == "dynamic" and longest is None:
        raise HeadwayError("the rope_type 'dynamic' needs the config's max_position_embeddings: give that argument")
    for key in ("mscale", "mscale_all_dim", "beta_fast", "beta_slow"):
        if name == "yarn" and given.get(key) == 0:  # there, too, nothing
            del given[key]


def _check(name: str, kind: Kind, given: dict[str, Any]) -> None:
    for key in kind.needed:
        if key not in given:
            also = ELSEWHERE.get((name, key), "")
            raise HeadwayError(f"rope_parameters of the rope_type {name!r} have no {key}: give it{also}")
    for key, value in given.items():
        if key not in (*kind.needed, *kind.optional, *THEIRS):
            raise HeadwayError(f"{key} is {value!r}: the rope_type {name!r} does not read it, leave it out")
        if key in ("short_factor", "long_factor"):
            if not isinstance(value, (list, tuple)):
                raise HeadwayError(f"{key} is {value!r}: give a list of numbers")
            for number in value:
                _need_number(key, number)
        elif key != "truncate" and key not in THEIRS:
            _need_number(key, value)


def _need_number(key: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise HeadwayError(f"{key} is {value!r}: give a number")


def _part(width: int, head_dim: int) -> float:
    """The fraction of a head for which ``int(head_dim·fraction)`` is the width."""
    share = width / head_dim
    return share if int(head_dim * share) == width else math.nextafter(share, 1.0)
