"""Plans: what short calls of one shape have in common, computed once, since it takes most of their time.

A plan belongs to an encoding, or to no encoding, and to a key. The key has whatever else the result of a call depends
on, apart from the values of its tensors. The first call makes the plan. It holds the choice of the kernel, the lowered
mask, tables of positions, and the packed arguments ("words") that the kernel reads, also for the backward pass if
autograd records the call. Later calls write the addresses of their tensors into a copy of the words. Every call
computes the terms of an encoding that has parameters.

A plan of decoding steps holds for any number of keys. Other long calls, calls under autocast, and those with encodings
outside of headway have no plan.

On a GPU calls of all but the largest lengths have a plan, since the host's time does not depend on the length. Calls
under autocast have one too if q, k and v have its dtype. The second call makes it, since making it takes a third of a
call. Decoding steps have none. A plan belongs to the stream that its tensors were computed on. There is none while a
graph is captured, since the graph would read these tensors when they may be gone.
"""

from __future__ import annotations

import weakref
from collections.abc import Hashable
from contextlib import suppress
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ._torch import any_autocast, writes_of
from .call import prepared_keys_and_values as prepared_anew
from .coordinates import Coordinates, Placed, stream
from .heads import HeadShard
from .kernels import KERNELS, Kernel, kernel_for
from .kernels._autograd import ORDINARY
from .kernels._base import Prepared, PreparedStep, RotationByRows, StoredStep
from .kernels._problem import Call, tensors_in
from .masks import AnyMask, Mask
from .positions import PositionEncoding
from .positions._base import IN_ATTENTION
from .terms import Term
from .tracing import autocasts, forward_mode, watched

LONGEST = 2048
"""The most queries and keys, together, of a call with a plan that is no decoding step: the time of longer calls is that
of the kernel."""
WITHOUT_TABLES = 4
"""The factor of ``LONGEST`` for calls whose encoding rotates nothing: their plans keep no cosines and sines. If such a
call packs short documents, the kernel's time is short too."""
LONGEST_OF_GPU = 1 << 17
"""Likewise on a GPU, which computes while the host prepares the next call."""
MOST = 32
"""The number of plans of one encoding; the oldest is removed first."""
STEP_QUERIES = KERNELS["cpu"].step_queries
"""The most queries of a decoding step."""
of_cpu, of_triton = KERNELS["cpu"].environment, KERNELS["triton"].environment
"""Of the kernels that prepare calls."""
BY_ROWS = frozenset({"auto", "cpu"})
PREPARE, TERMS = frozenset({"prepare"}), frozenset({"terms"})
OF_STREAM = torch.int64, False
"""The part of a step's key for the default coordinates."""
FROM_ZERO = 0, 0
"""The same for any other call."""
CPU = torch.device("cpu")


class Request(NamedTuple):
    """A call of ``attention`` without further terms, sink, cap and dropout; unchecked, so that these may be anything.

    Attributes:
        q: queries.
        k: keys.
        v: values.
        encoding: the encoding.
        mask: the mask.
        scale: the factor of the scores.
        q_at: positions of the queries.
        k_at: positions of the keys.
        prepared_by: the encoding that has prepared k and v already.
        kernel: the name of the kernel, or "auto".
    """

    q: Tensor
    k: Tensor
    v: Tensor
    encoding: PositionEncoding | None
    mask: AnyMask
    scale: float | None
    q_at: Tensor | Coordinates | None
    k_at: Tensor | Coordinates | None
    prepared_by: PositionEncoding | None
    kernel: str


