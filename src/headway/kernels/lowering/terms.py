"""Lowering of several query scales to one, and of several sinks to one."""

from __future__ import annotations

from functools import reduce
from typing import Any

import torch

from ...terms import QueryScale, Sink


def one_temperature(terms: tuple[Any, ...]) -> tuple[Any, ...]:
    factors = [term.factor.float() for term in terms if isinstance(term, QueryScale)]
    rest = [term for term in terms if not isinstance(term, QueryScale)]
    return QueryScale(reduce(torch.mul, factors)), *rest


def one_sink(terms: tuple[Any, ...]) -> tuple[Any, ...]:
    # the gradient of a logit shared by queries is a sum over them, in float64, since the addends may cancel
    logits = [term.by_query.double() for term in terms if isinstance(term, Sink)]
    rest = [term for term in terms if not isinstance(term, Sink)]
    return *rest, Sink(torch.stack(torch.broadcast_tensors(*logits)).logsumexp(0).float())
