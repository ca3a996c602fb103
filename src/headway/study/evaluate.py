"""The loss of each predicted token, and the windows in which tokens are predicted."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

TOKENS_AT_ONCE = 8192
"""The most tokens in one forward pass, which bounds the memory of an evaluation."""
LOGITS_AT_ONCE = 2**23
"""The most logits in one forward pass, unless one window has more."""


class Predictions(NamedTuple):
    """The loss in bits of each token, and whether the most likely token was the target, both [windows, length]."""

    bits: Tensor
    right: Tensor


@torch.no_grad()
def predictions(model: nn.Module, inputs: Tensor, targets: Tensor, *, vocabulary: int = 256) -> Predictions:
    """Computes the loss of each token in eval mode, with results on the CPU.

    Args:
        model: maps ids [batch, length] to logits [batch, length, vocabulary].
        inputs: ids, int64 [windows, length].
        targets: the ids to predict, int64 [windows, length]; −100 is not predicted and has a loss of 0.
        vocabulary: the logits of a token, by which the work is divided.
    """
    was_training = model.training
    model.eval()
    device = next(model.parameters()).device
    at_once = max(1, min(TOKENS_AT_ONCE, LOGITS_AT_ONCE // vocabulary) // inputs.shape[1])
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
    """Cuts a text into windows that do not overlap: inputs and targets, int64 [windows, length].

    ``text`` has ids, [tokens]. The function uses ``count`` of its tokens from ``start`` on, rounded down to whole
    windows.
    """
    windows = count // length
    ids = text[start : start + windows * length + 1].long()
    return ids[:-1].view(windows, length), ids[1:].view(windows, length)


def overlapping_windows(text: Tensor, start: int, count: int, length: int) -> tuple[Tensor, Tensor]:
    """Cuts a text into windows that overlap by half: inputs and targets, int64 [windows, length].

    ``text`` has ids, [tokens]. The model predicts the second half of each window; targets of the first halves are −100.
    For any length the targets are the same ``count`` tokens, rounded down to whole halves of windows. Each is predicted
    once, with at least half a window before it.
    """
    new = (length + 1) // 2
    known = length - new
    windows = count // new
    ids = text[start - known : start + windows * new + 1].long()
    targets = ids[1:].unfold(0, length, new).clone()
    targets[:, :known] = -100
    return ids[:-1].unfold(0, length, new), targets


def doublings(length: int, after: int) -> list[int]:
    """Returns the window lengths between two measured lengths: ``length``, two halvings, and then quarters.

    They are in increasing order.
    """
    lengths = []
    size, halved = length, 0
    while size > after:
        lengths.append(size)
        size //= 2 if halved < 2 else 4
        halved += 1
    return lengths[::-1]