class Plan:
    """What calls with one key have in common.

    Args:
        request: the first of these calls.
        call: the call made of it.
        run: the kernel's part.
        encoding: computes the terms of each call, as one with parameters does; None if they are always the same.
    """

    __slots__ = ("encoding", "given", "guards", "kinds", "run", "sides", "version")

    def __init__(self, request: Request, call: Call, run: Prepared, encoding: PositionEncoding | None) -> None:
        self.run, self.encoding = run, encoding
        self.given = request.q_at, request.k_at  # kept alive, since their identities are in the key
        self.sides = call.q_coordinates, call.k_coordinates
        self.guards = _tensors_of(*self.given)  # tensors that must not have been written into since
        self.version = sum(map(writes_of, self.guards))
        self.kinds = tuple(map(type, call.terms))

    def __call__(self, request: Request, terms: tuple[Term, ...] | None = None) -> Tensor | None:
        """Returns the output; None if the plan does not hold for this call.

        ``terms`` are those of the encoding, if the call has already computed them. If they were computed again,
        autograd would record them twice, and a checkpoint would find that its call saves more than the call that it
        repeats.
        """
        if self.guards and sum(map(writes_of, self.guards)) != self.version:
            return None
        if self.encoding is None:
            return self.run(*request[:3])
        if terms is None:
            terms = self.encoding.terms(*self.sides)
        return self.run(*request[:3], terms) if tuple(map(type, terms)) == self.kinds else None


class Step:
    """What decoding steps with one key have in common: calls of few queries, the last of any number of keys.

    Whatever an encoding makes of coordinates is computed in every step.

    Args:
        call: the first of these calls, rotated.
        run: the kernel's part.
        kernel: the kernel.
        preparing: prepares queries, and keys unless they come from a cache; None if nothing does.
        encoding: computes the terms of each call, as one with parameters does; None if they are always the same.
    """

    __slots__ = ("encoding", "kernel", "kinds", "preparing", "run", "sides")

    def __init__(
        self,
        call: Call,
        run: PreparedStep,
        kernel: Kernel,
        preparing: PositionEncoding | None,
        encoding: PositionEncoding | None,
    ) -> None:
        self.run, self.kernel, self.preparing, self.encoding = run, kernel, preparing, encoding
        self.sides, self.kinds = (call.q_coordinates, call.k_coordinates), tuple(map(type, call.terms))

    def __call__(self, request: Request, terms: tuple[Term, ...] | None = None) -> Tensor | None:
        """Returns the output; None if the plan does not hold for this call. ``terms`` are as for ``Plan``."""
        q, k, v, _, _, _, q_at, k_at, prepared_by, _ = request
        if self.preparing is not None:
            m = k.shape[2]
            q = self._prepared("query", q, q_at, m - q.shape[2], m)
            if prepared_by is None:
                k = self._prepared("key", k, k_at, 0, m)
            if (q.requires_grad or k.requires_grad) and torch.is_grad_enabled():
                return None  # an attribute that requires a gradient was used in them
        terms = self._terms(terms)
        return None if terms is None else self.run(q, k, v, terms, None if q_at is None else (q_at, k_at))  # type: ignore[arg-type]

    def of_storage(self, q: Tensor, m: int, run: StoredStep, key: Hashable) -> Tensor | None:
        """Returns the output of a call whose keys stand at 0, 1, 2 … and are prepared; None as for other calls.

        Args:
            q: the queries.
            m: the number of keys.
            run: the kernel's part, which knows where the keys and values are.
            key: the ``plan_key`` of the encoding.
        """
        if self.preparing is not None:
            q = self._prepared("query", q, None, m - q.shape[2], m, key)
        terms = self._terms(None)
        return None if terms is None else run(q, m, terms)

    def _terms(self, given: tuple[Term, ...] | None) -> tuple[Term, ...] | None:
        """Returns the terms of a call: the given ones, or new ones; None if their kinds differ from the plan's."""
        if self.encoding is None:
            return ()
        terms = self.encoding.terms(*self.sides) if given is None else given
        return terms if tuple(map(type, terms)) == self.kinds else None

    def _prepared(self, side: str, x: Tensor, at: Any, first: int, m: int, key: Hashable = None) -> Tensor:
        """Returns queries or keys as the encoding prepares them.

        Args:
            side: "query" or "key".
            x: the queries or keys.
            at: their coordinates; None for consecutive ones.
            first: the position of the first of them, if ``at`` is None.
            m: the number of keys.
            key: the ``plan_key`` of the encoding, if the caller knows it.
        """
        preparing = self.preparing
        assert preparing is not None
        first_of = first if at is None else _first_of(at, preparing)
        out = rotated_by_rows(preparing, self.kernel, side, x, first_of, None, key)
        if out is not None:
            return out
        at = stream(x.shape[2], first, m, CPU) if at is None else at
        x, rotation = preparing.split(side, x, preparing.for_one_forward(at))
        return x if rotation is None else self.kernel.rotate(x, rotation)


