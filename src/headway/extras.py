"""Imports of optional packages."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from .errors import HeadwayError


def need(module: str, what: str, extra: str = "vectors") -> Any:
    """Imports a module of an optional package.

    Args:
        module: the name of the module.
        what: what needs it, for the message.
        extra: the extra of headway that installs it.

    Raises:
        HeadwayError: if the package is not installed; the message says how to install it.
    """
    package = module.partition(".")[0]
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name != package:
            raise
        raise HeadwayError(f"{what} needs {package}: pip install 'headway[{extra}]'") from None
