"""Encodings by name, and names of encodings."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn

from .._common.literals import arguments_in
from .._common.own_files import module_of_file, one_line
from .._torch import constant_in_graphs
from ..errors import HeadwayError, right_call, unknown
from ._base import PositionEncoding
from ._compose import Compose
from ._references import bibtex
from ._table import ENCODINGS

SIZES = ("num_heads", "head_dim", "embed_dim", "max_length", "bidirectional")
"""Arguments that a model may always give: they are passed to every constructor that takes them."""

SPEC = re.compile(
    r"(?:(?P<where>.+?):(?=[A-Za-z_]))?(?P<name>[A-Za-z_][\w-]*|.+?\.py)(?:\((?P<arguments>.*)\))?", re.DOTALL
)

Spec = str | PositionEncoding | type[PositionEncoding]


@right_call("encoding('rope', head_dim=64)")
def encoding(spec: Spec, **sizes: Any) -> PositionEncoding:
    """Returns the encoding that a name describes.

        encoding("rope", head_dim=64)        encoding("rope(base=500000)", head_dim=64)
        encoding("mine.py:Mine(width=3)")    encoding("package.module:Mine", num_heads=8)
        encoding("randomized + rope", head_dim=64)                     both, composed

    Args:
        spec: a name of ``ENCODINGS``, ``file.py:Class`` (or ``file.py``, if it has one encoding) or ``module:Class``,
            each with or without arguments in brackets; a class; or an encoding, which is returned unchanged. A label in
            the brackets, as in "rope(base=5000, label='RoPE 5k')", names the encoding in the tables of a comparison,
            even if it is part of a composition.
        **sizes: arguments of the constructor. num_heads, head_dim, embed_dim, max_length and bidirectional are passed
            to the constructors that take them, so that a model may give them all; everything else must be an argument
            of this encoding. Arguments in brackets take precedence.

    Raises:
        HeadwayError: if a name is unknown, a file or class cannot be loaded, a class is not an encoding, or arguments
            are missing, unknown or wrong.
    """
    if isinstance(spec, PositionEncoding):
        return spec
    if len(parts := _joined(spec)) > 1:
        return Compose(*(encoding(part, **sizes) for part in parts))
    cls, given = _found(spec)
    name = spec if isinstance(spec, str) else cls.__name__
    signature = _signature(cls)
    parameters = signature.parameters
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    unknown = [key for key in sizes if key not in parameters and key not in SIZES and not takes_any]
    if unknown:
        raise HeadwayError(f"{name} has no argument {unknown[0]!r}: it takes {_taken(signature)}")
    arguments = {key: value for key, value in sizes.items() if key in parameters or key not in SIZES} | given
    missing = [
        key
        for key, p in parameters.items()
        if p.default is p.empty and p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY) and key not in arguments
    ]
    if missing:
        raise HeadwayError(
            f"{name} needs {' and '.join(missing)}: give encoding({name!r}, {missing[0]}=…), or "
            f"'{name}({missing[0]}=…)' as a name"
        )
    try:
        return cls(**arguments)
    except HeadwayError:
        raise
    except Exception as error:
        said = ", ".join(f"{key}={value!r}" for key, value in arguments.items())
        raise HeadwayError(f"{name} cannot be built with ({said}): {one_line(error)}") from error


_shared: dict[tuple[str, int, int], PositionEncoding] = {}
MOST_SHARED = 64
LABEL = "label"
"""An argument in brackets that is not passed to the encoding: its name in tables."""


def shared_encoding(spec: str, num_heads: int, head_dim: int) -> PositionEncoding:
    """Returns the encoding of a name for calls of these sizes: the same object each time, in evaluation mode.

    Args:
        spec: a name, as in ``encoding``.
        num_heads: the heads of the queries.
        head_dim: the width of a head.

    Raises:
        HeadwayError: as ``encoding`` does, and if the encoding has parameters or buffers, which no call can keep.
    """
    key = (spec, num_heads, head_dim)
    if torch.compiler.is_compiling() or key not in _shared:
        _share(*key)
    return _shared[key]


@constant_in_graphs  # a compiler cannot make modules, and follows those that it finds
def _share(spec: str, num_heads: int, head_dim: int) -> None:
    key = (spec, num_heads, head_dim)
    if key in _shared:
        return
    made = encoding(spec, num_heads=num_heads, head_dim=head_dim).eval()
    if made.state_dict():
        raise HeadwayError(
            f"the encoding {spec!r} has parameters, which a call would not keep: make it once, by "
            f"headway.encoding({spec!r}, num_heads={num_heads}, head_dim={head_dim}), and give the object"
        )
    while len(_shared) >= MOST_SHARED:
        _shared.pop(next(iter(_shared)), None)
    _shared[key] = made


def encoding_name(encoding: PositionEncoding) -> str:
    """Returns the name of an encoding for reports, with the arguments that differ from their defaults.

        encoding_name(encoding("rope", head_dim=64, base=5e5)) == "rope(base=500000.0)"

    Args:
        encoding: the encoding.
    """
    if isinstance(encoding, Compose):
        return " + ".join(encoding_name(part) for part in encoding.each)
    cls = type(encoding)
    name = next((known for known, entry in ENCODINGS.items() if entry is cls), cls.__name__)
    parameters = _signature(cls).parameters
    unusual = [
        f"{key}={value!r}"
        for key, value in encoding.arguments().items()
        if key not in SIZES and value != parameters[key].default
    ]
    return f"{name}({', '.join(unusual)})" if unusual else name


def label_of(spec: str) -> str:
    """Returns the label of an encoding in tables: the one in its brackets, or else the name that was given.

        label_of("mine.py:Mine(width=3, label='gated')") == "gated"
        label_of("randomized + rope(base=5000, label='RoPE 5k')") == "randomized + RoPE 5k"

    Args:
        spec: a name, as in ``encoding``.

    Raises:
        HeadwayError: if the label is not a text.
    """
    if len(parts := _joined(spec)) > 1:
        labels = [label_of(part) for part in parts]
        return spec if labels == parts else " + ".join(labels)
    match = SPEC.fullmatch(spec.strip())
    found = None if match is None else arguments_in(match["arguments"] or "")
    if found is None or LABEL not in found[1]:  # perhaps no name of an encoding; ``encoding`` reports it
        return spec
    label = found[1][LABEL]
    if not isinstance(label, str) or not label.strip():
        raise HeadwayError(f"encoding {spec!r} has the label {label!r}: give a text")
    return label


def unique_labels(names: Sequence[str], others: Sequence[str] = ()) -> dict[str, str]:
    """Returns the labels of encodings by name, leaving out labels that occur twice or among ``others``.

    Args:
        names: the names of encodings.
        others: other names in the same tables.
    """
    labels = {name: label_of(name) for name in names}
    shown = [*labels.values(), *others]
    return {name: label for name, label in labels.items() if shown.count(label) == 1}


def citation(spec: Spec) -> str:
    """Returns the BibTeX of an encoding's paper, without building the encoding.

    Args:
        spec: a name, a class or an encoding, as in ``encoding``.

    Raises:
        HeadwayError: if the name is unknown.
    """
    if isinstance(spec, Compose):
        return "\n".join(dict.fromkeys(citation(part) for part in spec.each))
    if len(parts := _joined(spec)) > 1:
        return "\n".join(dict.fromkeys(citation(part) for part in parts))
    return bibtex((type(spec) if isinstance(spec, PositionEncoding) else _found(spec)[0]).citation)


# ---------------------------------------------------------------- the class that a spec names


def _found(spec: Any) -> tuple[type[PositionEncoding], dict[str, Any]]:
    """The class, and the arguments in brackets."""
    if isinstance(spec, type):
        return _encoding_class(spec, spec.__name__), {}
    if not isinstance(spec, str):
        raise HeadwayError(f"encoding is {spec!r}: give a name such as 'rope', a class or a PositionEncoding")
    match = SPEC.fullmatch(spec.strip())
    if match is None:
        joined = f", or with blanks around +, {' + '.join(spec.split('+'))!r}" if "+" in spec else ""
        raise HeadwayError(
            f"encoding {spec!r} cannot be read: give 'name', 'name(key=value)' or 'path.py:Class'{joined}; `headway "
            "encodings` lists the names"
        )
    where, name, arguments = match["where"], match["name"], match["arguments"]
    if where is None and name.endswith(".py"):
        module = module_of_file(Path(name))
        cls: Any = _only_encoding(module, name)
    elif where is None:
        cls = _named(name)
    else:
        module = module_of_file(Path(where)) if where.endswith(".py") else _module(where)
        cls = getattr(module, name, None)
        if cls is None:
            raise HeadwayError(f"{where} has no {name}: it has {_encodings_in(module)}")
    return _encoding_class(cls, spec), _arguments(cls, spec, arguments)


def _joined(spec: Spec) -> list[str]:
    """The parts of ``a + b``; none if spec is not a string."""
    return split_outside(spec, " + ")[0] if isinstance(spec, str) else []


def split_outside(text: str, separator: str) -> tuple[list[str], bool]:
    """The parts between separators outside of brackets and of quotes in them, and whether all of those are closed."""
    parts, depth, quote = [""], 0, ""
    for at, letter in enumerate(text):
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"" and depth:
            quote = letter
        elif letter in "([{":
            depth += 1
        elif letter in ")]}":
            depth -= 1
        parts[-1] += letter
        if not depth and not quote and text.endswith(separator, 0, at + 1):
            parts[-1] = parts[-1].removesuffix(separator)
            parts.append("")
    return [part.strip() for part in parts], not depth and not quote


def _named(name: str) -> type[PositionEncoding]:
    if name not in ENCODINGS:
        raise unknown("encoding", name, ENCODINGS, see="`headway encodings`")
    return ENCODINGS[name]


def _encoding_class(thing: Any, name: str) -> type[PositionEncoding]:
    if not (isinstance(thing, type) and issubclass(thing, PositionEncoding)):
        kind = f"a {type(thing).__name__}" if not isinstance(thing, type) else "a class, but no encoding"
        raise HeadwayError(f"{name} is {kind}: derive it from headway.positions.PositionEncoding")
    return thing


def _signature(cls: type) -> inspect.Signature:
    """The signature of the constructor: empty if a class uses that of ``nn.Module``, which is *args, **kwargs."""
    return inspect.Signature() if cls.__init__ is nn.Module.__init__ else inspect.signature(cls)  # type: ignore[misc]


def _arguments(cls: type, spec: str, text: str | None) -> dict[str, Any]:
    """The arguments in brackets by name: literals only, nothing is evaluated."""
    if not text:
        return {}
    found = arguments_in(text)
    if found is None:
        raise HeadwayError(f"encoding {spec!r}: give arguments as literals, such as base=500000 or layout='half'")
    values, named = found
    signature = _signature(cls)
    if LABEL not in signature.parameters:
        named.pop(LABEL, None)
    try:
        arguments = dict(signature.bind_partial(*values, **named).arguments)
    except TypeError as error:
        raise HeadwayError(f"encoding {spec!r}: {error}; it takes {_taken(signature)}") from None
    for key, parameter in signature.parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            arguments |= arguments.pop(key, {})
    return arguments


def _taken(signature: inspect.Signature) -> str:
    return ", ".join(signature.parameters) or "no arguments"


# ---------------------------------------------------------------- a user's own files and modules


def _module(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except Exception as error:
        raise HeadwayError(f"module {name} cannot be imported: {one_line(error)}") from error


def _own_encodings(module: ModuleType) -> dict[str, type[PositionEncoding]]:
    return {
        name: thing
        for name, thing in vars(module).items()
        if isinstance(thing, type) and issubclass(thing, PositionEncoding) and thing.__module__ == module.__name__
    }


def _encodings_in(module: ModuleType) -> str:
    return ", ".join(_own_encodings(module)) or "no class derived from headway.positions.PositionEncoding"


def _only_encoding(module: ModuleType, path: str) -> type[PositionEncoding]:
    own = _own_encodings(module)
    if len(own) != 1:
        raise HeadwayError(f"{path} has {_encodings_in(module)}: give {path}:Class")
    return next(iter(own.values()))
