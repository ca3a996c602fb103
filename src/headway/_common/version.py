"""The version of headway, also of its package."""

import hashlib
import subprocess
from functools import cache
from pathlib import Path

__version__ = "0.1.0"
"""The version of this release."""


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


@cache
def commit() -> str:
    """Returns the commit of the checkout that headway runs from, with "-dirty" if files differ; empty elsewhere."""
    root = Path(__file__).parents[3]
    if not (root / ".git").exists() or Path(__file__).parents[1] != root / "src" / "headway":
        return ""
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--exclude=*", "--abbrev=12"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def version_line() -> str:
    """Returns the versions of headway, torch and Python."""
    import platform

    import torch

    return f"headway {__version__}, torch {torch.__version__}, Python {platform.python_version()}"


def versions() -> dict[str, str]:
    """Returns the versions that rows of results keep: headway, its commit if it is known, torch and Python."""
    import platform

    import torch

    known = {"commit": commit()} if commit() else {}
    return {"headway": __version__, **known, "torch": torch.__version__, "python": platform.python_version()}
