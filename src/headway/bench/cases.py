"""The cases to measure, as data."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from itertools import product
from typing import Any, ClassVar

import torch

from ..errors import HeadwayError, unknown
from ..kernels import KERNELS

BATCH, HEADS = 1, 8
WINDOW = 256
"""The keys that a query sees under the mask "window", its own among them."""
DOCUMENTS = 8
"""Documents in a packed row. All have the same length, so that a batch of them is the same work."""

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
MASKS = ("none", "causal", "window")
DIRECTIONS = ("forward", "backward")
ENCODINGS = ("none", "alibi", "t5", "kerple", "rope", "shaw", "transformer-xl")
PARTS = ("attention", "window", "decoding", "cache", "packed", "left-padded", "memory", "statistics", "sequence")
STATISTICS_MEMORY = "statistics-memory"
"""The kind of the cases of the part "statistics" whose memory is measured."""
SEQUENCE_MEMORY, SEQUENCE_STEP = "sequence-memory", "sequence-step"
"""The kinds of the cases of the part "sequence" whose memory is measured, and which are steps of a training."""
SEQUENCE_ENCODINGS = ("none", "alibi", "rope", "t5", "fire", "forgetting")
OF_A_CACHE = ("queries", "group")
"""The fields that only cases of the kind "cache" have."""
CHOOSES = ("statistics", "sequence")
"""The parts whose kernel cannot be told."""
AUTO = "auto"
"""The kernel of a case for which headway chooses one."""
MODEL_PARTS = ("encode", "prefill", "decode", "train", "memory", "step", "token")
STEP_MODELS = {"learned": "learned", "RoPE": "rope", "ALiBi": "alibi", "T5 bias": "t5"}
"""The language models whose training step is measured, and their encodings."""
TOKEN_MODELS = ("attention", "attention, RoPE", "layer, RoPE", "decoder, RoPE")
"""What writes a token after others."""


@dataclass(frozen=True)
class AnyCase:
    """Base class of cases; ``file`` is the file with the rows of a kind."""

    file: ClassVar[str]

    def fields(self) -> dict[str, Any]:
        """Returns the case as a row of results stores it."""
        return asdict(self)


@dataclass(frozen=True)
class Case(AnyCase):
    """One call of attention, which all sides run in turn.

    Attributes:
        kind: one of ``PARTS``, or one of the kinds above. "attention": against torch. "window": a long causal window
            against a causal mask. "decoding": one token against a cache. "cache": some queries against a cache, with
            heads that share keys. "packed" and "left-padded": documents packed into one row, or a row padded in front,
            against the same tokens without packing or padding. "memory": the memory of a call. "statistics": statistics
            of attention, computed during attention or alone, against statistics of weights that torch stores.
            "sequence": forward and backward by two processes that share the tokens, against one process with all
            threads. "sequence-memory": the memory of "sequence". "sequence-step": a training step of a decoder of four
            layers.
        encoding: the name of the encoding, or "none".
        mask: one of ``MASKS``.
        n: number of tokens; for "decoding" and "cache", of tokens in the cache.
        head_dim: the width of a head.
        dtype: the name of the dtype.
        direction: "forward", or "backward" for only the backward pass.
        queries: for "cache", the number of queries; each sees all keys.
        group: for "cache", the number of query heads that share a key head.
        kernel: the kernel that headway is told to take, or "auto".
    """

    file: ClassVar[str] = "rows.jsonl"

    kind: str = "attention"
    encoding: str = "none"
    mask: str = "none"
    n: int = 512
    head_dim: int = 64
    dtype: str = "float32"
    direction: str = "forward"
    queries: int = 1
    group: int = 1
    kernel: str = AUTO

    def __str__(self) -> str:
        if self.kind == "cache":
            heads = HEADS * self.group
            return (
                f"cache: {self.queries} queries, {self.n:,} keys, {heads} heads of {self.head_dim} on {HEADS}, "
                f"{self.dtype}"
            )
        what = self.encoding if self.kind == "attention" else f"{self.kind}: {self.encoding}"
        mask = "full" if self.mask == "none" else self.mask
        both = self.direction == "backward" and self.kind in ("memory", "sequence", SEQUENCE_MEMORY, SEQUENCE_STEP)
        direction = "forward and backward" if both else self.direction
        return f"{what}, {mask}, {self.n:,} tokens, {HEADS} heads of {self.head_dim}, {self.dtype}, {direction}"

    def fields(self) -> dict[str, Any]:
        """Returns the case as a row of results stores it, without the fields that only other cases have."""
        left_out = (() if self.kind == "cache" else OF_A_CACHE) + (("kernel",) if self.kernel == AUTO else ())
        return {name: value for name, value in super().fields().items() if name not in left_out}

    @property
    def part(self) -> str:
        """The one of ``PARTS`` that the case belongs to."""
        of_part = {STATISTICS_MEMORY: "statistics", SEQUENCE_MEMORY: "sequence", SEQUENCE_STEP: "sequence"}
        return of_part.get(self.kind, self.kind)

    @property
    def lengths(self) -> list[int]:
        """The tokens of each sequence in the row."""
        if self.kind == "packed":
            return [self.n // DOCUMENTS] * DOCUMENTS
        return [self.n - self.n // 4] if self.kind == "left-padded" else [self.n]

    @property
    def pairs(self) -> int:
        """The pairs of query and key that the mask allows, in one head."""
        if self.kind in ("decoding", "cache"):
            return self.queries * self.n
        return sum(pairs(self.mask, n) for n in self.lengths)

    @property
    def share(self) -> float:
        """The share of all pairs that the mask allows."""
        return self.pairs / (self.queries * self.n if self.kind in ("decoding", "cache") else self.n**2)

    @property
    def flop(self) -> int:
        """Floating-point operations of the allowed pairs: two matrix products forward, five backward."""
        return (4 if self.direction == "forward" else 10) * BATCH * HEADS * self.group * self.head_dim * self.pairs


def pairs(mask: str, n: int) -> int:
    """Returns the pairs that one of ``MASKS`` allows among ``n`` tokens."""
    if mask == "none":
        return n * n
    seen = min(n, WINDOW) if mask == "window" else n
    return seen * (seen + 1) // 2 + (n - seen) * seen


def _check(plan: Plan | ModelPlan, **known: tuple[str, ...]) -> None:
    """Raises HeadwayError if a field of a plan is empty or has an unknown name or a size below 1."""
    for field in fields(plan):
        values = getattr(plan, field.name)
        if not isinstance(values, tuple):
            continue
        for value in values:
            if field.name in known and value not in known[field.name]:
                raise unknown(field.name.removesuffix("s"), value, known[field.name])
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
    """The cases of a benchmark of attention, and the time for each.

    Attributes:
        lengths: tokens of the cases of kind "attention".
        dims: values of head_dim.
        dtypes: names of dtypes.
        masks: names of masks.
        encodings: names of encodings, or "none".
        directions: "forward" and "backward".
        parts: the kinds of cases.
        kernel: the kernel that headway is told to take in all cases, or "auto".
        window_length: tokens of the long causal window.
        cache_length: tokens of the cache.
        queries: queries of the cases of kind "cache".
        groups: heads that share keys in the cases of kind "cache".
        row_length: tokens of a packed or padded row.
        memory_lengths: tokens of the cases of kind "memory".
        statistics_lengths: tokens of the cases of kind "statistics".
        statistics_memory_lengths: tokens of the cases of kind "statistics" whose memory is measured.
        sequence_lengths: tokens of the cases of kind "sequence"; for the longest one, memory is measured too.
        sequence_step_length: tokens of a training step that two processes share.
        seconds: the time for each side of a case, of which there may be more for the sake of ``rounds``.
        rounds: the fewest runs of each side.
        flex_seconds: the time for compiling FlexAttention, all cases together; cases after that are measured without
            it.

    Raises:
        HeadwayError: if a name is unknown, or a size is out of its range.
    """

    lengths: tuple[int, ...] = (128, 512, 1024, 2048, 4096)
    dims: tuple[int, ...] = (64, 128)
    dtypes: tuple[str, ...] = ("float32", "bfloat16")
    masks: tuple[str, ...] = MASKS
    encodings: tuple[str, ...] = ENCODINGS
    directions: tuple[str, ...] = DIRECTIONS
    parts: tuple[str, ...] = PARTS
    kernel: str = AUTO
    window_length: int = 16384
    cache_length: int = 32768
    queries: tuple[int, ...] = (1, 5, 16, 48)
    groups: tuple[int, ...] = (1, 4)
    row_length: int = 4096
    memory_lengths: tuple[int, ...] = (1024, 2048, 4096, 8192, 16384, 32768, 65536)
    statistics_lengths: tuple[int, ...] = (512, 4096)
    statistics_memory_lengths: tuple[int, ...] = (4096, 16384, 65536)
    sequence_lengths: tuple[int, ...] = (4096, 16384)
    sequence_step_length: int = 8192
    seconds: float = 1.0
    rounds: int = 5
    flex_seconds: float = 3600.0

    def __post_init__(self) -> None:
        _check(self, dtypes=tuple(DTYPES), masks=MASKS, directions=DIRECTIONS, parts=PARTS)
        if self.kernel not in (AUTO, *KERNELS):
            raise unknown("kernel", self.kernel, (AUTO, *KERNELS))
        if self.kernel != AUTO and (others := [part for part in self.parts if part in CHOOSES]):
            raise HeadwayError(
                f"kernel is {self.kernel!r}, and parts has {others[0]!r}, whose kernel cannot be told: leave out one"
            )

    def cases(self) -> list[Case]:
        """Returns every case."""
        cases = [
            Case("attention", encoding, mask, n, head_dim, dtype, direction)
            for n, head_dim, encoding, mask, direction, dtype in product(
                self.lengths, self.dims, self.encodings, self.masks, self.directions, self.dtypes
            )
            if mask != "window" or n > WINDOW  # else it equals the causal mask
        ]
        for direction, dtype in product(self.directions, self.dtypes):
            here = Case(mask="causal", dtype=dtype, direction=direction)
            cases.append(replace(here, kind="window", mask="window", n=self.window_length))
            for kind, encoding in product(("packed", "left-padded"), ("none", "t5")):
                cases.append(replace(here, kind=kind, encoding=encoding, n=self.row_length))
            if direction == "forward":
                cases.append(replace(here, kind="decoding", mask="none", n=self.cache_length))
                for queries, group in product(self.queries, self.groups):
                    cases.append(Case("cache", n=self.cache_length, dtype=dtype, queries=queries, group=group))
        if "backward" in self.directions:
            cases += [Case("memory", "t5", "causal", n, 64, self.dtypes[0], "backward") for n in self.memory_lengths]
            shared = Case("sequence", mask="causal", direction="backward")
            for n, encoding in product(self.sequence_lengths, SEQUENCE_ENCODINGS):
                cases.append(replace(shared, encoding=encoding, n=n))
            for encoding in ("none", "t5"):
                n = max(self.sequence_lengths)
                cases.append(replace(shared, kind=SEQUENCE_MEMORY, encoding=encoding, n=n))
            cases.append(replace(shared, kind=SEQUENCE_STEP, encoding="rope", n=self.sequence_step_length))
        if "forward" in self.directions:
            for n, encoding, dtype in product(self.statistics_lengths, ("none", "rope", "t5"), self.dtypes):
                cases.append(Case("statistics", encoding, "causal", n, dtype=dtype))
            for n in self.statistics_memory_lengths:
                cases.append(Case(STATISTICS_MEMORY, "rope", "causal", n, dtype=self.dtypes[0]))
        return [replace(case, kernel=self.kernel) for case in dict.fromkeys(cases) if case.part in self.parts]


FULL = Plan()
QUICK = Plan(
    lengths=(512, 2048),
    dims=(64,),
    masks=("none", "causal"),
    window_length=8192,
    memory_lengths=(1024, 4096, 16384),
    statistics_lengths=(512,),
    statistics_memory_lengths=(4096, 16384),
    sequence_lengths=(4096,),
    sequence_step_length=4096,
    seconds=0.2,
    flex_seconds=150.0,
)
TABLE = Plan(
    lengths=(512, 2048, 4096),
    dims=(64,),
    masks=("causal", "none"),
    encodings=("none", "alibi", "t5", "rope", "transformer-xl"),
    parts=("attention", "cache", "packed"),
    kernel="cpu",
    queries=(1, 16),
    seconds=0.3,
    flex_seconds=0.0,
)
"""What is worth knowing of another processor. The kernel is told, since ``auto`` may leave calls to SDPA there."""


# ---------------------------------------------------------------- whole models


@dataclass(frozen=True)
class ModelCase(AnyCase):
    """One task of a whole model, measured with headway and transformers in turn.

    Attributes:
        task: one of ``MODEL_PARTS``. "encode": hidden states of texts. "prefill": the last token's logits of a prompt,
            with a cache filled. "decode": one token after a prompt. "train": a training step of T5. "memory": the
            memory of such a step. "step": a training step of a small language model. "token": one token after others,
            by headway and by code written by hand.
        model: "MiniLM", "SmolLM2", "T5 encoder" or "T5"; for "step" one of ``STEP_MODELS``, for "token" one of
            ``TOKEN_MODELS``.
        n: tokens of a text, a prompt or a source.
        batch: sequences.
        dtype: the name of the dtype.
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
        """The sizes in words, such as "8 × 512"."""
        return f"{self.n:,}" if self.batch == 1 else f"{self.batch} × {self.n:,}"


