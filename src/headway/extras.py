"""Packages that only some parts need."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from .errors import HeadwayError


def need(module: str, what: str, extra: str = "vectors") -> Any:
    """The module, imported; raises HeadwayError that says how to install it where it is not there."""
    package = module.partition(".")[0]
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name != package:
            raise
        raise HeadwayError(f"{what} needs {package}: pip install 'headway[{extra}]'") from None
