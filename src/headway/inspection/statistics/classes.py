"""Weight by classes of tokens."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ... import reductions
from ...errors import HeadwayError
from ...kernels import Call
from ...reductions import Reduction
from ._base import Statistic, mean


@dataclass(frozen=True, eq=False)
class Classes(Statistic):
    """The weight that each query gives to each class of tokens, [batch, H, n, classes].

        W[h,i,c] = Σⱼ A[h,i,j] over the keys of class c

    The caller defines the classes: punctuation, separators, parts of speech, or anything else.

    Args:
        labels: the class of each key, whole numbers [m] or [batch, m] from 0 on; −1 for keys of no class.
        names: the names of the classes. Default: their numbers.

    Raises:
        HeadwayError: if labels are not whole numbers of these shapes, or go beyond the names, or two names are equal.

    References:
        Clark et al. 2019, section 3.2 (separators); Vig and Belinkov 2019 (parts of speech).
    """

    name = "classes"

    labels: Tensor
    names: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        x = self.labels
        if not isinstance(x, Tensor) or x.is_floating_point() or x.dtype == torch.bool or x.ndim not in (1, 2):
            said = f"{x.dtype} of shape {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
            raise HeadwayError(f"Classes has labels of {said}: give whole numbers [m] or [batch, m], −1 for no class")
        if x.numel() and (int(x.min()) < -1 or (self.names is not None and int(x.max()) >= len(self.names))):
            most = "" if self.names is None else f" to {len(self.names) - 1}, as there are {len(self.names)} names"
            raise HeadwayError(
                f"Classes has labels from {int(x.min())} to {int(x.max())}: give −1, or classes from 0{most}"
            )

        if self.names is None:
            return
        names = [] if isinstance(self.names, str) else list(self.names)
        if not all(isinstance(name, str) for name in names) or len(names) != len(set(names)) or not names:
            raise HeadwayError(f"Classes has names {self.names!r}: give different names, such as ('word', 'other')")

    @property
    def count(self) -> int:
        """The number of classes."""
        if self.names is not None:
            return len(self.names)
        return int(self.labels.max()) + 1 if self.labels.numel() else 0

    def check(self, call: Call) -> None:
        batch, m = call.q.shape[0], call.k.shape[2]
        if self.labels.shape[-1] != m or (self.labels.ndim == 2 and self.labels.shape[0] not in (1, batch)):
            shape = tuple(self.labels.shape)
            raise HeadwayError(f"Classes has labels of shape {shape}: give one for each key, [{m}] or [{batch}, {m}]")

    def reductions(self, call: Call) -> tuple[Reduction, ...]:
        labels = self.labels if self.labels.ndim == 2 else self.labels[None]
        return (reductions.WeightsByLabel(labels.to(call.q.device, torch.int64), self.count),)

    def summary(self, value: Tensor, counted: Tensor) -> dict[str, Tensor]:
        means, names = mean(value, counted), self.names or tuple(f"class {i}" for i in range(self.count))
        return {name: means[..., i] for i, name in enumerate(names)}
