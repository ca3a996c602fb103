"""Plans: what short calls of one shape have in common, computed once, since it takes most of their time.

A plan belongs to an encoding, or to no encoding, and to a key: whatever else of a call a result depends on, apart from
the values of its tensors. It is made in the first call and holds the choice of the kernel, the lowered mask, tables of
positions, and the words that the kernel reads, also for the backward pass if autograd records the call. Later calls
write their addresses into a copy. Terms of an encoding that has parameters are computed in every call.

A plan of decoding steps holds for any number of keys. Other long calls, calls under autocast, and those with encodings
outside of headway have no plan.
"""

from __future__ import annotations

import weakref
from collections.abc import Hashable
from contextlib import suppress
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ._torch import any_autocast, writes_of
from .call import KEPT
from .constants import constant
from .coordinates import Coordinates, Placed
from .kernels import KERNELS, Kernel, kernel_for
from .kernels._autograd import ORDINARY
from .kernels._base import Prepared, PreparedStep
from .kernels._problem import Call, tensors_in
from .kernels.cpu._defers import DECODE_QUERIES
from .kernels.cpu._descriptor import FAR_SLOT
from .kernels.cpu._library import environment
from .masks import And, Causal, Dilated, Mask, Or, Window
from .positions import PositionEncoding
from .terms import Term
from .tracing import forward_mode, watched

LONGEST = 2048
"""The most queries and keys, together, of a call with a plan that is no decoding step: the time of longer calls is that
of the kernel."""
MOST = 32
"""The number of plans of one encoding; the oldest is removed first."""
PREPARE, TERMS = frozenset({"prepare"}), frozenset({"terms"})
CPU = torch.device("cpu")


class Plan:
    """What calls with one key have in common.

    Args:
        call: the first of these calls.
        run: the kernel's part.
        encoding: computes the terms of each call, as one with parameters does; None if they are always the same.
        given: the positions that were given, whose identities are in the key.
        guards: the tensors of all coordinates, which must not have been written into since.
    """

    __slots__ = ("encoding", "given", "guards", "kinds", "run", "sides", "version")

    def __init__(
        self,
        call: Call,
        run: Prepared,
        encoding: PositionEncoding | None,
        given: tuple[Coordinates | None, ...],
        guards: list[Tensor],
    ) -> None:
        self.run, self.encoding, self.given, self.guards = run, encoding, given, guards
        self.sides = call.q_coordinates, call.k_coordinates
        self.version = sum(map(writes_of, self.guards))
        self.kinds = tuple(map(type, call.terms))

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, sides: Sides, terms: tuple[Term, ...] | None = None
    ) -> Tensor | None:
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


class Step:
    """What decoding steps with one key have in common: calls of few queries, the last of any number of keys.

    Whatever an encoding makes of coordinates is computed in every step.

    Args:
        call: the first of these calls, rotated.
        run: the kernel's part.
        kernel: the kernel.
        preparing: prepares queries, and keys unless they come from a cache; None if nothing does.
        encoding: computes the terms of each call, as one with parameters does; None if they are always the same.
        keys: whether keys are prepared too.
    """

    __slots__ = ("encoding", "kernel", "keys", "kinds", "preparing", "run", "sides")

    def __init__(
        self,
        call: Call,
        run: PreparedStep,
        kernel: Kernel,
        preparing: PositionEncoding | None,
        encoding: PositionEncoding | None,
        keys: bool,
    ) -> None:
        self.run, self.kernel, self.preparing, self.encoding, self.keys = run, kernel, preparing, encoding, keys
        self.sides, self.kinds = (call.q_coordinates, call.k_coordinates), tuple(map(type, call.terms))

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, sides: Sides, terms: tuple[Term, ...] | None = None
    ) -> Tensor | None:
        """Returns the output; None if the plan does not hold for this call.

        Args:
            q: queries.
            k: keys.
            v: values.
            sides: the coordinates that are given; None for the default.
            terms: those of the encoding, if the call has computed them.
        """
        q_at, k_at = sides
        if self.preparing is not None:
            n, m = q.shape[2], k.shape[2]
            q = self._prepared("query", q, _stream(n, m - n, m) if q_at is None else q_at)
            k = self._prepared("key", k, _stream(m, 0, m) if k_at is None else k_at) if self.keys else k
            if (q.requires_grad or k.requires_grad) and torch.is_grad_enabled():
                return None  # which an attribute that requires a gradient has made of them
        if self.encoding is None:
            terms = ()
        elif terms is None:
            terms = self.encoding.terms(*self.sides)
        if terms and tuple(map(type, terms)) != self.kinds:
            return None
        return self.run(q, k, v, terms, None if q_at is None or k_at is None else (q_at, k_at))

    def _prepared(self, side: str, x: Tensor, at: Coordinates) -> Tensor:
        assert self.preparing is not None
        x, rotation = self.preparing.split(side, x, self.preparing.for_one_forward(at))
        return x if rotation is None else self.kernel.rotate(x, rotation)


