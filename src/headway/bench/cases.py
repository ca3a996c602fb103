"""What is measured: cases as data."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from itertools import product
from typing import Any

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


@dataclass(frozen=True)
class Case:
    """One call of attention, of which all sides run in turn.

    kind          one of ``PARTS``: attention against torch; a long causal window against all of the past; one token
                  against a cache; documents packed into one row, and a row padded in front, against the same tokens
                  without either; memory
    n             tokens; under "decoding" those in the cache
    direction     forward, or backward alone
    """

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
        for name, known in (
            ("dtypes", tuple(DTYPES)),
            ("masks", MASKS),
            ("directions", DIRECTIONS),
            ("parts", PARTS),
        ):
            for value in getattr(self, name):
                if value not in known:
                    raise HeadwayError(f"{name} has {value!r}: give any of {', '.join(known)}")
        for name in ("lengths", "dims", "memory_lengths"):
            for size in getattr(self, name):
                if size < 1:
                    raise HeadwayError(f"{name} has {size}: give whole numbers of at least 1")
        for name in ("lengths", "dims", "dtypes", "masks", "encodings", "directions", "parts"):
            if not getattr(self, name):
                raise HeadwayError(f"{name} is empty: name at least one")
        if self.rounds < 1:
            raise HeadwayError(f"rounds is {self.rounds}: give at least 1")
        if not self.seconds >= 0:
            raise HeadwayError(f"seconds is {self.seconds}: give 0 or more")

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
