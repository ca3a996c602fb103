"""The base class of statistics."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import torch
from torch import Tensor

from ...kernels import Call
from ...records import Record
from ...reductions import Reduction


class Statistic(Record, ABC):
    """The base class of statistics of attention weights.

    A subclass names the reductions of the weights that it needs, and computes its result from them. It has a row in
    ``STATISTICS``, or is given to ``attention_statistics`` as an object. Shapes are given with H heads, n queries, m
    keys. A[h,i,j] are the weights before dropout.
    """

    name: ClassVar[str]
    """What its result is called."""
    sums_queries: ClassVar[bool] = False
    """Whether its result is a tensor of sums over the queries, to which each of several processes adds its own."""

    def check(self, call: Call) -> None:
        """Checks that the statistic fits a call.

        Args:
            call: the call.

        Raises:
            HeadwayError: if it does not.
        """
        return

    @abstractmethod
    def reductions(self, call: Call) -> tuple[Reduction, ...]:
        """Returns the reductions of the weights that the statistic needs.

        Args:
            call: the call, whose scores have not been computed.
        """

    def result(self, call: Call, values: list[Any], counted: Tensor) -> Any:
        """Returns the statistic: a tensor, or a named tuple of tensors.

        Args:
            call: the call.
            values: of each reduction, in order.
            counted: the queries that count, [batch, H, n]. The others are NaN in the result, or −1 in whole numbers.
        """
        (value,) = values
        return left_out(value, counted)

    def summary(self, value: Any, counted: Tensor) -> dict[str, Tensor]:
        """Returns a few numbers for each head, [batch, H] each, by the names of columns.

        Args:
            value: the result of ``result``.
            counted: the queries that count, [batch, H, n].
        """
        return {self.name: mean(value, counted)}


def left_out(value: Tensor, counted: Tensor) -> Tensor:
    """A value for each query, [batch, H, n, …], with NaN, or −1 in whole numbers, for queries that do not count."""
    counted = counted.reshape(*counted.shape, *(1,) * (value.ndim - counted.ndim))
    return value.masked_fill(~counted, torch.nan if value.is_floating_point() else -1)


def mean(value: Tensor, counted: Tensor) -> Tensor:
    """The mean over the queries that count, [batch, H, …]; NaN where there are none."""
    counted = counted.reshape(*counted.shape, *(1,) * (value.ndim - counted.ndim))
    total = value.double().masked_fill(~counted, 0).sum(2)
    return (total / counted.sum(2)).to(value.dtype if value.is_floating_point() else torch.float32)
