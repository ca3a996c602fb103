"""The settings of a comparison, fixed before any result is seen."""

from __future__ import annotations

import hashlib
import math
from dataclasses import asdict, dataclass, fields
from typing import Any

from .._common.kinds import Kind, fits
from ..errors import HeadwayError, need_positive, unknown

PROTOCOL_VERSION = 2
"""Changes whenever the same settings would give other numbers."""
DTYPES = ("float32", "bfloat16")


def derived_seed(seed: int, *what: object) -> int:
    """Returns a separate seed for each purpose: the first 63 bits of a SHA-256.

    Args:
        seed: the seed.
        *what: what it is for.
    """
    text = "\0".join(str(part) for part in (seed, *what))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


@dataclass(frozen=True)
class Training:
    """How a model is trained: AdamW with linear warm-up and then a cosine to zero.

    Attributes:
        steps: steps.
        batch: sequences in a step.
        length: tokens in a sequence.
        learning_rate: the highest learning rate.
        weight_decay: the weight decay of matrices.
        betas: AdamW's.
        clip: the largest norm of all gradients together.
    """

    steps: int
    batch: int
    length: int
    learning_rate: float
    weight_decay: float = 0.01
    betas: tuple[float, float] = (0.9, 0.98)
    clip: float = 1.0

    @property
    def warmup(self) -> int:
        """The steps in which the learning rate rises: a tenth of all, from 1 to 50."""
        return max(1, min(50, self.steps // 10))


WHOLE: Kind = (int, ...)
SETTINGS: Kind = {
    "corpus": str,
    "corpus_sha256": str,
    "tokenizer": (str, ...),
    "tokenizer_sha256": (str, None, ...),
    "bytes_per_token": (float, ...),
    "lengths": [int],
    "minutes": (float, None, ...),
    "learning_rate": (float, ...),
    "learning_rates": ([float], ...),
    **dict.fromkeys(("train_length", "layers", "width", "heads", "steps", "batch"), WHOLE),
    **dict.fromkeys(("recall_steps", "evaluation_bytes", "version"), WHOLE),
    **dict.fromkeys(("device", "dtype"), (str, ...)),
    **dict.fromkeys(("compile", "quick"), (bool, ...)),
    "counted": ({str: float}, None, ...),
}
"""What is read of the settings of a comparison."""


@dataclass(frozen=True)
class Protocol:
    """The settings of a comparison, the same for all encodings; they are written beside the results.

    Attributes:
        corpus: the name of the text.
        corpus_sha256: its hash.
        tokenizer: "bytes", or the tokens it is cut into, as for ``tokenization.Tokens.named``.
        tokenizer_sha256: the hash of the tokenizer; None for bytes.
        bytes_per_token: bytes of a token in the held-out part, on average.
        train_length: tokens in a training window.
        lengths: the window lengths to measure, in tokens.
        layers: layers of each Transformer.
        width: its embed_dim.
        heads: its heads.
        steps: training steps.
        minutes: the time in which ``steps`` were chosen to fit, if that was asked for.
        batch: windows in a step.
        learning_rates: the highest learning rate; several are tried with each model.
        recall_steps: training steps of the recall task; 0 leaves it out.
        evaluation_bytes: held-out bytes that are predicted at each length.
        device: the torch device.
        dtype: "float32", or "bfloat16" for training under autocast.
        compile: whether the language models are trained through ``torch.compile``.
        quick: whether seeds and steps are those of a quick comparison.
        version: ``PROTOCOL_VERSION``.

    Raises:
        HeadwayError: if a size is out of its range, or heads do not divide the width.
    """

    corpus: str
    corpus_sha256: str
    tokenizer: str = "bytes"
    tokenizer_sha256: str | None = None
    bytes_per_token: float = 1.0
    train_length: int = 128
    lengths: tuple[int, ...] = (128, 256, 512, 1024)
    layers: int = 2
    width: int = 96
    heads: int = 4
    steps: int = 600
    minutes: float | None = None
    batch: int = 8
    learning_rates: tuple[float, ...] = (5e-3,)
    recall_steps: int = 200
    evaluation_bytes: int = 16384
    device: str = "cpu"
    dtype: str = "float32"
    compile: bool = False
    quick: bool = False
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
        if not self.learning_rates:
            raise HeadwayError("learning_rates is empty: give at least one")
        for rate in self.learning_rates:
            if not 0 < rate < math.inf:
                raise HeadwayError(f"learning_rate is {rate}: give a number above 0")
        if self.dtype not in DTYPES:
            raise unknown("dtype", self.dtype, DTYPES)
        if self.width % self.heads:
            even = 2 * self.heads  # rotary encodings need heads of an even width
            lower = self.width // even * even
            choices = " or ".join(str(width) for width in (lower, lower + even) if width)
            raise HeadwayError(f"width {self.width} is not divisible by heads {self.heads}: choose width = {choices}")

    @property
    def unit(self) -> str:
        """What lengths are counted in: "bytes" or "tokens"."""
        return "bytes" if self.tokenizer == "bytes" else "tokens"

    def language(self, learning_rate: float) -> Training:
        """Returns the training of the language models.

        Args:
            learning_rate: one of the learning rates.
        """
        return Training(self.steps, self.batch, self.train_length, learning_rate)

    @property
    def recall(self) -> Training:
        """The training of the models of the recall task."""
        return Training(self.recall_steps, self.RECALL_BATCH, self.train_length, self.RECALL_LEARNING_RATE)

    def settings(self) -> dict[str, Any]:
        """Returns the settings as JSON values; they must be the same in every run that writes to one folder."""
        lists = {"lengths": list(self.lengths), "learning_rates": list(self.learning_rates)}
        return {"quick": self.quick, **asdict(self), **lists}

    @classmethod
    def from_settings(cls, settings: dict[str, Any]) -> Protocol:
        """Returns the protocol that was written as ``settings``."""
        if not fits(settings, SETTINGS):
            raise ValueError("a setting is of another kind")
        known = {field.name for field in fields(cls)}
        kept = {name: value for name, value in settings.items() if name in known}
        rates = kept.get("learning_rates") or [settings["learning_rate"]]  # version 1 had one
        return cls(**{**kept, "lengths": tuple(kept["lengths"]), "learning_rates": tuple(rates)})

    def text(self) -> list[str]:
        """Returns the protocol in sentences."""
        lengths = ", ".join(f"{length:,}" for length in self.lengths)
        unit, one = self.unit, self.unit.removesuffix("s")
        cut = "as bytes"
        if unit != "bytes":
            cut = f"as tokens of {self.tokenizer} ({self.bytes_per_token:.2f} bytes each in the held-out part)"
        how = "" if self.dtype == "float32" else f" under {self.dtype} autocast, measured in float32"
        if self.compile:
            how += ", through torch.compile, whose time counts as training"
        rates = ", ".join(f"{rate:g}" for rate in self.learning_rates)
        warm_up = f"with {self.language(self.learning_rates[0]).warmup} warm-up steps and a cosine to zero"
        if len(self.learning_rates) == 1:
            pace = (
                f"learning rate {rates} {warm_up}, gradients clipped to length 1. One learning rate for all; an "
                "encoding's own parameters have a multiple of it only if its paper says so."
            )
        else:
            pace = (
                f"{warm_up.removeprefix('with ')}, gradients clipped to length 1. Learning rates: {rates}. With the "
                "first seed every model, baselines too, is trained with each; the one with the lowest loss on the "
                "validation part at the trained length is used for all of its seeds. All are reported. An encoding's "
                "own parameters have a multiple of it only if its paper says so."
            )
        sentences = [
            f"Text: {self.corpus} {cut}, sha256 {self.corpus_sha256}. The last tenth, in one piece, is held "
            "out; nothing is chosen by it. The twentieth before it is the validation part; no model is trained on it.",
            f"Model: a causal Transformer of {self.layers} layers, {self.width} wide, {self.heads} heads, "
            "pre-norm, GELU, no dropout, token embeddings times 4. All encodings get the same attention scale "
            "1/√head_dim, also T5, whose paper has none and compensates for it by the initial values.",
            "The same for all: with one seed, every encoding is trained on the same windows in the same order, and "
            "parameters with the same name start from the same values: matrices from N(0, 1/inputs), drawn by "
            "seed and name, biases 0, norms 1. Parameters of an encoding start as its paper says.",
            f"Training: {self.steps:,} steps of {self.batch} windows of {self.train_length:,} {unit}{how}; AdamW "
            f"(β 0.9 and 0.98, weight decay 0.01 on shared matrices), {pace}",
            f"Held-out loss: bits per byte at {lengths} {unit}. For every length the same {unit} are predicted, "
            "in separate windows, each without the text before it, and in sliding windows: they overlap by "
            "half, and the second half is predicted. Loss by position is the sliding loss in windows of many "
            f"lengths: of the same {unit}, given so many {unit} before them.",
            f"2-gram and 5-gram: models that count the {unit} of the training part (interpolated Kneser–Ney with "
            f"modified discounts) and predict each {one} from the one or the four before it.",
            "Learned positions end with their table: — marks lengths beyond it, and a second row shows the same "
            "trained model with its table interpolated.",
            "The LSTM has two rows: with as many parameters as the Transformer without positions (within 5 %), "
            "and trained for as much time as the median Transformer.",
        ]
        if self.quick:
            sentences.insert(
                0, "A quick comparison, with few seeds and steps: differences may be chance, and may turn with more."
            )
        if self.minutes is not None:
            sentences.append(
                f"The number of steps, the same for all, was chosen by a short measurement of speed so that the whole "
                f"takes at most {self.minutes:g} minutes."
            )
        if self.recall_steps:
            sentences.append(
                "Recall: cards, each with a key and a value, are shown once; later a key alone asks for its "
                "value. A model of one layer is trained "
                f"for each encoding ({self.recall_steps:,} steps of {self.RECALL_BATCH} sequences of "
                f"{self.train_length:,}, learning rate {self.RECALL_LEARNING_RATE:g}) and tested at every "
                "length, by the distance of the card. Guessing is right 1 time in 8."
            )
        return sentences