Sides = tuple[Coordinates | None, Coordinates | None]
"""The coordinates of queries and keys that are given; None for the default."""


def _stream(count: int, start: int, length: int) -> Coordinates:
    """Returns coordinates without gaps, as ``Coordinates.span``."""
    if start + count > KEPT:
        return Coordinates.span(count, start=start, length=length, device=CPU)
    whole = constant(_span, device=CPU)
    index, position = whole.index[:, start : start + count], whole.position[:, start : start + count]
    return whole._with(position=position, index=index, length=length, start=start, spanned=position)


def _span(device: torch.device) -> Coordinates:
    return Coordinates.span(KEPT, device=device)


class Plans(dict[Hashable, "Plan | Step | str"]):
    """The plans of an encoding by their keys; for a key of calls that have none, why.

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
    q_shape, k_shape, v_shape = q.shape, k.shape, v.shape
    if len(q_shape) != 4 or len(k_shape) != 4:
        return None
    n, m = q_shape[2], k_shape[2]
    if n > DECODE_QUERIES and n + m > LONGEST:
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
    others = (
        q.dtype, k.dtype, v.dtype, own, seen, scale, prepared_by is None, kernel, wanted, torch.get_default_dtype(),
        environment(),
    )  # fmt: skip
    if 0 < n <= DECODE_QUERIES and n < m and _same_for_any_keys(encoding, wanted):
        stream = _facts(q_positions, k_positions, encoding, mask, q_shape, m)
        if stream is None or v_shape[2:3] != (m,):
            return None
        return "step", q_shape, k_shape[:2], k_shape[3], v_shape[:2], v_shape[3:], stream, others
    if n + m > LONGEST:
        return None
    q_at = k_at = 0
    if q_positions is not None or k_positions is not None:
        if not isinstance(q_positions, Coordinates) or not isinstance(k_positions, Coordinates):
            return None
        q_at, k_at = id(q_positions), id(k_positions)  # which the plan keeps alive
    return "call", q_shape, k_shape, v_shape, q.stride(), k.stride(), v.stride(), q_at, k_at, others


def _same_for_any_keys(encoding: PositionEncoding | None, wanted: tuple[bool, ...] | None) -> bool:
    """Returns whether the words of a call depend on its number of keys only where ``Step`` knows it.

    wanted: whether q, k and v require a gradient; None if autograd is off.
    """
    if wanted is not None and any(wanted):
        return False
    if encoding is None:
        return True
    if wanted is not None and (encoding._parameters or encoding._modules):
        return False  # which may require a gradient
    acts = encoding.acts
    return acts <= PREPARE or (encoding.same_terms and acts == TERMS)


def _facts(
    q_at: Tensor | Coordinates | None,
    k_at: Tensor | Coordinates | None,
    encoding: PositionEncoding | None,
    mask: Mask | Tensor | None,
    q_shape: torch.Size,
    m: int,
) -> Hashable:
    """Returns what a step depends on of its coordinates; None unless its queries are known to be its last keys."""
    batch, _, n, _ = q_shape
    if m > FAR_SLOT - n:
        return None
    if q_at is None and k_at is None:
        return ()
    if not isinstance(q_at, Coordinates) or not isinstance(k_at, Coordinates):
        return None
    for at, count in ((q_at, n), (k_at, m)):
        if isinstance(at, Placed) and not (at.belongs_to(encoding) and at.position is at.located):
            return None
        position, index = at.position, at.index
        if not at.ordered or at.start is None or at.padding is not None or at.document is not None:
            return None
        if position.shape[1:] != (count, 1) or index.shape[1] != count or position.dtype != torch.int64:
            return None
        if not (type(position) in ORDINARY and type(index) in ORDINARY):
            return None
        if not (position.is_cpu and index.is_cpu) or {position.shape[0], index.shape[0]} - {1, batch}:
            return None
    if q_at.start != k_at.start + m - n:  # type: ignore[operator]
        return None
    return ("given", k_at.start if _reads_start(mask) else None)


def _reads_start(mask: Mask | Tensor | None) -> bool:
    """Returns whether a mask depends on the index of the first key, and not on differences of indices alone."""
    if isinstance(mask, (And, Or)):
        return any(map(_reads_start, mask.masks))
    return mask is not None and type(mask) not in (Causal, Window, Dilated)


def find(encoding: PositionEncoding | None, key: Hashable) -> Plan | Step | None:
    """Returns the plan of the encoding's calls with a key, if there is one."""
    found = _plans_of(encoding).get(key)
    return None if isinstance(found, str) else found


