"""A text and settings so small that a whole comparison takes about a second."""

import random
from pathlib import Path
from typing import Any

import pytest

from headway.study.protocol import FixedProtocol, Protocol


@pytest.fixture(scope="session")
def words() -> str:
    known = [
        "the",
        "of",
        "and",
        "to",
        "in",
        "that",
        "it",
        "is",
        "was",
        "for",
        "on",
        "with",
        "as",
        "his",
        "they",
        "be",
        "at",
        "one",
        "have",
        "this",
    ]
    draw = random.Random(0)
    return " ".join(draw.choice(known) for _ in range(1500))


@pytest.fixture
def text_file(tmp_path: Path, words: str) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(words)
    return path


@pytest.fixture(scope="session")
def tiny() -> dict[str, Any]:
    return {
        "baselines": (),
        "train_length": 16,
        "lengths": (16, 32),
        "seeds": 1,
        "layers": 1,
        "width": 16,
        "heads": 2,
        "steps": 4,
        "batch": 2,
        "recall_steps": 0,
        "evaluation_bytes": 64,
        "device": "cpu",
    }


@pytest.fixture
def protocol() -> FixedProtocol:
    small = Protocol(
        train_length=16,
        lengths=(16, 32),
        layers=1,
        width=16,
        heads=2,
        steps=6,
        batch=2,
        recall_steps=3,
        evaluation_bytes=64,
    )
    return small.fixed("text.txt", "0" * 64)