class Block(NamedTuple):
    """A block of consecutive positions with their rotation.

    Attributes:
        key: what the rotation depends on, as ``plan_key`` of the encoding says.
        first: the first position.
        stop: the position after the last.
        rotate: rotates by some of the rows; None if the kernel cannot.
    """

    key: Hashable
    first: int
    stop: int
    rotate: RotationByRows | None


class Plans(dict[Hashable, "Plan | Step | str | None"]):
    """The plans of an encoding by key. A key without a plan has the reason, or None if it was seen only once.

    They stay with the encoding, in its ``__dict__``, and neither a copy nor a file of it has them.
    """

    def __init__(self, owner: object = None) -> None:
        super().__init__()
        self.blocks: dict[tuple[str, str], Block] = {}
        """The last block by whose rows queries or keys were rotated, by kernel and side."""
        self.owner = (lambda: None) if owner is None else weakref.ref(owner)

    def keep(self, key: Hashable, plan: Plan | Step | str | None) -> None:
        """Keeps a plan, in place of the oldest if there are many."""
        if len(self) >= MOST:
            with suppress(RuntimeError):  # another thread adds one
                self.pop(next(iter(self)), None)
        self[key] = plan

    def __deepcopy__(self, memo: dict[int, Any]) -> Plans:
        return Plans()

    def __reduce__(self) -> tuple[Any, ...]:
        return Plans, ()


_without_encoding = Plans()


def _plans_of(encoding: PositionEncoding | None) -> Plans:
    if encoding is None:
        return _without_encoding
    plans = encoding.__dict__.get("_plans")
    if plans is None or plans.owner() is not encoding:  # a shallow copy has the plans of the original
        plans = encoding.__dict__["_plans"] = Plans(encoding)
    return plans


def needs_no_coordinates(encoding: PositionEncoding | None, x: Tensor, first: int) -> bool:
    """Returns whether a step of the last tokens of a stream is computed as fast without their coordinates.

    Args:
        encoding: the encoding of the call.
        x: the layer's input for the tokens, [batch, n, embed_dim].
        first: the position of the first of the tokens.
    """
    if torch.is_grad_enabled() or not x.is_cpu or not 0 < x.shape[1] <= STEP_QUERIES:
        return False
    if encoding is None or not encoding.acts & IN_ATTENTION:
        return True
    key = encoding.plan_key()
    if key is None or not encoding.cache_prepared:
        return False
    if encoding.acts == PREPARE:
        block = _plans_of(encoding).blocks.get(("cpu", "key"))
        return block is not None and block.rotate is not None and block.key == key and block.first <= first < block.stop
    return encoding.same_terms and encoding.acts == TERMS


# ---------------------------------------------------------------- rotations of decoding steps


def prepared_keys_and_values(
    encoding: PositionEncoding,
    k: Tensor,
    v: Tensor,
    at: Coordinates | None,
    kernel: str = "auto",
    first: int = 0,
    head_shard: HeadShard | None = None,
) -> tuple[Tensor, Tensor, Coordinates | None]:
    """Prepares keys and values for a cache, as ``headway.call`` does; keys that are only rotated, by kept rows.

    Args:
        encoding: the encoding that prepares them.
        k: keys, [batch, kv_heads, m, head_dim].
        v: values, [batch, kv_heads, m, v_dim].
        at: the coordinates of the keys; None for the last ones of a stream.
        kernel: the name of the kernel that applies rotations, or "auto".
        first: the position of the first key, if ``at`` is None.
        head_shard: which heads the keys belong to; all if None.

    Returns:
        The prepared keys and values, and the coordinates, placed by the encoding if that was needed.
    """
    rotates = head_shard is None and encoding.acts == PREPARE and kernel in BY_ROWS
    if rotates and not (watched() or forward_mode() or any_autocast()):
        followed = torch.is_grad_enabled() and k.requires_grad
        if not followed and k.ndim == 4 and type(k) in ORDINARY and k.is_cpu and not k.is_neg():
            place = first if at is None else _first_of(at, encoding)
            rotated = rotated_by_rows(encoding, KERNELS["cpu"], "key", k, place)
            if rotated is not None:
                return rotated, v, at
    if at is None:
        at = stream(k.shape[2], first, first + k.shape[2], k.device)
    return prepared_anew(encoding, k, v, at, kernel, head_shard)


