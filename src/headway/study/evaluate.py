"""How well a model predicts: the loss of each token, and how it lies along the window."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

TOKENS_AT_ONCE = 8192
"""How many tokens go through a model at a time: bounds the memory of an evaluation."""


class Predictions(NamedTuple):
    """For each token its loss in bits and whether the likeliest answer was right, both [windows, length]."""

    bits: Tensor
    right: Tensor


@torch.no_grad()
def predictions(model: nn.Module, inputs: Tensor, targets: Tensor) -> Predictions:
    """What a model makes of windows it has not seen; inputs and targets int64 [windows, length]."""
    was_training = model.training
    model.eval()
    device = next(model.parameters()).device
    at_once = max(1, TOKENS_AT_ONCE // inputs.shape[1])
    bits, right = [], []
    for some, wanted in zip(inputs.split(at_once), targets.split(at_once), strict=True):
        wanted = wanted.to(device)
        logits = model(some.to(device)).float()
        loss = F.cross_entropy(logits.flatten(0, 1), wanted.flatten(), reduction="none", ignore_index=-100)
        bits.append((loss.double() / math.log(2)).view_as(wanted).cpu())
        right.append((logits.argmax(-1) == wanted).cpu())
    model.train(was_training)
    return Predictions(torch.cat(bits), torch.cat(right))


def separate_windows(text: Tensor, start: int, count: int, length: int) -> tuple[Tensor, Tensor]:
    """Inputs and targets that cut ``count`` bytes from ``start`` on into windows, each without a past."""
    windows = count // length
    ids = text[start : start + windows * length + 1].long()
    return ids[:-1].view(windows, length), ids[1:].view(windows, length)


def overlapping_windows(text: Tensor, start: int, count: int, length: int) -> tuple[Tensor, Tensor]:
    """Windows each half a length behind the last, of which the second half is to be predicted.

    Whatever the length, what is to be predicted are the same ``count`` bytes from ``start`` on, each once and
    with at least half a window known before it; the targets of the first halves are −100.
    """
    new = (length + 1) // 2
    known = length - new
    windows = count // new
    ids = text[start - known : start + windows * new + 1].long()
    targets = ids[1:].unfold(0, length, new).clone()
    targets[:, :known] = -100
    return ids[:-1].unfold(0, length, new), targets


def doublings(length: int, after: int) -> list[int]:
    """The lengths that halving leads to from ``length`` down to above ``after``, by quarters once it is short."""
    found = []
    size, halved = length, 0
    while size > after:
        found.append(size)
        size //= 2 if halved < 2 else 4
        halved += 1
    return found[::-1]
