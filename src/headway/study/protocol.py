"""The settings of a comparison, which are fixed before any result is seen."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from .._common.files import from_json
from .._common.kinds import Kind, fits
from .._common.language import said
from ..errors import HeadwayError, need_positive, unknown
from .tokenization import BYTES

PROTOCOL_VERSION = 2
"""Changes whenever the same settings would give other numbers."""
DTYPES = ("float32", "bfloat16")
STEPS, QUICK_STEPS = 600, 150
LEARNING_RATE = 5e-3
STEPS_FOR_RECALL = 3
"""A model of the recall task has one training step for so many of a language model, unless recall_steps is given."""
BYTES_FOR_STEP = 28
"""Held-out bytes that are predicted for each training step, unless evaluation_bytes is given."""
MOST_BYTES = 2**16


def derived_seed(seed: int, *what: object) -> int:
    """Returns a separate seed for each purpose: the first 63 bits of a SHA-256."""
    text = "\0".join(str(part) for part in (seed, *what))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


@dataclass(frozen=True)
class Training:
    """How a model is trained: AdamW with linear warm-up and then a cosine to zero.

    A step has ``batch`` sequences of ``length`` tokens. ``learning_rate`` is the highest; ``weight_decay`` is that of
    matrices; gradients are clipped to a norm of ``clip`` together.
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


SETTINGS: Kind = {
    "corpus": str,
    "corpus_sha256": str,
    "tokenizer": str,
    "tokenizer_sha256": (str, None),
    "bytes_per_token": float,
    "lengths": [int],
    "minutes": (float, None),
    "learning_rates": [float],
    **dict.fromkeys(("train_length", "layers", "width", "heads", "steps", "batch"), int),
    **dict.fromkeys(("recall_steps", "evaluation_bytes", "version"), int),
    **dict.fromkeys(("device", "dtype"), str),
    **dict.fromkeys(("compile", "quick"), bool),
    "counted": ({str: float}, ...),
}
"""What is read of the settings of a comparison."""