def _first_of(at: Coordinates, encoding: PositionEncoding) -> int | None:
    """Returns the position of the first token as the encoding reads it, if they are consecutive; else None."""
    return at.start if at.consecutive and (not isinstance(at, Placed) or at.belongs_to(encoding)) else None


def rotated_by_rows(
    encoding: PositionEncoding,
    kernel: Kernel,
    side: str,
    x: Tensor,
    first: int | None,
    out: Tensor | None = None,
    key: Hashable = None,
) -> Tensor | None:
    """Returns queries or keys rotated by rows of a block that the encoding keeps; None if it does not.

    Args:
        encoding: the encoding.
        kernel: the kernel.
        side: "query" or "key", each of which has a block of its own.
        x: the queries or keys, plain tensors on a CPU.
        first: the position of the first of them, if they are consecutive.
        out: a tensor like x, into which they are written. Default: a new one.
        key: the ``plan_key`` of the encoding, if the caller knows it.
    """
    if first is None:
        return None
    key = encoding.plan_key() if key is None else key
    if key is None:
        return None
    blocks, place = _plans_of(encoding).blocks, (kernel.name, side)
    block = blocks.get(place)
    if block is None or block.key != key or not block.first <= first < block.stop:
        made = encoding.rotation_block(first)
        if made is None:
            return None
        start, rotation = made
        block = Block(key, start, start + rotation.cos.shape[2], kernel.rotation_by_rows(rotation))
        blocks[place] = block
    return None if block.rotate is None else block.rotate(x, first - block.first, out)


# ---------------------------------------------------------------- keys


def key_of(request: Request) -> Hashable:
    """Returns the key of a call, made of the keys of its parts; None if the call has no plan."""
    q, k, v, encoding, mask, scale, q_at, k_at, prepared_by, kernel = request
    if watched() or forward_mode() or not _are_plain(q, k, v):
        return None
    on_gpu = _runs_on_gpu(q, kernel)
    environment = _key_of_environment(q, k, v, on_gpu)
    if environment is None:
        return None
    shapes = q.shape, k.shape, v.shape
    short, decodes = _lengths(shapes, encoding, on_gpu)
    if not short and not decodes:
        return None
    parts = _key_of_parts(encoding, mask, scale, prepared_by, kernel)
    if parts is None:
        return None
    wanted = (q.requires_grad, k.requires_grad, v.requires_grad) if torch.is_grad_enabled() else None
    others = q.dtype, k.dtype, v.dtype, wanted, parts, environment
    if decodes and _same_for_any_keys(encoding, wanted):
        places = OF_STREAM if q_at is None and k_at is None else _key_of_stream(request)
        q_shape, k_shape, v_shape = shapes
        if places is None or v_shape[2] != k_shape[2]:
            return None
        return "step", q_shape, k_shape[:2], k_shape[3], v_shape[:2], v_shape[3], places, others
    if not short or (wanted is not None and (q is k or k is v or q is v)):  # autograd saves each tensor once
        return None
    places = FROM_ZERO if q_at is None and k_at is None else _key_of_places(q_at, k_at, encoding, on_gpu)
    return None if places is None else ("call", shapes, q.stride(), k.stride(), v.stride(), places, others)


