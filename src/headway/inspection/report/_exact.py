"""Heads whose weights can all be computed from codes of their queries and keys."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ...kernels import KERNELS, Call, cut, reduce
from ...kernels._results import log_sum_exp
from ...reductions import RowStatistics
from ...terms import QueryScale, RelativeValues
from ._codes import Vectors, octets_of, spread, vectors_of
from ._scores import Scores, Sight

OCTETS = 1.5
"""Bytes of a component."""


@dataclass(frozen=True, eq=False)
class ExactKeys:
    """The keys of a key head in codes, and the heads that read them.

    Attributes:
        kv: the number of the key head.
        keys: their vectors.
        queries: the vectors of each head, by its number.
        lse: the log-sum-exp of each query of these heads, of the scores that the codes give.
    """

    kv: int
    keys: Vectors
    queries: dict[int, Vectors]
    lse: dict[int, Tensor]

    def packed_queries(self, head: int) -> bytes:
        """The bytes of a head's queries."""
        return self.queries[head].packed + octets_of(self.lse[head])

    def weights(self, head: int, rows: Sequence[int], scores: Scores, seen: Sight) -> Tensor:
        """Computes weights as a reader does, [rows, n] in float64."""
        slots = torch.tensor(list(rows))
        queries, n = self.queries[head], len(self.keys.scale)
        products = queries.integers[slots].double() @ self.keys.integers.double().T
        score = products * queries.scale[slots].double()[:, None] * self.keys.scale.double()
        if scores.bias is not None:
            bias = scores.bias[head if len(scores.bias) > 1 else 0].double()
            score = score + bias[torch.arange(n)[None] - slots[:, None] + n - 1]
        if scores.of_tokens is not None:
            of_queries, of_keys = scores.of_tokens[head if len(scores.of_tokens) > 1 else 0].double()
            score = score + of_queries[slots][:, None] + of_keys
        if scores.cap is not None:
            score = scores.cap * torch.tanh(score / scores.cap)
        key = torch.arange(n)
        begin, end = seen.ranges[:, 0, slots, None], seen.ranges[:, 1, slots, None]
        visible = ((key >= begin) & (key < end)).any(0)
        return (score - self.lse[head].double()[slots, None]).exp().masked_fill(~visible, 0)


def exact_keys(call: Call, scores: Scores, kv: int, heads: Sequence[int]) -> ExactKeys:
    """Rounds the queries of some heads and the keys that they share, and computes the log-sum-exp of the codes."""
    group = call.q.shape[1] // call.k.shape[1]
    keys = scores.k[kv]
    finite = bool(torch.isfinite(keys).all())
    if scores.cap is None and not scores.sinks and finite:
        keys = keys - keys.mean(0)  # it adds the same number to all scores of a query
    coded = vectors_of(spread(keys))
    queries = {head: vectors_of(spread(scores.q[head])) for head in heads}
    part = call if group == call.q.shape[1] else cut(call, "heads", kv * group, (kv + 1) * group)
    q = torch.zeros(1, group, *coded.integers.shape)
    for head, own in queries.items():
        q[0, head - kv * group] = own.values
    terms = tuple(term for term in part.terms if not isinstance(term, (QueryScale, RelativeValues)))
    k = coded.values[None, None]
    device = call.q.device
    lse = _lse(
        part._with(
            q=q.to(device), k=k.to(device), v=k[..., :0].to(device), scale=1.0, terms=terms, q_rotation=None,
            k_rotation=None, v_rotation=None, out_rotation=None, restore=None,
        )
    )  # fmt: skip
    if not finite or not bool(torch.isfinite(scores.q[list(heads)]).all()):
        of_call = _lse(part)
        lse = torch.where(torch.isfinite(of_call) | (of_call == -torch.inf), lse, torch.nan)
    return ExactKeys(kv, coded, queries, {head: lse[head - kv * group].contiguous() for head in heads})


def _lse(call: Call) -> Tensor:
    ((row_max, row_sum),) = reduce(KERNELS, call, [RowStatistics()])
    return log_sum_exp(row_max, row_sum)[0].float().cpu()


def octets_of_queries(n: int, width: int) -> int:
    """Returns about how many characters the queries of an exact head take."""
    return int(4 / 3 * n * ((width + width % 2) * OCTETS + 8))


def octets_of_keys(n: int, width: int) -> int:
    """Returns about how many characters the keys of a key head take."""
    return int(4 / 3 * n * ((width + width % 2) * OCTETS + 4))