@dataclass(frozen=True)
class ModelPlan:
    """The cases of a benchmark of whole models, and the time for each.

    Attributes:
        texts: tokens of a text for MiniLM.
        batches: texts in a batch.
        prefill: tokens of a prompt for SmolLM2, whose prefill is measured.
        prompts: tokens of a prompt for SmolLM2, after which decoding is measured.
        train: tokens of a training step of T5's encoder, and of its memory.
        sources: tokens of the source, for a training step of the whole T5.
        steps: sequences and tokens of each in a training step of a small language model.
        tokens: tokens before the one that is written.
        dtypes: names of dtypes; training of T5 is measured only in float32, and steps under autocast.
        parts: the tasks.
        seconds: the time for each side of a case, of which there may be more for the sake of ``rounds``.
        rounds: the fewest runs of each side.

    Raises:
        HeadwayError: if a name is unknown, or a size is out of its range.
    """

    texts: tuple[int, ...] = (512,)
    batches: tuple[int, ...] = (1, 8)
    prefill: tuple[int, ...] = (4096,)
    prompts: tuple[int, ...] = (4096, 128)
    train: tuple[int, ...] = (1024, 2048)
    sources: tuple[int, ...] = (1024,)
    steps: tuple[tuple[int, int], ...] = ((2, 1024), (8, 256))
    tokens: tuple[int, ...] = (128, 1024, 4096)
    dtypes: tuple[str, ...] = ("float32", "bfloat16")
    parts: tuple[str, ...] = MODEL_PARTS
    seconds: float = 1.0
    rounds: int = 3

    def __post_init__(self) -> None:
        _check(self, dtypes=tuple(DTYPES), parts=MODEL_PARTS)

    def cases(self) -> list[ModelCase]:
        """Returns every case; cases of one model in one dtype are together, so that it is loaded once."""
        cases = []
        for dtype in self.dtypes:
            cases += [ModelCase("encode", "MiniLM", n, b, dtype) for n, b in product(self.texts, self.batches)]
            cases += [ModelCase("prefill", "SmolLM2", n, 1, dtype) for n in self.prefill]
            cases += [ModelCase("decode", "SmolLM2", n, 1, dtype) for n in self.prompts]
            for (batch, n), model in product(self.steps, STEP_MODELS):
                cases.append(ModelCase("step", model, n, batch, dtype))
            cases += [ModelCase("token", model, n, 1, dtype) for n, model in product(self.tokens, TOKEN_MODELS)]
        if "float32" in self.dtypes:
            cases += [ModelCase("train", "T5 encoder", n) for n in self.train]
            cases += [ModelCase("train", "T5", n) for n in self.sources]
            cases += [ModelCase("memory", "T5 encoder", n) for n in self.train]
        return [case for case in cases if case.task in self.parts]


MODELS = ModelPlan()
QUICK_MODELS = ModelPlan(
    prefill=(1024,),
    prompts=(128,),
    train=(512, 1024),
    sources=(512,),
    steps=((2, 256),),
    tokens=(128,),
    seconds=0.2,
)
