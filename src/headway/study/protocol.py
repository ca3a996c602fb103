"""What is done, fixed before any result is seen."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass, fields
from typing import Any

from ..errors import HeadwayError, need_positive

PROTOCOL_VERSION = 1
"""Changes whenever the same settings would no longer give the same numbers."""


def derived_seed(seed: int, *what: object) -> int:
    """A seed of its own for each purpose: the first 63 bits of a SHA-256."""
    text = "\0".join(str(part) for part in (seed, *what))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


@dataclass(frozen=True)
class Training:
    """How one model is trained: AdamW, linear warm-up, then a cosine down to nothing."""

    steps: int
    batch: int
    length: int
    learning_rate: float
    weight_decay: float = 0.01
    betas: tuple[float, float] = (0.9, 0.98)
    clip: float = 1.0

    @property
    def warmup(self) -> int:
        """Steps in which the learning rate rises."""
        return max(1, min(50, self.steps // 10))


@dataclass(frozen=True)
class Protocol:
    """The settings of a comparison: alike for all encodings, and written beside the results."""

    corpus: str
    corpus_sha256: str
    train_length: int = 128
    lengths: tuple[int, ...] = (128, 256, 512, 1024)
    layers: int = 2
    width: int = 96
    heads: int = 4
    steps: int = 600
    minutes: float | None = None
    batch: int = 8
    learning_rate: float = 5e-3
    recall_steps: int = 200
    evaluation_bytes: int = 16384
    device: str = "cpu"
    version: int = PROTOCOL_VERSION

    RECALL_BATCH = 16
    RECALL_LEARNING_RATE = 1e-2

    def __post_init__(self) -> None:
        sizes = ("train_length", "layers", "width", "heads", "steps", "batch", "evaluation_bytes")
        need_positive(**{name: getattr(self, name) for name in sizes})
        if self.train_length < 2 or not self.lengths or min(self.lengths) < 2:
            raise HeadwayError(
                f"train_length is {self.train_length} and lengths are {list(self.lengths)}: give at least one "
                "length, and none below 2"
            )
        if self.recall_steps < 0:
            raise HeadwayError(f"recall_steps is {self.recall_steps}: give at least 1, or 0 to leave recall out")
        if not self.learning_rate > 0:
            raise HeadwayError(f"learning_rate is {self.learning_rate}: give a number above 0")
        if self.width % self.heads:
            lower = self.width // self.heads * self.heads
            choices = " or ".join(str(width) for width in (lower, lower + self.heads) if width)
            raise HeadwayError(f"width {self.width} is not divisible by heads {self.heads}: choose width = {choices}")

    @property
    def language(self) -> Training:
        """How the language models are trained."""
        return Training(self.steps, self.batch, self.train_length, self.learning_rate)

    @property
    def recall(self) -> Training:
        """How the models of the recall task are trained."""
        return Training(self.recall_steps, self.RECALL_BATCH, self.train_length, self.RECALL_LEARNING_RATE)

    def settings(self) -> dict[str, Any]:
        """What must be the same in every run that writes to one folder."""
        return {**asdict(self), "lengths": list(self.lengths)}

    @classmethod
    def from_settings(cls, settings: dict[str, Any]) -> Protocol:
        """The protocol that was written as ``settings``."""
        known = {field.name for field in fields(cls)}
        kept = {name: value for name, value in settings.items() if name in known}
        return cls(**{**kept, "lengths": tuple(kept["lengths"])})

    def text(self) -> list[str]:
        """The protocol in sentences."""
        lengths = ", ".join(f"{length:,}" for length in self.lengths)
        sentences = [
            f"Text: {self.corpus} as bytes, sha256 {self.corpus_sha256}. The last tenth, in one piece, is held "
            "out; nothing is chosen by it.",
            f"Model: a causal Transformer of {self.layers} layers, {self.width} wide, {self.heads} heads, "
            "pre-norm, GELU, no dropout, token embeddings times 4. All encodings get the same attention scale "
            "1/√head_dim, T5 too, which by its paper has none and makes up for it in its initial values.",
            "The same for all: in a seed, every encoding sees the same windows in the same order, and "
            "parameters with the same name start from the same values: matrices from N(0, 1/inputs), drawn by "
            "seed and name, biases 0, norms 1. What an encoding itself learns starts as its paper says.",
            f"Training: {self.steps:,} steps of {self.batch} windows of {self.train_length:,} bytes; AdamW "
            f"(β 0.9 and 0.98, weight decay 0.01 on shared matrices), learning rate {self.learning_rate:g} "
            f"with {self.language.warmup} warm-up steps and a cosine to zero, gradients clipped to length 1. "
            "One learning rate for all; an encoding's own parameters learn faster or slower only where its "
            "paper says by how much.",
            f"Held-out loss: bits per byte at {lengths} bytes. For every length the same bytes are predicted, "
            "in separate windows, each of which starts without a past, and sliding: windows that overlap by "
            "half, of which the second half counts. Loss by position is the latter for windows of many lengths: "
            "how well the same bytes are predicted when so many before them are known.",
            "Learned positions end with their table: beyond it stands —, and a second row shows the same "
            "trained model with its table interpolated.",
            "The LSTM stands beside them twice: with as many parameters as the Transformer without positions "
            "(within 5 %), and trained as long, by the clock, as the median Transformer.",
        ]
        if self.minutes is not None:
            sentences.append(
                f"The number of steps was chosen once, for all alike, from a short measurement of speed, to "
                f"keep the whole within {self.minutes:g} minutes."
            )
        if self.recall_steps:
            sentences.append(
                "Recall: cards, each with a key and a value, are seen once; later a key alone asks for its "
                "value. A model of one layer learns it "
                f"for each encoding ({self.recall_steps:,} steps of {self.RECALL_BATCH} sequences of "
                f"{self.train_length:,}, learning rate {self.RECALL_LEARNING_RATE:g}) and is asked at every "
                "length, the answers sorted by distance. Guessing scores 1 in 8."
            )
        return sentences
