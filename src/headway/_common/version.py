"""The version of headway, also of its package."""

import hashlib
from pathlib import Path

__version__ = "0.1.0"


def code_hash(*parts: str) -> str:
    """Returns a hash of eight digits of headway's code, compiled libraries included.

    ``parts`` are files of headway, without ".py", and folders.
    """
    root, digest = Path(__file__).parents[1], hashlib.sha256()
    for part in parts:
        file = root / f"{part}.py"
        for one in [file] if file.is_file() else sorted((root / part).rglob("*")):
            if one.suffix in (".py", ".so", ".dylib", ".dll", ".pyd"):
                digest.update(one.read_bytes())
    return digest.hexdigest()[:8]


def version_line() -> str:
    """Returns the versions of headway, torch and Python."""
    import platform

    import torch

    return f"headway {__version__}, torch {torch.__version__}, Python {platform.python_version()}"
