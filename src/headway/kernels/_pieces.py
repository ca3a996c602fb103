"""Splits a call whose products are not simply ⟨q, k⟩ into pieces: calls on disjoint pairs whose products are.

Results of the pieces merge like results over disjoint keys. Each piece computes its gradients from the merged results.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from .. import decay, householder
from ..coordinates import Coordinates
from ..masks import And, Causal, Interval, Mask, Window, conjuncts
from ..terms import SCANS, ChannelDecay, HouseholderPath, LimitedRotation, QueryScale, Term, TokenBias, distance, rotate
from ._masks import evaluated
from ._problem import Call, Problem
from .lowering.sinusoids import with_own

IN_PIECES = (LimitedRotation, HouseholderPath, ChannelDecay)
"""The terms that split a call into pieces."""

Piece = tuple[Tensor, Tensor, Mask, tuple[Term, ...]]
"""Queries, keys, the mask of the piece's pairs, and further terms."""


def reasons_against(problem: Problem) -> Iterator[str]:
    """Yields every reason why a call cannot be computed in pieces, from metadata only.

    Args:
        problem: the facts of the call.
    """
    scans = [type(term).__name__ for term in problem.terms if type(term) in SCANS]
    for term in problem.terms:
        if scans and type(term) in IN_PIECES:
            yield f"it does not combine {type(term).__name__} with {scans[0]}: both depend on the order of all keys"
        causal = problem.aligned and _is_causal(problem.mask)
        if type(term) is HouseholderPath and not (causal and problem.n == problem.m):
            yield "it supports HouseholderPath only with as many queries as keys and a plain causal mask"
        if type(term) is ChannelDecay and not (causal and problem.n <= problem.m):
            yield "it supports ChannelDecay only for queries that are the last keys and with a plain causal mask"
        scaled = any(type(one) is QueryScale for one in problem.terms)
        if type(term) is HouseholderPath and term.q_sums is not None and scaled:
            yield "it does not combine QueryScale with a HouseholderPath that has q_sums"


def is_in_pieces(terms: tuple[Term, ...]) -> bool:
    """Returns whether a call with these terms is computed in pieces."""
    return any(type(term) in IN_PIECES for term in terms)


def pieces_of(call: Call) -> Iterator[Call]:
    """Yields the pieces of a call, without sinks. Each is made when the iterator reaches it.

    Args:
        call: a call with one of the terms ``IN_PIECES``. Its rotations have been applied.
    """
    term = next(term for term in call.terms if isinstance(term, IN_PIECES))
    if isinstance(term, ChannelDecay):  # each head has other keys
        group = call.q.shape[1] // call.k.shape[1]
        if group > 1:
            call = call._with(k=call.k.repeat_interleave(group, dim=1), v=call.v.repeat_interleave(group, dim=1))
    others = tuple([with_own(one, call.q, call.k) for one in call.terms if one is not term])
    made = _MADE[type(term)](call, term)
    for q, k, pairs, further in made:
        yield evaluated(
            call._with(q=q, k=k, terms=others + further, mask=And((*conjuncts(call.mask), pairs)), include_sink=False)
        )


def _is_causal(mask: Mask | None) -> bool:
    return any(type(part) is Causal or (type(part) is Window and part.right == 0) for part in conjuncts(mask))


# ---------------------------------------------------------------- by distance


def _by_distance(call: Call, term: LimitedRotation) -> Iterator[Piece]:
    """Yields the near, past and future keys. Future keys are left out if positions rise and the mask is causal."""
    near: Mask
    past: Mask
    future: Mask
    q_at, k_at = (side.axis(term.axis).double() for side in (call.q_coordinates, call.k_coordinates))
    if bool((k_at[:, 1:] >= k_at[:, :-1]).all()):
        rows = max(len(q_at), len(k_at))
        q_at, k_at = q_at.expand(rows, -1), k_at.expand(rows, -1).contiguous()
        first = torch.searchsorted(k_at, q_at - term.window, right=True)
        last = torch.searchsorted(k_at, q_at + term.window)
        near, past, future = Interval(first, last), Interval(None, first), Interval(last, None)
        n, m = call.q.shape[2], call.k.shape[2]
        own = torch.arange(m - n, m)  # a query may have another position than the key in its slot
        ahead = not (_is_causal(call.mask) and call.aligned) or bool((last <= own).any())
    else:
        near, past, future = (_Distances(side, term.window, term.axis) for side in (0, -1, 1))
        ahead = True
    far = rotate(call.k, term.k_cos[1], term.k_sin[1], term.layout)
    yield _turned(call, term, 0), rotate(call.k, term.k_cos[0], term.k_sin[0], term.layout), near, ()
    yield _turned(call, term, 1), far, past, ()
    if ahead:
        yield _turned(call, term, 2), far, future, ()


def _turned(call: Call, term: LimitedRotation, kind: int) -> Tensor:
    return rotate(call.q, term.q_cos[kind], term.q_sin[kind], term.layout)


@dataclass(frozen=True, eq=False)
class _Distances(Mask):
    """Near pairs (side 0), or far ones whose key comes before (−1) or after the query (1)."""

    side: int
    window: float
    axis: int

    def allowed(self, q: Coordinates, k: Coordinates) -> Tensor:
        delta = distance(q, k, self.axis)[:, None]
        return delta.abs() < self.window if self.side == 0 else self.side * delta >= self.window

    def plan_key(self) -> Hashable:
        return _Distances, self.side, self.window, self.axis


# ---------------------------------------------------------------- along the path


def _along_path(call: Call, term: HouseholderPath) -> Iterator[Piece]:
    for piece in householder.in_pieces(call.q, call.k, term.w, term.beta):
        sums: tuple[Term, ...] = ()
        if term.q_sums is not None and term.k_sums is not None:
            # minus the sum at a token between query and key, which cancels: sums grow along the sequence
            between = term.k_sums[..., piece.between().clamp(max=call.k.shape[2] - 1)].detach()
            sums = (TokenBias(call.scale * (term.q_sums - between), call.scale * (between - term.k_sums)),)
        yield piece.q, piece.k, Interval(*piece.keys()), sums


# ---------------------------------------------------------------- by channel


def _by_channel(call: Call, term: ChannelDecay) -> Iterator[Piece]:
    before = call.k.shape[2] - call.q.shape[2]
    if before:
        q, k = decay.with_earlier(call.q, call.k, term.log_gates)
        yield q, k, Interval(None, before), ()
    own, log_gates = call.k[:, :, before:], term.log_gates[:, :, before:]
    for piece in decay.in_pieces(call.q, own, log_gates):
        first, last = piece.keys()
        yield piece.q, F.pad(piece.k, (0, 0, before, 0)), Interval(before + first, before + last), ()


_MADE: dict[type, Callable[[Call, Any], Iterator[Piece]]] = {
    LimitedRotation: _by_distance,
    HouseholderPath: _along_path,
    ChannelDecay: _by_channel,
}
