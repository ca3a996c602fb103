"""What ``generate`` takes and returns."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TypedDict

import torch
from torch import Tensor

TokenRows = Sequence[Sequence[int]] | Tensor
"""Ids of each row: lists, which may differ in length, or int64 [batch, n]."""


class Options(TypedDict, total=False):
    """The options of ``generate`` and ``stream``."""

    temperature: float
    top_k: int | None
    top_p: float | None
    stop: int | Collection[int] | None
    decoder_start: int | Sequence[int] | TokenRows | None
    seed: int | None
    generator: torch.Generator | None


@dataclass(frozen=True)
class Generated:
    """The ids generated for each prompt.

    Attributes:
        ids: the new ids of each row, without the prompt, the stop id and padding.
        log_probs: the model's log-probability of each of these ids, before temperature, top_k and top_p.
        stopped: whether a stop id ended the row, rather than ``max_new_tokens``.
    """

    ids: list[list[int]]
    log_probs: list[list[float]]
    stopped: list[bool]
