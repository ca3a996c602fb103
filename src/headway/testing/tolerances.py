"""Compares a result's error with that of a naive computation in the same dtype, both against float64."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

OUTPUT_FACTOR = 1.5
"""The mean error of an output may be this many times that of the naive computation."""
GRADIENT_FACTOR = 2.0
"""The same for a gradient."""
ROW_FACTOR = 10.0
"""The largest error of a row may be this many times the naive computation's largest."""
UNITS = 4.0
"""Units in the last place, of the largest exact value, that are allowed in addition."""
DRAWS = 16
"""Random draws over which errors are pooled."""
MOST_DRAWS = 160
"""The most draws where the errors of fewer are above a bound."""


def row_errors(actual: Tensor, exact: Tensor) -> Tensor:
    """Returns the largest error in each row, along the last dimension, against float64."""
    difference = (actual.detach().double() - exact.detach().double()).abs()
    return difference.reshape(-1, difference.shape[-1]).amax(-1) if difference.ndim else difference.reshape(1)


@dataclass
class Comparison:
    """Compares the errors of a result with those of a naive computation, pooled over several draws.

    The error of a row is the largest difference in it from the result in float64. ``check`` demands two bounds, with 4
    units in the last place of the largest exact value added to each:

        mean error of rows ≤ factor × mean error of the naive computation's rows
        error of any row   ≤ rows × largest error of the naive computation's rows

    A gradient that is a difference of larger numbers, such as dP − δ of a query with one key, is only as exact as
    these. If ``add`` is told their size, 4 float32 units of it are added too.

    Args:
        name: the name of the result, for messages.
        factor: the factor of the first bound.
        rows: the factor of the second; 10 if not given.
        actual: the errors of the rows so far, a tensor for each draw; filled by ``add``.
        naive: the errors of the naive computation's rows, likewise.
        largest: the largest exact value so far.
        terms: the largest number so far whose difference is a result; 0 if not told.
        epsilon: the machine epsilon of the result's dtype.
    """

    name: str
    factor: float
    rows: float = ROW_FACTOR
    actual: list[Tensor] = field(default_factory=list)
    naive: list[Tensor] = field(default_factory=list)
    largest: float = 0.0
    terms: float = 0.0
    epsilon: float = 0.0

    def add(self, actual: Tensor, naive: Tensor, exact: Tensor, terms: float = 0.0) -> None:
        """Adds one draw.

        Args:
            actual: the result.
            naive: the naive computation's result, in the same dtype.
            exact: the result in float64.
            terms: the size of the numbers that the result is a difference of; 0 if it is none.

        Raises:
            AssertionError: if shapes or dtypes differ, or ``actual`` is not finite.
        """
        assert actual.shape == exact.shape, f"{self.name}: shape {tuple(actual.shape)}, exact {tuple(exact.shape)}"
        assert actual.dtype == naive.dtype, f"{self.name}: dtype {actual.dtype}, expected {naive.dtype}"
        assert torch.isfinite(actual).all(), f"{self.name}: not finite"
        if actual.numel() == 0:
            return
        self.actual.append(row_errors(actual, exact))
        self.naive.append(row_errors(naive, exact))
        self.largest = max(self.largest, exact.detach().abs().max().item())
        self.terms = max(self.terms, terms)
        self.epsilon = torch.finfo(actual.dtype).eps

    def holds(self) -> bool:
        """Returns whether both bounds hold so far."""
        try:
            self.check()
        except AssertionError:
            return False
        return True

    def check(self) -> None:
        """Checks both bounds.

        Raises:
            AssertionError: if one is exceeded.
        """
        if not self.actual:
            return
        actual, naive = torch.cat(self.actual), torch.cat(self.naive)
        slack = UNITS * (self.epsilon * self.largest + torch.finfo(torch.float32).eps * self.terms)
        mean, allowed = actual.mean().item(), self.factor * naive.mean().item() + slack
        assert mean <= allowed, (
            f"{self.name}: mean error {mean:.3g} above {self.factor} × naive {naive.mean().item():.3g} + {slack:.3g}"
        )
        worst, allowed = actual.max().item(), self.rows * naive.max().item() + slack
        assert worst <= allowed, (
            f"{self.name}: the largest error of a row {worst:.3g} above {self.rows} × naive "
            f"{naive.max().item():.3g} + {slack:.3g}"
        )


def assert_close(name: str, actual: Tensor, expected: Tensor, tolerance: float) -> None:
    """Checks that |actual − expected| ≤ tolerance·max(1, max |expected|) everywhere.

    Args:
        name: the name of the result, for messages.
        actual: the result.
        expected: the correct result, of the same shape.
        tolerance: the largest difference allowed.

    Raises:
        AssertionError: if the difference is larger, shapes differ, or ``actual`` is not finite.
    """
    assert actual.shape == expected.shape, f"{name}: shape {tuple(actual.shape)}, expected {tuple(expected.shape)}"
    assert torch.isfinite(actual).all(), f"{name}: not finite"
    if not actual.numel():
        return
    scale = max(1.0, expected.detach().abs().max().item())
    worst = (actual.detach().double() - expected.detach().double()).abs().max().item()
    assert worst <= tolerance * scale, f"{name}: off by {worst:.3g}, more than {tolerance * scale:.3g}"