def keep(
    encoding: PositionEncoding | None, key: Hashable, inputs: Inputs, call: Call, kernel: str
) -> Plan | Step | None:
    """Makes, keeps and returns the plan of calls with a key; None if they have none.

    Args:
        encoding: the encoding.
        key: the key.
        inputs: q, k, v and the coordinates that are given of the first of these calls.
        call: the call made of them.
        kernel: the name of the kernel, or "auto".
    """
    plans = _plans_of(encoding)
    if isinstance(plans.get(key), str):
        return None
    if len(plans) >= MOST:
        with suppress(RuntimeError):  # another thread adds one
            plans.pop(next(iter(plans)), None)
    if key[0] == "step":  # type: ignore[index]
        found: Plan | Step | str = _step(encoding, call, kernel, inputs.prepared)
    else:
        own = call.q is inputs.q and call.k is inputs.k and call.v is inputs.v
        found = _plan(encoding, call, kernel, inputs.sides) if own else "q, k or v is prepared by more than a rotation"
    plans[key] = found
    return None if isinstance(found, str) else found


class Inputs(NamedTuple):
    """What a call is given that its key does not hold.

    Attributes:
        q: queries.
        k: keys.
        v: values.
        sides: the coordinates that are given.
        prepared: whether k and v have been prepared before.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    sides: Sides
    prepared: bool


def _step(encoding: PositionEncoding | None, call: Call, kernel: str, prepared: bool) -> Step | str:
    chosen = kernel_for(KERNELS, call, kernel)
    acts = frozenset() if encoding is None else encoding.acts
    learned = encoding if acts == TERMS and encoding is not None and _has_tensors(encoding) else None
    if not call.aligned or call.k_coordinates.position.shape[2] != 1:
        return "the queries are not known to be the last keys, or positions have several axes"
    rotated = chosen.rotated(call)
    run = chosen.prepare_step(rotated, terms_vary=learned is not None)
    if isinstance(run, str):
        return run
    return Step(rotated, run, chosen, encoding if acts == PREPARE else None, learned, not prepared)


def _has_tensors(encoding: PositionEncoding) -> bool:
    return any(True for _ in (*encoding.parameters(), *encoding.buffers()))


def _plan(
    encoding: PositionEncoding | None, call: Call, kernel: str, given: tuple[Coordinates | None, ...]
) -> Plan | str:
    learned = None
    if encoding is not None and _has_tensors(encoding):
        if encoding.acts != TERMS:
            return "the encoding computes more than terms with its parameters"
        learned = encoding
    sides = call.q_coordinates, call.k_coordinates
    tensors = _tensors_of(*sides, *given)
    if any(side.learned is not None for side in sides) or any(x.is_inference() for x in tensors):
        return "coordinates are of one forward pass, or nothing tells whether they were written into"
    if torch.is_grad_enabled() and any(x.is_floating_point() for x in tensors):
        return "positions may require a gradient in a later call"
    if any(x is y for x in tensors_in(call.terms) for y in (call.q, call.k)):
        return "a term reads q or k"
    run = kernel_for(KERNELS, call, kernel).prepare(call, terms_vary=learned is not None)
    return run if isinstance(run, str) else Plan(call, run, learned, given, tensors)


def _tensors_of(*sides: Coordinates | None) -> list[Tensor]:
    """Returns the tensors of coordinates, and of those that were given where an encoding has placed them."""
    every: dict[int, Coordinates] = {}
    for side in sides:
        for at in (side, getattr(side, "given", None)):
            if at is not None:
                every[id(at)] = at
    tensors = [x for at in every.values() for x in (at.position, at.index, at.document, at.length)]
    return list({id(x): x for x in tensors if isinstance(x, Tensor)}.values())
