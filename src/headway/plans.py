"""Plans: what short calls of one shape have in common, computed once, since it takes most of their time.

A plan belongs to an encoding, or to no encoding, and to a key: whatever else of a call a result depends on, apart from
the values of its tensors. It is made in the first call and holds the choice of the kernel, the lowered mask, tables of
positions, and the words that the kernel reads, also for the backward pass if autograd records the call. Later calls
write their addresses into a copy. Terms of an encoding that has parameters are computed in every call.

Long calls, those under autocast, and those with encodings outside of headway have no plan.
"""

from __future__ import annotations

import weakref
from collections.abc import Hashable
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from ._torch import any_autocast, writes_of
from .coordinates import Coordinates
from .kernels import KERNELS, kernel_for
from .kernels._autograd import ORDINARY
from .kernels._base import Planned
from .kernels._problem import Call, tensors_in
from .kernels.cpu._library import environment
from .masks import Mask
from .positions import PositionEncoding
from .terms import Term
from .tracing import forward_mode, watched

LONGEST = 2048
"""The most queries and keys of a call with a plan, together: the time of longer calls is that of the kernel."""
MOST = 32
"""The number of plans of one encoding; the oldest is removed first."""


class Plan:
    """What calls with one key have in common.

    Args:
        call: the first of these calls.
        run: the kernel's part.
        encoding: computes the terms of each call, as one with parameters does; None if they are always the same.
        given: the positions that were given, whose identities are in the key.
    """

    __slots__ = ("encoding", "given", "guards", "kinds", "run", "sides", "version")

    def __init__(
        self, call: Call, run: Planned, encoding: PositionEncoding | None, given: tuple[Coordinates | None, ...]
    ) -> None:
        self.run, self.encoding, self.given = run, encoding, given
        self.sides = call.q_coordinates, call.k_coordinates
        self.guards = _tensors_of(*self.sides, *given)
        self.version = sum(map(writes_of, self.guards))
        self.kinds = tuple(map(type, call.terms))

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, terms: tuple[Term, ...] | None = None) -> Tensor | None:
        """Returns the output; None if the plan does not hold for this call.

        ``terms`` are those of the encoding, if the call has computed them: computed again, autograd would record them
        twice, and a checkpoint would find that its call saves more than the call that it repeats.
        """
        if sum(map(writes_of, self.guards)) != self.version:
            return None
        if self.encoding is None:
            return self.run(q, k, v)
        if terms is None:
            terms = self.encoding.terms(*self.sides)
        return self.run(q, k, v, terms) if tuple(map(type, terms)) == self.kinds else None


class Plans(dict[Hashable, "Plan | None"]):
    """The plans of an encoding by their keys; None for a key of calls that have none.

    They stay with the encoding, in its ``__dict__``, and neither a copy nor a file of it has them.
    """

    def __init__(self, owner: object = None) -> None:
        super().__init__()
        self.owner = (lambda: None) if owner is None else weakref.ref(owner)

    def __deepcopy__(self, memo: dict[int, Any]) -> Plans:
        return Plans()

    def __reduce__(self) -> tuple[Any, ...]:
        return Plans, ()


_without_encoding = Plans()


def _plans_of(encoding: PositionEncoding | None) -> Plans:
    if encoding is None:
        return _without_encoding
    found = encoding.__dict__.get("_plans")
    if found is None or found.owner() is not encoding:  # a shallow copy has those of the original
        found = encoding.__dict__["_plans"] = Plans(encoding)
    return found


