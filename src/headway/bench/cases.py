"""What is measured: cases as data."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from itertools import product
from typing import Any, ClassVar, Protocol

import torch

from ..errors import HeadwayError

BATCH, HEADS = 1, 8
WINDOW = 256
"""Keys that a query sees under the mask "window", its own among them."""
DOCUMENTS = 8
"""Documents in a packed row, all of one length, so that a batch of them is the same work."""

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
MASKS = ("none", "causal", "window")
DIRECTIONS = ("forward", "backward")
ENCODINGS = ("none", "alibi", "t5", "kerple", "rope", "shaw", "transformer-xl")
PARTS = ("attention", "window", "decoding", "packed", "left-padded", "memory")
MODEL_PARTS = ("encode", "prefill", "decode", "train", "memory")


class AnyCase(Protocol):
    """One thing that is measured; ``file`` is where rows of its kind are kept."""

    file: ClassVar[str]

    def fields(self) -> dict[str, Any]:
        """The case as it stands in a row of results."""
        ...


@dataclass(frozen=True)
class Case:
    """One call of attention, of which all sides run in turn.

    kind          one of ``PARTS``: attention against torch; a long causal window against all of the past; one token
                  against a cache; documents packed into one row, and a row padded in front, against the same tokens
                  without either; memory
    n             tokens; under "decoding" those in the cache
    direction     forward, or backward alone
    """

    file: ClassVar[str] = "rows.jsonl"

    kind: str = "attention"
    encoding: str = "none"
    mask: str = "none"
    n: int = 512
    head_dim: int = 64
    dtype: str = "float32"
    direction: str = "forward"

    def __str__(self) -> str:
        sizes = f"{self.n:,} tokens, {HEADS} heads of {self.head_dim}, {self.dtype}, {self.direction}"
        if self.kind == "memory":
            return f"memory: {self.encoding}, {self.mask}, {sizes.replace('backward', 'forward and backward')}"
        kind = "" if self.kind == "attention" else f"{self.kind}: "
        return f"{kind}{self.encoding}, {'full' if self.mask == 'none' else self.mask}, {sizes}"

    @property
    def lengths(self) -> list[int]:
        """The tokens of each sequence in the row."""
        if self.kind == "packed":
            return [self.n // DOCUMENTS] * DOCUMENTS
        return [self.n - self.n // 4] if self.kind == "left-padded" else [self.n]

    @property
    def pairs(self) -> int:
        """Pairs of query and key that the mask allows, in one head."""
        if self.kind == "decoding":
            return self.n
        return sum(pairs(self.mask, n) for n in self.lengths)

    @property
    def share(self) -> float:
        """The share of all pairs that the mask allows."""
        return self.pairs / (self.n if self.kind == "decoding" else self.n**2)

    @property
    def flop(self) -> int:
        """Floating-point operations: two products forward, five backward, over the allowed pairs alone."""
        return (4 if self.direction == "forward" else 10) * BATCH * HEADS * self.head_dim * self.pairs

    def fields(self) -> dict[str, Any]:
        """The case as it stands in a row of results."""
        return asdict(self)


def pairs(mask: str, n: int) -> int:
    """Pairs that a mask allows among n tokens."""
    if mask == "none":
        return n * n
    seen = min(n, WINDOW) if mask == "window" else n
    return seen * (seen + 1) // 2 + (n - seen) * seen


def _check(plan: Plan | ModelPlan, **known: tuple[str, ...]) -> None:
    """Raises HeadwayError for a field of a plan that is empty, has a name that is not known, or no size."""
    for field in fields(plan):
        values = getattr(plan, field.name)
        if not isinstance(values, tuple):
            continue
        for value in values:
            if field.name in known and value not in known[field.name]:
                raise HeadwayError(f"{field.name} has {value!r}: give any of {', '.join(known[field.name])}")
            if isinstance(value, int) and value < 1:
                raise HeadwayError(f"{field.name} has {value}: give whole numbers of at least 1")
        if not values:
            raise HeadwayError(f"{field.name} is empty: name at least one")
    if plan.rounds < 1:
        raise HeadwayError(f"rounds is {plan.rounds}: give at least 1")
    if not plan.seconds >= 0:
        raise HeadwayError(f"seconds is {plan.seconds}: give 0 or more")


@dataclass(frozen=True)
class Plan:
    """Which cases, and how long on each.

    seconds        for each side of a case, as far as ``rounds`` allows
    rounds         turns at least
    flex_seconds   for compiling FlexAttention, all cases together; what is left then goes without it

    Raises HeadwayError for a name or a size that cannot be measured.
    """

    lengths: tuple[int, ...] = (128, 512, 1024, 2048, 4096)
    dims: tuple[int, ...] = (64, 128)
    dtypes: tuple[str, ...] = ("float32", "bfloat16")
    masks: tuple[str, ...] = MASKS
    encodings: tuple[str, ...] = ENCODINGS
    directions: tuple[str, ...] = DIRECTIONS
    parts: tuple[str, ...] = PARTS
    window_length: int = 16384
    cache_length: int = 32768
    row_length: int = 4096
    memory_lengths: tuple[int, ...] = (1024, 2048, 4096, 8192, 16384, 32768, 65536)
    seconds: float = 1.0
    rounds: int = 5
    flex_seconds: float = 3600.0

    def __post_init__(self) -> None:
        _check(self, dtypes=tuple(DTYPES), masks=MASKS, directions=DIRECTIONS, parts=PARTS)

    def cases(self) -> list[Case]:
        """Every case, those with the fewest tokens first."""
        found = [
            Case("attention", encoding, mask, n, head_dim, dtype, direction)
            for n, head_dim, encoding, mask, direction, dtype in product(
                self.lengths, self.dims, self.encodings, self.masks, self.directions, self.dtypes
            )
            if mask != "window" or n > WINDOW  # else it is the causal mask again
        ]
        for direction, dtype in product(self.directions, self.dtypes):
            here = Case(mask="causal", dtype=dtype, direction=direction)
            found.append(replace(here, kind="window", mask="window", n=self.window_length))
            for kind, encoding in product(("packed", "left-padded"), ("none", "t5")):
                found.append(replace(here, kind=kind, encoding=encoding, n=self.row_length))
            if direction == "forward":
                found.append(replace(here, kind="decoding", mask="none", n=self.cache_length))
        if "backward" in self.directions:
            found += [Case("memory", "t5", "causal", n, 64, self.dtypes[0], "backward") for n in self.memory_lengths]
        return [case for case in dict.fromkeys(found) if case.kind in self.parts]


FULL = Plan()
QUICK = Plan(
    lengths=(512, 2048),
    dims=(64,),
    masks=("none", "causal"),
    window_length=8192,
    memory_lengths=(1024, 4096, 16384),
    seconds=0.2,
    flex_seconds=150.0,
)


# ---------------------------------------------------------------- whole models


@dataclass(frozen=True)
class ModelCase:
    """One piece of work of a whole model, by headway and by transformers in turn.

    task    one of ``MODEL_PARTS``: hidden states of texts; the last token's logits of a prompt, with a cache filled;
            one token after a prompt; a training step; the memory of one
    model   "MiniLM", "SmolLM2", "T5 encoder" or "T5"
    n       tokens of a text, a prompt or a source
    """

    file: ClassVar[str] = "models.jsonl"

    task: str
    model: str
    n: int
    batch: int = 1
    dtype: str = "float32"

    def __str__(self) -> str:
        return f"{self.task}: {self.model}, {self.tokens} tokens, {self.dtype}"

    @property
    def tokens(self) -> str:
        """As in "8 × 512"."""
        return f"{self.n:,}" if self.batch == 1 else f"{self.batch} × {self.n:,}"

    def fields(self) -> dict[str, Any]:
        """The case as it stands in a row of results."""
        return asdict(self)


@dataclass(frozen=True)
class ModelPlan:
    """Which cases of whole models, and how long on each.

    texts     tokens of a text for MiniLM, in ``batches``
    prefill   tokens of a prompt for SmolLM2; ``prompts``: those before it writes
    train     tokens of a training step of T5's encoder, and of its memory; ``sources``: those of the whole T5

    Raises HeadwayError for a name or a size that cannot be measured.
    """

    texts: tuple[int, ...] = (512,)
    batches: tuple[int, ...] = (1, 8)
    prefill: tuple[int, ...] = (4096,)
    prompts: tuple[int, ...] = (4096, 128)
    train: tuple[int, ...] = (1024, 2048)
    sources: tuple[int, ...] = (1024,)
    dtypes: tuple[str, ...] = ("float32", "bfloat16")
    parts: tuple[str, ...] = MODEL_PARTS
    seconds: float = 1.0
    rounds: int = 3

    def __post_init__(self) -> None:
        _check(self, dtypes=tuple(DTYPES), parts=MODEL_PARTS)

    def cases(self) -> list[ModelCase]:
        """Every case; those of one model in one dtype stand together, so that it is loaded once."""
        found = []
        for dtype in self.dtypes:
            found += [ModelCase("encode", "MiniLM", n, b, dtype) for n, b in product(self.texts, self.batches)]
            found += [ModelCase("prefill", "SmolLM2", n, 1, dtype) for n in self.prefill]
            found += [ModelCase("decode", "SmolLM2", n, 1, dtype) for n in self.prompts]
        if "float32" in self.dtypes:
            found += [ModelCase("train", "T5 encoder", n) for n in self.train]
            found += [ModelCase("train", "T5", n) for n in self.sources]
            found += [ModelCase("memory", "T5 encoder", n) for n in self.train]
        return [case for case in found if case.task in self.parts]


MODELS = ModelPlan()
QUICK_MODELS = ModelPlan(prefill=(1024,), prompts=(128,), train=(512, 1024), sources=(512,), seconds=0.2)