def _key_of_environment(q: Tensor, k: Tensor, v: Tensor, on_gpu: bool) -> Hashable:
    """Returns the key of everything outside the call; None if no kernel prepares calls there."""
    environment = of_triton(q, k, v) if on_gpu else of_cpu(q, k, v)
    autocast = any_autocast()
    if environment is None or (autocast and not (on_gpu and _are_cast(q, k, v))):
        return None
    return environment, autocast, torch.get_default_dtype()


def _lengths(
    shapes: tuple[torch.Size, torch.Size, torch.Size], encoding: PositionEncoding | None, on_gpu: bool
) -> tuple[bool, bool]:
    """Returns whether a call is short enough for a plan, and whether it is a decoding step that may have one."""
    q_shape, k_shape, v_shape = shapes
    if not len(q_shape) == len(k_shape) == len(v_shape) == 4:
        return False, False
    n, m = q_shape[2], k_shape[2]
    decodes = 0 < n <= STEP_QUERIES and n < m
    if on_gpu:
        return not decodes and n + m <= LONGEST_OF_GPU, False
    has_tables = isinstance(encoding, PositionEncoding) and "prepare" in encoding.acts  # cosines and sines
    return n + m <= (LONGEST if has_tables else WITHOUT_TABLES * LONGEST), decodes


def _key_of_parts(
    encoding: PositionEncoding | None,
    mask: AnyMask,
    scale: float | None,
    prepared_by: PositionEncoding | None,
    kernel: str,
) -> Hashable:
    """Returns the key of the encoding, the mask and the other arguments; None if one of them has none."""
    if not (encoding is None or isinstance(encoding, PositionEncoding)) or not (mask is None or isinstance(mask, Mask)):
        return None
    if not (scale is None or type(scale) is float) or not (prepared_by is None or prepared_by is encoding):
        return None
    of_encoding = () if encoding is None else encoding.plan_key()
    of_mask = () if mask is None else mask.plan_key()
    if of_encoding is None or of_mask is None:
        return None
    return of_encoding, of_mask, scale, prepared_by is None, kernel


def _key_of_places(q_at: Any, k_at: Any, encoding: PositionEncoding | None, on_gpu: bool) -> Hashable:
    """Returns the key of the coordinates of a call that is not a decoding step; None if it has no plan."""
    if not isinstance(q_at, Coordinates) or not isinstance(k_at, Coordinates):
        return None
    if on_gpu:  # on a GPU, streams are made anew for each call
        of_q, of_k = q_at.stream_key(encoding), k_at.stream_key(encoding)
        if of_q is not None and of_k is not None:
            return of_q, of_k, q_at is k_at
    return id(q_at), id(k_at)  # which the plan keeps alive


def _runs_on_gpu(q: Tensor, kernel: str) -> bool:
    """Returns whether a call is one of a GPU's kernels, of which one may be interpreted on a CPU."""
    return not q.is_cpu or kernel == "triton"


