"""Weights by the length of what they add to the output."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor

from ...errors import HeadwayError
from ...kernels import Call
from ...kernels.reference import with_functions
from ...terms import HeadNetwork, Normalizer, ScoreMap, Sink, SoftCap, Term, TokenBias
from .._record import Records
from ._base import Score, call_of

R = TypeVar("R", bound=Records)


@dataclass(frozen=True, eq=False)
class NormWeighted(Score):
    """The share of each key in the vectors that a head adds up: a ``Seen`` whose weights are these shares.

        N[h,i,j] = ‖A[h,i,j]·f_h(xⱼ)‖ / Σⱼ ‖A[h,i,j]·f_h(xⱼ)‖,   f_h(x) = (x·W_V + b_V)·W_O^h
                 = softmaxⱼ(score[h,i,j] + ln w[h,j]),   w[h,j] = ‖f_h(xⱼ)‖

    N is attention with a bias ln w of the keys, so a statistic of N takes no more memory than one of A. Ask the result
    for ``statistics``, ``weights``, ``table`` or other scores. The lengths themselves are ``A·w``, with w in
    ``value_norms`` of the records. A sink adds no vector, so rows of N sum to 1 beside it too.

    The capture keeps w with keep="qkv". The output projection is the linear layer that receives the outputs of the
    heads unchanged. If there is none, or the values depend on the distance, w is not known.

    References:
        Kobayashi et al. 2020, "Attention is Not Only a Weight: Analyzing Transformers with Vector Norms".
    """

    name = "norm_weighted"

    def of(self, seen: R) -> R:
        if seen.keep != "qkv":
            raise HeadwayError(
                f"{self.name!r} needs the lengths of the values, and the capture kept {seen.keep!r}: capture with "
                "keep='qkv'"
            )
        for record in seen.records:
            if record.value_norms is None:
                raise HeadwayError(
                    f"the output projection of {record.layer!r} is not known: {record._without_norms}; leave the layer "
                    "out by layers="
                )
        weighted = copy.copy(seen)
        weighted.keep = "qk"
        weighted.records = []
        for record in seen.records:
            one = copy.copy(record)
            assert record.value_norms is not None
            one._kept_call = weighted_call(call_of(record, self.name, "qkv"), record.value_norms)
            weighted.records.append(one)
        return weighted


def weighted_call(call: Call, norms: Tensor) -> Call:
    """A call whose weights are A[h,i,j]·w[h,j] / Σⱼ A[h,i,j]·w[h,j], for norms w [batch, heads, m]."""
    terms: tuple[Term, ...] = tuple(term for term in with_functions(call) if not isinstance(term, Sink))
    own = [term for term in terms if isinstance(term, Normalizer)]
    if own:  # its weights are not a softmax
        weigh = replace(own[0], function=partial(_weighed, own[0].function), tensors=(*own[0].tensors, norms))
        return call._with(terms=tuple(weigh if term is own[0] else term for term in terms))
    bias = norms.log()
    # a bias of keys would be added before these terms
    if any(isinstance(term, (SoftCap, HeadNetwork, ScoreMap)) for term in terms):
        return call._with(terms=(*terms, ScoreMap(_added, (bias,))))
    return call._with(terms=(*terms, TokenBias(keys=bias)))


def _weighed(function: Any, scores: Tensor, allowed: Tensor, *tensors: Tensor) -> Tensor:
    *own, norms = tensors
    weights = function(scores, allowed, *own) * norms[:, :, None]
    return weights / weights.sum(-1, keepdim=True).clamp(min=torch.finfo(weights.dtype).tiny)


def _added(scores: Tensor, allowed: Tensor, q: Tensor, rows: Tensor, bias: Tensor) -> Tensor:
    return scores + bias[:, :, None]