def key_of(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    encoding: PositionEncoding | None,
    mask: Mask | Tensor | None,
    scale: float | None,
    q_positions: Tensor | Coordinates | None,
    k_positions: Tensor | Coordinates | None,
    prepared_by: PositionEncoding | None,
    kernel: str,
) -> Hashable:
    """Returns the key of a call of ``attention`` without further terms, sink, cap and dropout; None if it has no plan.

    Nothing is checked: the arguments may be anything at all.
    """
    if watched() or forward_mode() or any_autocast():
        return None
    if not (type(q) in ORDINARY and type(k) in ORDINARY and type(v) in ORDINARY):
        return None
    wanted = (q.requires_grad, k.requires_grad, v.requires_grad) if torch.is_grad_enabled() else None
    if wanted is not None and (q is k or k is v or q is v):
        return None  # autograd saves each tensor once
    q_shape, k_shape = q.shape, k.shape
    if len(q_shape) != 4 or len(k_shape) != 4 or q_shape[2] + k_shape[2] > LONGEST:
        return None
    if not (q.is_cpu and k.is_cpu and v.is_cpu) or q.is_neg() or k.is_neg() or v.is_neg():
        return None
    own: Hashable = None
    if encoding is not None:
        if not isinstance(encoding, PositionEncoding):
            return None
        own = encoding.plan_key()
        if own is None:
            return None
    if prepared_by is not None and prepared_by is not encoding:
        return None
    seen = mask.plan_key() if isinstance(mask, Mask) else None
    if mask is not None and seen is None:
        return None
    if not (scale is None or type(scale) is float):
        return None
    q_at = k_at = 0
    if q_positions is not None or k_positions is not None:
        if not isinstance(q_positions, Coordinates) or not isinstance(k_positions, Coordinates):
            return None
        q_at, k_at = id(q_positions), id(k_positions)  # which the plan keeps alive
    return (
        q_shape, k_shape, v.shape, q.stride(), k.stride(), v.stride(), q.dtype, k.dtype, v.dtype, own, seen, scale,
        q_at, k_at, prepared_by is None, kernel, wanted, torch.get_default_dtype(), environment(),
    )  # fmt: skip


def find(encoding: PositionEncoding | None, key: Hashable) -> Plan | None:
    """Returns the plan of the encoding's calls with a key, if there is one."""
    return _plans_of(encoding).get(key)


def keep(
    encoding: PositionEncoding | None,
    key: Hashable,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    call: Call,
    kernel: str,
    *given: Tensor | Coordinates | None,
) -> Plan | None:
    """Makes, keeps and returns the plan of calls with a key; None if they have none.

    Args:
        encoding: the encoding.
        key: the key.
        q: queries of the first of these calls.
        k: its keys.
        v: its values.
        call: the call made of them.
        kernel: the name of the kernel, or "auto".
        *given: the positions that were given.
    """
    plans = _plans_of(encoding)
    if plans.get(key, key) is None:
        return None
    if len(plans) >= MOST:
        with suppress(RuntimeError):  # another thread adds one
            plans.pop(next(iter(plans)), None)
    own = call.q is q and call.k is k and call.v is v
    found = _plan(encoding, call, kernel, given) if own else None  # type: ignore[arg-type]
    plans[key] = found
    return found


def _plan(
    encoding: PositionEncoding | None, call: Call, kernel: str, given: tuple[Coordinates | None, ...]
) -> Plan | None:
    learned = None
    if encoding is not None and any(True for _ in (*encoding.parameters(), *encoding.buffers())):
        if encoding.acts != {"terms"}:
            return None
        learned = encoding
    sides = call.q_coordinates, call.k_coordinates
    tensors = _tensors_of(*sides, *given)
    if any(side.learned is not None for side in sides) or any(x.is_inference() for x in tensors):
        return None  # tables of one forward pass, or tensors of which nothing tells whether they were written into
    if torch.is_grad_enabled() and any(x.is_floating_point() for x in tensors):
        return None  # they may require a gradient in a later call
    if any(x is y for x in tensors_in(call.terms) for y in (call.q, call.k)):
        return None
    run = kernel_for(KERNELS, call, kernel).plan(call, terms_vary=learned is not None)
    return None if run is None else Plan(call, run, learned, given)


def _tensors_of(*sides: Coordinates | None) -> list[Tensor]:
    """Returns the tensors of coordinates, and of those that were given where an encoding has placed them."""
    found: dict[int, Tensor] = {}
    for side in sides:
        for at in (side, getattr(side, "given", None)):
            if at is not None:
                found |= {id(x): x for x in (at.position, at.index, at.document, at.length) if isinstance(x, Tensor)}
    return list(found.values())