def are_plain(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Returns whether these are tensors whose numbers a kernel can read directly from the memory of a CPU.

    Args:
        q: queries.
        k: keys.
        v: values.
    """
    return q.is_cpu and k.is_cpu and v.is_cpu and _are_plain(q, k, v)


def _are_plain(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Returns whether these are tensors whose numbers a kernel can read directly from memory."""
    if not (type(q) in ORDINARY and type(k) in ORDINARY and type(v) in ORDINARY):
        return False
    return not (q.is_neg() or k.is_neg() or v.is_neg())


def _are_cast(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Returns whether autocast, which is enabled on some device, leaves these as they are."""
    return autocasts(q) and q.dtype == k.dtype == v.dtype == torch.get_autocast_dtype(q.device.type)


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


def _key_of_stream(request: Request) -> Hashable:
    """Returns what a step depends on of its coordinates; None unless its queries are known to be its last keys."""
    q, k, _, encoding, _, _, q_at, k_at, _, _ = request
    if not isinstance(q_at, Coordinates) or not isinstance(k_at, Coordinates):
        return None
    (batch, _, n, _), m = q.shape, k.shape[2]
    key = k_at.step_key(batch, m, encoding)
    if key is None or q_at.step_key(batch, n, encoding) != key:
        return None
    before = m - n
    if k_at.start is not None:
        return key if q_at.start == k_at.start + before else None
    return key if q_at.row_starts() == [start + before for start in k_at.row_starts()] else None


# ---------------------------------------------------------------- finding and making plans


def find(encoding: PositionEncoding | None, key: Hashable) -> Plan | Step | None:
    """Returns the plan of the encoding's calls with a key, if there is one."""
    plan = _plans_of(encoding).get(key)
    return None if isinstance(plan, str) else plan


def plan_of_step(request: Request) -> Step | str | None:
    """Returns the plan of a decoding step; why there is none; or None as long as no call has made it.

    Args:
        request: the step.
    """
    key = key_of(request)
    if key is None or key[0] != "step":  # type: ignore[index]
        return "the call has no plan for any number of keys"
    plan = _plans_of(request.encoding).get(key)
    return plan if isinstance(plan, Step | str) else None


def make(key: Hashable, request: Request, call: Call) -> Plan | Step | None:
    """Makes, keeps and returns the plan of calls with a key; None if they have none.

    Args:
        key: the key.
        request: the first of these calls.
        call: the call made of it.
    """
    plans = _plans_of(request.encoding)
    if isinstance(plans.get(key), str):
        return None
    if _runs_on_gpu(request.q, request.kernel) and key not in plans:
        plans.keep(key, None)
        return None
    if any(x.data_ptr() % x.itemsize for x in request[:3]):
        return None  # the kernel would read a copy, which proves nothing for later calls
    plan = _step(request, call) if key[0] == "step" else _plan(request, call)  # type: ignore[index]
    plans.keep(key, plan)
    return None if isinstance(plan, str) else plan


def _step(request: Request, call: Call) -> Step | str:
    encoding, kernel = request.encoding, kernel_for(KERNELS, call, request.kernel)
    acts = frozenset() if encoding is None else encoding.acts
    learned = encoding if acts == TERMS and encoding is not None and _has_tensors(encoding) else None
    rotated = kernel.rotated(call)
    run = kernel.prepare_step(rotated, terms_vary=learned is not None)
    return run if isinstance(run, str) else Step(rotated, run, kernel, encoding if acts == PREPARE else None, learned)


def _has_tensors(encoding: PositionEncoding) -> bool:
    return any(True for _ in (*encoding.parameters(), *encoding.buffers()))


def _plan(request: Request, call: Call) -> Plan | str:
    encoding = request.encoding
    learned = encoding if encoding is not None and _has_tensors(encoding) else None
    if not all(x is y for x, y in zip((call.q, call.k, call.v), request, strict=False)):
        return "q, k or v is prepared by more than a rotation"
    if learned is not None and learned.acts != TERMS:
        return "the encoding computes more than terms with its parameters"
    sides = call.q_coordinates, call.k_coordinates
    tensors = _tensors_of(*sides, request.q_at, request.k_at)
    given = request.q_at is not None or request.k_at is not None  # else no one can write into them
    if any(side.learned is not None for side in sides) or (given and any(x.is_inference() for x in tensors)):
        return "coordinates are of one forward pass, or nothing tells whether they were written into"
    if torch.is_grad_enabled() and any(x.is_floating_point() for x in tensors):
        return "positions may require a gradient in a later call"
    if any(x is y for x in tensors_in(call.terms) for y in (call.q, call.k)):
        return "a term reads q or k"
    run = kernel_for(KERNELS, call, request.kernel).prepare(call, terms_vary=learned is not None)
    return run if isinstance(run, str) else Plan(request, call, run, learned)


def _tensors_of(*sides: Any) -> list[Tensor]:
    """Returns the tensors of coordinates, and of the given ones if an encoding has placed them."""
    every: dict[int, Coordinates] = {}
    for side in sides:
        for at in (side, side.given if isinstance(side, Placed) else None):
            if at is not None:
                every[id(at)] = at
    tensors = [x for at in every.values() for x in (at.position, at.index, at.document, at.length)]
    return list({id(x): x for x in tensors if isinstance(x, Tensor)}.values())