@dataclass(frozen=True)
class Protocol:
    """The settings of a comparison, the same for all encodings; `headway compare` has an option for each.

    Attributes:
        tokenizer: what a token is: bytes; bpe:N, byte-pair encoding of N tokens trained on the text; a tokenizer.json;
            or a model's folder or id on the Hugging Face hub. Losses are in bits per byte in any case.
        train_length: tokens in a training window.
        lengths: window lengths to measure at. Default: 1, 2, 4 and 8 times ``train_length``.
        layers: layers of each Transformer.
        width: width (embed_dim) of each Transformer.
        heads: heads of each Transformer.
        steps: training steps of each model. Default: 600; with ``quick`` 150.
        minutes: in place of ``steps``: the time for everything, from which the number of steps is chosen.
        batch: windows in a training step.
        learning_rate: learning rate, the same for all models. Default: 0.005.
        learning_rates: in place of ``learning_rate``: several rates. Each model is trained with each of them and the
            first seed; all seeds then use the rate with the lowest loss on a validation part.
        recall_steps: training steps of the recall task; 0 leaves it out. Default: a third of ``steps``; with ``quick``
            0.
        evaluation_bytes: held-out bytes that are predicted at each length. Default: 28 for each of ``steps``, at most
            65,536.
        dtype: "float32", or "bfloat16" to train under autocast.
        compile: train the language models through torch.compile.
        quick: take a few minutes in all: fewer seeds and steps. The report says so, and that differences may be chance.
        device: where the models run: cpu, cuda, cuda:1 …; auto takes a GPU if there is one and a fused kernel trains
            every encoding there.

    Raises:
        HeadwayError: if a size is out of its range, heads do not divide the width, or both ``learning_rate`` and
            ``learning_rates`` are given.
    """

    tokenizer: str = BYTES
    train_length: int = 128
    lengths: Sequence[int] | None = None
    layers: int = 2
    width: int = 96
    heads: int = 4
    steps: int | None = None
    minutes: float | None = None
    batch: int = 8
    learning_rate: float | None = None
    learning_rates: Sequence[float] | None = None
    recall_steps: int | None = None
    evaluation_bytes: int | None = field(default=None, metadata={"option": "--held-out"})
    dtype: str = field(default="float32", metadata={"choices": DTYPES})
    compile: bool = False
    quick: bool = False
    device: str = "auto"

    def __post_init__(self) -> None:
        sizes = ("train_length", "layers", "width", "heads", "steps", "batch", "evaluation_bytes")
        given = {name: getattr(self, name) for name in sizes}
        need_positive(**{name: size for name, size in given.items() if size is not None})
        if self.train_length < 2 or min(self._lengths, default=0) < 2:
            raise HeadwayError(
                f"train_length is {self.train_length} and lengths are {list(self._lengths)}: give at least one "
                "length, and none below 2"
            )
        if self.minutes is not None and not self.minutes > 0:
            raise HeadwayError(f"minutes is {self.minutes:g}: give a number above 0")
        if self.recall_steps is not None and self.recall_steps < 0:
            raise HeadwayError(f"recall_steps is {self.recall_steps}: give at least 1, or 0 to leave recall out")
        if self.learning_rate is not None and self.learning_rates is not None:
            raise HeadwayError(
                f"learning_rate {self.learning_rate:g} and learning_rates are both given: give one of them"
            )
        if not self._rates:
            raise HeadwayError("learning_rates is empty: give at least one")
        for rate in self._rates:
            if not 0 < rate < math.inf:
                raise HeadwayError(f"learning_rate is {rate}: give a number above 0")
        if self.dtype not in DTYPES:
            raise unknown("dtype", self.dtype, DTYPES)
        if self.width % self.heads:
            even = 2 * self.heads  # rotary encodings need heads of an even width
            lower = self.width // even * even
            choices = " or ".join(str(width) for width in (lower, lower + even) if width)
            raise HeadwayError(f"width {self.width} is not divisible by heads {self.heads}: choose width = {choices}")

    @staticmethod
    def read(path: str | Path, device: str = "auto") -> Protocol:
        """Returns the settings of an earlier comparison, for another text, other encodings or another machine.

        Args:
            path: the settings.json in the folder of that comparison.
            device: where the models run now.

        Raises:
            HeadwayError: if the file is missing or has no such settings.
        """
        try:
            earlier = FixedProtocol.from_settings(from_json(Path(path).read_text(encoding="utf-8")))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            why = getattr(error, "strerror", None) or error
            raise HeadwayError(
                f"{path} has no settings of a comparison ({why}): give the settings.json that headway compare wrote"
            ) from None
        kept = {one.name: getattr(earlier, one.name) for one in fields(Protocol)}
        return Protocol(**{**kept, "minutes": None, "device": device})  # minutes have been made steps

    @property
    def _lengths(self) -> Sequence[int]:
        return [times * self.train_length for times in (1, 2, 4, 8)] if self.lengths is None else self.lengths

    @property
    def _rates(self) -> Sequence[float]:
        if self.learning_rates is not None:
            return self.learning_rates
        return (LEARNING_RATE if self.learning_rate is None else self.learning_rate,)

    @property
    def longest(self) -> int:
        """The longest window to measure."""
        return max(self._lengths)

    def fixed(
        self,
        corpus: str,
        corpus_sha256: str,
        *,
        tokenizer_sha256: str | None = None,
        bytes_per_token: float = 1.0,
        device: str = "cpu",
        steps: int | None = None,
    ) -> FixedProtocol:
        """Returns the settings for a text, with a number in place of each None.

        Args:
            corpus: the name of the text.
            corpus_sha256: its hash.
            tokenizer_sha256: the hash of the tokenizer; None for bytes.
            bytes_per_token: bytes of a token in the held-out part, on average.
            device: the torch device.
            steps: the training steps, if they were chosen to fit ``minutes``.
        """
        given = {one.name: getattr(self, one.name) for one in fields(Protocol)}
        if steps is None:
            steps = (QUICK_STEPS if self.quick else STEPS) if self.steps is None else self.steps
        recall = self.recall_steps
        if recall is None:
            recall = 0 if self.quick else max(1, steps // STEPS_FOR_RECALL)
        measured = self.evaluation_bytes
        if measured is None:
            measured = min(MOST_BYTES, max(BYTES_FOR_STEP * steps, round(2 * self.longest * bytes_per_token)))
        given |= {
            "lengths": tuple(sorted(set(self._lengths))),
            "learning_rate": None,
            "learning_rates": tuple(dict.fromkeys(self._rates)),
            "steps": steps,
            "recall_steps": recall,
            "evaluation_bytes": measured,
            "device": device,
        }
        return FixedProtocol(
            **given,
            corpus=corpus,
            corpus_sha256=corpus_sha256,
            tokenizer_sha256=tokenizer_sha256,
            bytes_per_token=bytes_per_token,
        )


@dataclass(frozen=True, kw_only=True)
class FixedProtocol(Protocol):
    """The settings of a comparison on a text, fixed before any result is seen; they are written beside the results.

    Attributes:
        corpus: the name of the text.
        corpus_sha256: its hash.
        tokenizer_sha256: the hash of the tokenizer; None for bytes.
        bytes_per_token: bytes of a token in the held-out part, on average.
        version: ``PROTOCOL_VERSION``.
    """

    lengths: tuple[int, ...]
    steps: int
    learning_rates: tuple[float, ...]
    recall_steps: int
    evaluation_bytes: int
    corpus: str
    corpus_sha256: str
    tokenizer_sha256: str | None = None
    bytes_per_token: float = 1.0
    version: int = PROTOCOL_VERSION

    RECALL_BATCH = 16
    RECALL_LEARNING_RATE = 1e-2

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
        named_first = {name: getattr(self, name) for name in ("quick", "corpus", "corpus_sha256")}
        lists = {"lengths": list(self.lengths), "learning_rates": list(self.learning_rates)}
        settings = {**named_first, **asdict(self), **lists}
        del settings["learning_rate"]
        return settings

    @classmethod
    def from_settings(cls, settings: dict[str, Any]) -> FixedProtocol:
        """Returns the protocol that was written as ``settings``."""
        if not fits(settings, SETTINGS):
            raise ValueError("a setting is of another kind")
        known = {one.name for one in fields(cls)}
        kept = {name: value for name, value in settings.items() if name in known}
        lists = {name: tuple(kept[name]) for name in ("lengths", "learning_rates")}
        return cls(**{**kept, **lists})

    def text(self) -> list[str]:
        """Returns the protocol in sentences."""
        lengths = said(", ").join(f"{length:,}" for length in self.lengths)
        unit, one = map(said, ("bytes", "byte") if self.unit == "bytes" else ("tokens", "token"))
        cut = said("as bytes")
        if self.unit != "bytes":
            cut = said(
                "as tokens of {tokenizer} ({count:.2f} bytes each in the held-out part)",
                tokenizer=self.tokenizer,
                count=self.bytes_per_token,
            )
        how = "" if self.dtype == "float32" else said(" under {dtype} autocast, measured in float32", dtype=self.dtype)
        if self.compile:
            how += said(", through torch.compile, whose time counts as training")
        rates = said(", ").join(f"{rate:g}" for rate in self.learning_rates)
        warm_up = self.language(self.learning_rates[0]).warmup
        if len(self.learning_rates) == 1:
            pace = said(
                "learning rate {rates} with {count} warm-up steps and a cosine to zero, gradients clipped to length 1. "
                "One learning rate for all; an encoding's own parameters have a multiple of it only if its paper says "
                "so.",
                rates=rates,
                count=warm_up,
            )
        else:
            pace = said(
                "{count} warm-up steps and a cosine to zero, gradients clipped to length 1. Learning rates: {rates}. "
                "With the first seed every model, baselines too, is trained with each; the one with the lowest loss on "
                "the validation part at the trained length is used for all of its seeds. All are reported. An "
                "encoding's own parameters have a multiple of it only if its paper says so.",
                rates=rates,
                count=warm_up,
            )
        sentences = [
            said(
                "Text: {corpus} {cut}, sha256 {hash}. The last tenth, in one piece, is held out; nothing is chosen by "
                "it. The twentieth before it is the validation part; no model is trained on it.",
                corpus=self.corpus,
                cut=cut,
                hash=self.corpus_sha256,
            ),
            said(
                "Model: a causal Transformer of {layers} layers, {width} wide, {heads} heads, pre-norm, GELU, no "
                "dropout, token embeddings times 4. All encodings get the same attention scale 1/√head_dim, also T5, "
                "whose paper has none and compensates for it by the initial values.",
                layers=self.layers,
                width=self.width,
                heads=self.heads,
            ),
            said(
                "The same for all: with one seed, every encoding is trained on the same windows in the same order, and "
                "parameters with the same name start from the same values: matrices from N(0, 1/inputs), drawn by seed "
                "and name, biases 0, norms 1. Parameters of an encoding start as its paper says."
            ),
            said(
                "Training: {steps:,} steps of {batch} windows of {length:,} {unit}{how}; AdamW (β 0.9 and 0.98, weight "
                "decay 0.01 on shared matrices), {pace}",
                steps=self.steps,
                batch=self.batch,
                length=self.train_length,
                unit=unit,
                how=how,
                pace=pace,
            ),
            said(
                "Held-out loss: bits per byte at {lengths} {unit}. For every length the same {unit} are predicted, in "
                "separate windows, each without the text before it, and in sliding windows: they overlap by half, and "
                "the second half is predicted. Loss by position is the sliding loss in windows of many lengths: of the "
                "same {unit}, given so many {unit} before them.",
                lengths=lengths,
                unit=unit,
            ),
            said(
                "2-gram and 5-gram: models that count the {unit} of the training part (interpolated Kneser–Ney with "
                "modified discounts) and predict each {one} from the one or the four before it.",
                unit=unit,
                one=one,
            ),
            said(
                "Learned positions end with their table: — marks lengths beyond it, and a second row shows the same "
                "trained model with its table interpolated."
            ),
            said(
                "The LSTM has two rows: with as many parameters as the Transformer without positions (within 5 %), and "
                "trained for as much time as the median Transformer."
            ),
        ]
        if self.quick:
            sentences.insert(
                0,
                said(
                    "A quick comparison, with few seeds and steps: differences may be chance, and may turn with more."
                ),
            )
        if self.minutes is not None:
            sentences.append(
                said(
                    "The number of steps, the same for all, was chosen by a short measurement of speed so that the "
                    "whole takes at most {minutes:g} minutes.",
                    minutes=self.minutes,
                )
            )
        if self.recall_steps:
            sentences.append(
                said(
                    "Recall: cards, each with a key and a value, are shown once; later a key alone asks for its value. "
                    "A model of one layer is trained for each encoding ({steps:,} steps of {batch} sequences of "
                    "{length:,}, learning rate {rate:g}) and tested at every length, by the distance of the card. "
                    "Guessing is right 1 time in 8.",
                    steps=self.recall_steps,
                    batch=self.RECALL_BATCH,
                    length=self.train_length,
                    rate=self.RECALL_LEARNING_RATE,
                )
            )
        return sentences
