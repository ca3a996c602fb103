"""What right means: a result is compared with the naive computation in its own dtype, both measured against float64."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

OUTPUT_FACTOR = 1.5
GRADIENT_FACTOR = 2.0
ROW_FACTOR = 10.0
UNITS = 4.0
DRAWS = 16


def row_errors(found: Tensor, exact: Tensor) -> Tensor:
    """The largest error in each row (along the last dimension), against float64."""
    difference = (found.detach().double() - exact.detach().double()).abs()
    return difference.reshape(-1, difference.shape[-1]).amax(-1) if difference.ndim else difference.reshape(1)


@dataclass
class Comparison:
    """Errors of one result, pooled over draws: mean over rows of the row's largest error against float64.

    Promise: mean ≤ factor × the naive mean, and no row above 10 × the naive computation's largest, each plus 4 units
    in the last place of the largest exact value.
    """

    name: str
    factor: float
    found: list[Tensor] = field(default_factory=list)
    naive: list[Tensor] = field(default_factory=list)
    largest: float = 0.0
    epsilon: float = 0.0

    def add(self, found: Tensor, naive: Tensor, exact: Tensor) -> None:
        """One draw."""
        assert found.shape == exact.shape, f"{self.name}: shape {tuple(found.shape)}, exact {tuple(exact.shape)}"
        assert found.dtype == naive.dtype, f"{self.name}: dtype {found.dtype}, expected {naive.dtype}"
        assert torch.isfinite(found).all(), f"{self.name}: not finite"
        if found.numel() == 0:
            return
        self.found.append(row_errors(found, exact))
        self.naive.append(row_errors(naive, exact))
        self.largest = max(self.largest, exact.detach().abs().max().item())
        self.epsilon = torch.finfo(found.dtype).eps

    def check(self) -> None:
        """Raises AssertionError where the promise is broken."""
        if not self.found:
            return
        found, naive = torch.cat(self.found), torch.cat(self.naive)
        slack = UNITS * self.epsilon * self.largest
        mean, allowed = found.mean().item(), self.factor * naive.mean().item() + slack
        assert mean <= allowed, (
            f"{self.name}: mean error {mean:.3g} above {self.factor} × naive {naive.mean().item():.3g} + {slack:.3g}"
        )
        worst, allowed = found.max().item(), ROW_FACTOR * naive.max().item() + slack
        assert worst <= allowed, (
            f"{self.name}: one row is wrong by {worst:.3g}, above {ROW_FACTOR} × naive's largest "
            f"{naive.max().item():.3g} + {slack:.3g}"
        )


def assert_close(name: str, found: Tensor, expected: Tensor, tolerance: float) -> None:
    """|found − expected| ≤ tolerance·max(1, |expected|) everywhere, with the same shape and everything finite."""
    assert found.shape == expected.shape, f"{name}: shape {tuple(found.shape)}, expected {tuple(expected.shape)}"
    assert torch.isfinite(found).all(), f"{name}: not finite"
    if not found.numel():
        return
    scale = max(1.0, expected.detach().abs().max().item())
    worst = (found.detach().double() - expected.detach().double()).abs().max().item()
    assert worst <= tolerance * scale, f"{name}: off by {worst:.3g}, more than {tolerance * scale:.3g}"
