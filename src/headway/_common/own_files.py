"""Loads modules from users' files, such as an encoding or a task."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType

from ..errors import HeadwayError

__all__ = ["module_of_file", "one_line"]


def module_of_file(path: Path) -> ModuleType:
    """Executes a file again and returns its module; it may import modules from its directory.

    Args:
        path: the file.

    Raises:
        HeadwayError: if there is no such file, or it cannot be run.
    """
    if not os.path.isfile(path):
        raise HeadwayError(f"{path} is not a file: give the path of a Python file, such as mine.py:Mine")
    name = str(path.resolve()).replace(".", ":")  # pickle takes what is before a dot for a package
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise HeadwayError(f"{path} cannot be loaded: give the path of a Python file")
    module = importlib.util.module_from_spec(spec)
    before, folder = sys.modules.get(name), str(path.resolve().parent)
    sys.modules[name] = module  # dataclasses and pickle look a class's module up there
    sys.path.insert(0, folder)
    try:
        spec.loader.exec_module(module)
    except SyntaxError as error:
        _put_back(name, before)
        raise HeadwayError(f"{path} has a syntax error in line {error.lineno}: {error.msg}") from error
    except Exception as error:
        _put_back(name, before)
        raise HeadwayError(f"{path} cannot be run: {one_line(error)}") from error
    finally:
        sys.path.remove(folder)
    return module


def _put_back(name: str, module: ModuleType | None) -> None:
    if module is None:
        sys.modules.pop(name, None)
    else:
        sys.modules[name] = module


def one_line(error: Exception) -> str:
    """Returns the kind and the message of an ``error`` in one line."""
    said = " ".join(str(error).split())
    return f"{type(error).__name__}: {said}" if said else type(error).__name__
