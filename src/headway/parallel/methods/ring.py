"""Ring: keys and values pass round the ranks, and each merges what its queries take from them.

While a rank computes with the keys that it has, the next ones arrive. In the backward pass keys pass round once more.
The gradients of keys follow them: each rank adds its own, and the last one sends the sum home.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from ...coordinates import Coordinates
from ...kernels import Call
from ...kernels._autograd import NATIVE, through_lowering
from ...kernels._base import without_autocast
from ...kernels._ops import flatten, unflatten
from ...kernels._parts import (
    backward_part,
    forward_part,
    kernel_of_part,
    merge_into,
    merge_sinks,
    sink_gradients,
    sinks_of,
)
from ...kernels._problem import without_tables
from ...kernels._results import ForwardResults, new_results
from ...terms import Term
from .._call import SharedCall
from .._group import Group, Runs
from .._packing import Buffers, Packing
from .._schedule import Schedule, schedule_of
from .._sight import sees_all
from ._base import Method, Traffic


class Ring(Method):
    """Passes prepared keys, values and biases of keys round the ranks that see them.

    Memory beyond the inputs is that of two shards of keys and of one part of the call. Terms that are functions of all
    keys at once cannot be cut into parts.
    """

    name = "ring"

    def why_not(self, call: SharedCall) -> str | None:
        if call.kernel not in ("auto", *NATIVE):
            return f"kernel {call.kernel!r} computes no parts of the keys"
        return call.why_not_apart()

    def traffic(self, call: SharedCall) -> Traffic:
        schedule, size, rank = schedule_of(call), call.group.size, call.group.rank
        tensors, dims = keys_of(call.probe(), moved=False)
        tokens = tensors[0].shape[2]
        packing = Packing.of(tensors, dims)
        gradients = packing.of_gradients([x.is_floating_point() for x in tensors])
        key, gradient = (one.size(tokens) // tokens for one in (packing, gradients))

        def sent(hops: Sequence[Sequence[int]]) -> tuple[int, int]:
            forward = back = 0
            for of, runs in enumerate(hops):
                step = (rank - of) % size
                for (start, stop), last in zip(call.k_shards.layout[of], runs, strict=True):
                    forward += (stop - start) * (last > step)
                    back += (stop - start) * (last >= step > 0)
            return forward * key, forward * key + back * gradient

        forward, backward = sent(schedule.hops)
        every = sum(sent([[size - 1] * len(runs) for runs in schedule.hops]))
        return Traffic(forward, backward, every - forward - backward)

    def run(self, call: SharedCall) -> tuple[Tensor, Tensor | None]:
        local, moved = call.encoded()
        kernel = NATIVE[kernel_of_part(local, call.kernel)]
        with without_autocast(call.q):
            plan, tensors = _plan(call, kernel.rotated(local), moved)
            out, lse, *_ = _Ring.apply(plan, *tensors)
            out = kernel.restored(local, out)
        return out.to(local.q.dtype), lse if call.wants_lse else None


# ---------------------------------------------------------------- which tensors travel


def keys_of(call: Call, moved: bool) -> tuple[list[Tensor], list[int]]:
    """Returns the tensors of a call that belong to keys, and the dimension of the keys of each.

    Args:
        call: the call, whose rotations have been applied.
        moved: whether the positions of keys are among them.
    """
    tensors, dims = [call.k, call.v], [2, 2]

    def noted(x: Tensor, words: tuple[str, ...]) -> Tensor:
        tensors.append(x)
        dims.append(words.index("keys"))
        return x

    for term in call.terms:
        term.along("keys", noted)
    if moved:
        tensors.append(call.k_coordinates.position.expand(call.k.shape[0], -1, -1))
        dims.append(1)
    return tensors, dims


def _with_keys(call: Call, keys: Sequence[Tensor], at: Coordinates, moved: bool) -> Call:
    """Returns the call with these tensors in place of those that belong to keys."""
    k, v, *others = keys
    each: Iterator[Tensor] = iter(others)
    terms = tuple([term.along("keys", lambda x, words: next(each)) for term in call.terms])
    at = at._with(position=next(each)) if moved else at
    return call._with(k=k, v=v, terms=terms, k_coordinates=at)


def _of_queries(terms: Sequence[Term], sizes: list[int]) -> list[tuple[Term, ...]]:
    """Returns the terms of each run of queries; one node of autograd cuts each tensor."""
    cut: dict[int, tuple[Tensor, ...]] = {}

    def part(x: Tensor, words: tuple[str, ...], number: int) -> Tensor:
        if id(x) not in cut:
            cut[id(x)] = x.split(sizes, dim=words.index("queries"))
        return cut[id(x)][number]

    return [
        tuple([term.along("queries", lambda x, words, i=i: part(x, words, i)) for term in terms])  # type: ignore[misc]
        for i in range(len(sizes))
    ]


@dataclass(frozen=True)
class _Plan:
    """What the ranks of a ring compute, without the tensors.

    Attributes:
        call: the shared call, for its mask and the coordinates.
        at: where the encoding sees all queries and all keys.
        structures: the call of each run of queries, whose keys are empty.
        inputs: the number of tensors of these calls.
        packing: the tensors of keys, as a message.
        moved: whether positions of keys travel.
        schedule: who sees what.
        group: the processes.
    """

    call: SharedCall
    at: tuple[Coordinates, Coordinates]
    structures: tuple[Any, ...]
    inputs: int
    packing: Packing
    moved: bool
    schedule: Schedule
    group: Group

    @property
    def queries(self) -> Runs:
        return self.call.q_shards.runs

    @cached_property
    def used(self) -> list[list[int]]:
        """The numbers of the tensors of each structure."""
        return [sorted(set(_numbers(structure))) for structure in self.structures]

    def keys(self, rank: int, run: int) -> tuple[int, int]:
        return self.call.k_shards.layout[rank][run]

    def part(self, base: Call, i: int, keys: tuple[int, int], tensors: Sequence[Tensor]) -> Call:
        """Returns the call of a run of queries and a run of keys."""
        queries, (_, k_at) = self.queries[i], self.at
        q_side, k_side = base.q_coordinates, k_at.rows(*keys)
        mask = self.call.part_of_mask(queries, keys)
        mask = None if sees_all(mask, self.at[0].rows(*queries), k_side) else mask
        diagonal = self.call.itself and queries == keys and q_side.ordered
        call = _with_keys(base, tensors, k_side, self.moved)._with(mask=mask, aligned=diagonal)
        return without_tables(call)


def _numbers(structure: Any) -> Iterator[int]:
    if isinstance(structure, tuple):
        if structure and structure[0] == "#":
            yield structure[1]
            return
        for item in structure:
            yield from _numbers(item)


def _plan(call: SharedCall, local: Call, moved: bool) -> tuple[_Plan, list[Tensor]]:
    at = call.located()
    sizes = [stop - start for start, stop in call.q_shards.runs]
    keys, dims = keys_of(local, moved)
    empty = [x.detach().narrow(dim, 0, 0) for x, dim in zip(keys, dims, strict=True)]
    base = _with_keys(local._with(include_sink=False, mask=None), empty, at[1].rows(0, 0), moved)
    structures, tensors, start = [], list[Tensor](), 0
    parts = zip(call.q_shards.runs, local.q.split(sizes, dim=2), _of_queries(base.terms, sizes), strict=True)
    for (first, last), q, terms in parts:
        side = at[0].rows(first, last)
        if moved:
            side = side._with(position=local.q_coordinates.position[:, start : start + last - first])
        part = base._with(q=q, terms=terms, q_coordinates=side)
        structures.append(flatten(without_tables(part), tensors))
        start += last - first
    inputs = len(tensors)
    own = [stop - start for start, stop in call.k_shards.runs]
    split = [x.split(own, dim=dim) for x, dim in zip(keys, dims, strict=True)]
    tensors += [x[j] for j in range(len(own)) for x in split]
    plan = _Plan(call, at, tuple(structures), inputs, Packing.of(keys, dims), moved, schedule_of(call), call.group)
    return plan, tensors


# ---------------------------------------------------------------- the ring

Block = tuple[int, int]
"""The rank whose keys they are, and the number of their run."""


class _Passing:
    """Keys that pass round: those of this rank first, then those of the rank before, and so on.

    Args:
        plan: the plan.
        own: the tensors of each run of this rank's keys.
    """

    def __init__(self, plan: _Plan, own: Sequence[Sequence[Tensor]], buffers: Buffers) -> None:
        self.plan, self.own, self.buffers = plan, own, buffers

    def __iter__(self) -> Iterator[tuple[int, list[tuple[Block, list[Tensor]]]]]:
        """Yields the number of each step, and the keys that are here in it."""
        plan, group = self.plan, self.plan.group
        rank, size, packing = group.rank, group.size, plan.packing
        held: dict[Block, Tensor] = {}
        for j, hops in enumerate(plan.schedule.hops[rank]):
            if hops:
                start, stop = plan.keys(rank, j)
                held[rank, j] = self.buffers.take(packing.size(stop - start))
                for view, x in zip(packing.views(held[rank, j], stop - start), self.own[j], strict=True):
                    view.copy_(x)
        for step in range(plan.schedule.steps + 1):
            owner, here = plan.schedule.held(rank, step, size)
            _, leaving = plan.schedule.held((rank + 1) % size, step + 1, size)
            before, coming = plan.schedule.held(rank, step + 1, size)
            arriving: dict[Block, Tensor] = {}
            if step < plan.schedule.steps:
                for j in coming:
                    start, stop = plan.keys(before, j)
                    arriving[before, j] = self.buffers.take(packing.size(stop - start))
            else:
                leaving = ()
            started = group.start(
                (rank + 1) % size, [held[owner, j] for j in leaving], (rank - 1) % size, list(arriving.values())
            )
            blocks = []
            for j in here:
                start, stop = plan.keys(owner, j)
                inside = (owner, j) in held
                keys = packing.views(held[owner, j], stop - start) if inside else list(self.own[j])
                blocks.append(((owner, j), keys))
            yield step, blocks
            group.finish(started)
            for buffer in held.values():
                self.buffers.give(buffer)
            held = arriving


class _Ring(torch.autograd.Function):
    """Attention of this rank's queries; in the backward pass gradients of keys travel behind the keys."""

    @staticmethod
    def forward(ctx: Any, plan: _Plan, *tensors: Tensor) -> tuple[Tensor, ...]:
        bases = [unflatten(structure, tensors) for structure in plan.structures]
        whole = _new_results(bases)
        pieces = _pieces(whole, plan.queries)
        seen = [False] * len(bases)
        for _, blocks in _Passing(plan, _own_keys(plan, tensors), Buffers(bases[0].q.device)):
            for (owner, j), keys in blocks:
                for i, base in enumerate(bases):
                    if not plan.schedule.visible[i][owner][j]:
                        continue
                    part = forward_part(plan.part(base, i, plan.keys(owner, j), keys), plan.call.kernel)
                    if seen[i]:
                        merge_into(pieces[i], part)
                    else:
                        for a, b in zip(pieces[i], part, strict=True):
                            a.copy_(b)
                    seen[i] = True
        for i, base in enumerate(bases):
            if not seen[i]:
                for x, nothing in zip(pieces[i], (0.0, -math.inf, 0.0), strict=True):
                    x.fill_(nothing)
            merge_sinks(pieces[i], sinks_of(base))
        ctx.plan = plan
        ctx.save_for_backward(*tensors, *whole)
        lse = whole.log_sum_exp
        ctx.mark_non_differentiable(whole.row_max, whole.row_sum, *(() if plan.call.wants_lse else (lse,)))
        return whole.out, lse, whole.row_max, whole.row_sum

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, d_out: Tensor, d_lse: Tensor | None, *unused: Any) -> tuple[Tensor | None, ...]:
        *tensors, out, row_max, row_sum = ctx.saved_tensors
        plan: _Plan = ctx.plan
        needed = ctx.needs_input_grad[1:]
        with torch.enable_grad(), without_autocast(out):
            found = _backward(
                plan,
                tensors,
                needed,
                ForwardResults(out, row_max, row_sum),
                d_out,
                d_lse if plan.call.wants_lse else None,
            )
        return None, *found


def _new_results(bases: Sequence[Call]) -> ForwardResults:
    n = sum(base.q.shape[2] for base in bases)
    q, v = bases[0].q, bases[0].v
    wide = torch.promote_types(q.dtype, torch.float32)
    return new_results(q[:, :, :1].expand(-1, -1, n, -1), v, wide)


def _pieces(whole: ForwardResults, runs: Runs) -> list[ForwardResults]:
    """The results of each run of queries, as parts of those of all."""
    sizes = [stop - start for start, stop in runs]
    each = [x.split(sizes, dim=2) for x in whole]
    return [ForwardResults(*(x[i] for x in each)) for i in range(len(sizes))]


def _own_keys(plan: _Plan, tensors: Sequence[Tensor]) -> list[list[Tensor]]:
    count = len(plan.packing.dims)
    own = list(tensors[plan.inputs :])
    return [own[at : at + count] for at in range(0, len(own), count)]


class _Sums:
    """Sums of gradients, each in the memory of the first one once there is a second."""

    def __init__(self, count: int) -> None:
        self.sums: list[Tensor | None] = [None] * count
        self.owned = [False] * count

    def add(self, number: int, gradient: Tensor) -> None:
        held = self.sums[number]
        if held is None:
            self.sums[number] = gradient
        elif self.owned[number]:
            held.add_(gradient)
        else:
            self.sums[number], self.owned[number] = held + gradient, True


def _backward(
    plan: _Plan, tensors: Sequence[Tensor], needed: Sequence[bool], whole: ForwardResults, d_out: Tensor,
    d_lse: Tensor | None,
) -> list[Tensor | None]:  # fmt: skip
    leaves = [x.detach().requires_grad_(need) for x, need in zip(tensors[: plan.inputs], needed, strict=False)]
    bases = [unflatten(structure, leaves) for structure in plan.structures]
    pieces = [
        ForwardResults(*(x.contiguous() if x.ndim == 3 else x for x in one)) for one in _pieces(whole, plan.queries)
    ]
    sizes = [stop - start for start, stop in plan.queries]
    d_outs = d_out.split(sizes, dim=2)
    d_lses = [None] * len(sizes) if d_lse is None else [x.contiguous() for x in d_lse.split(sizes, dim=2)]
    sums = _Sums(plan.inputs)
    wanted = [[number for number in used if needed[number]] for used in plan.used]
    count = len(plan.packing.dims)
    of_keys = needed[plan.inputs : plan.inputs + count]
    travelling = _Travelling(plan, plan.packing.of_gradients(of_keys), whole.out.device)

    for step, blocks in _Passing(plan, _own_keys(plan, tensors), travelling.buffers):
        for block, keys in blocks:
            into = travelling.gradients(block)
            keys = [x.detach().requires_grad_(need) for x, need in zip(keys, of_keys, strict=True)]
            key_leaves = [x for x in keys if x.requires_grad]
            for i, base in enumerate(bases):
                if not plan.schedule.visible[i][block[0]][block[1]]:
                    continue
                part = plan.part(base, i, plan.keys(*block), keys)
                inputs = [leaves[number] for number in wanted[i]]
                if not inputs and not key_leaves:
                    continue
                found = backward_part(part, pieces[i], d_outs[i], d_lses[i], [*inputs, *key_leaves], plan.call.kernel)
                for number, gradient in zip(wanted[i], found[: len(inputs)], strict=True):
                    sums.add(number, gradient)
                for a, b in zip(into, found[len(inputs) :], strict=True):
                    a.add_(b)
        travelling.send(step, [block for block, _ in blocks])
    for i, base in enumerate(bases):
        gradients = sink_gradients(sinks_of(base), pieces[i], d_outs[i], d_lses[i])
        inputs = [leaves[number] for number in wanted[i]]
        if gradients:
            for number, gradient in zip(wanted[i], through_lowering(gradients, inputs), strict=True):
                sums.add(number, gradient)
    of_runs = travelling.home()
    results: list[Tensor | None] = [
        (sums.sums[number] if sums.sums[number] is not None else torch.zeros_like(x)) if needed[number] else None
        for number, x in enumerate(leaves)
    ]
    for own, run in zip(_own_keys(plan, tensors), of_runs, strict=True):
        each = iter(run)
        results += [next(each).to(x.dtype) if need else None for x, need in zip(own, of_keys, strict=True)]
    return results


class _Travelling:
    """Gradients of keys, which follow the keys one step behind and come home from the last rank that sees them.

    Args:
        plan: the plan.
        packing: the gradients of a run of keys, as a message.
        device: where they are.
    """

    def __init__(self, plan: _Plan, packing: Packing, device: torch.device) -> None:
        self.plan, self.packing, self.buffers = plan, packing, Buffers(device)
        self.held: dict[Block, Tensor] = {}
        self.arriving: dict[Block, Tensor] = {}
        self.homecoming: list[tuple[int, Tensor]] = []
        self.started: list[tuple[Any, list[Tensor]]] = []
        self.own = [self._new(plan.group.rank, j) for j in range(len(plan.schedule.hops[plan.group.rank]))]

    def _tokens(self, block: Block) -> int:
        start, stop = self.plan.keys(*block)
        return stop - start

    def _new(self, owner: int, run: int) -> Tensor:
        return self.buffers.take(self.packing.size(self._tokens((owner, run)))).zero_()

    def gradients(self, block: Block) -> list[Tensor]:
        """Returns where this rank adds its gradients of a run of keys."""
        owner, run = block
        if owner == self.plan.group.rank:
            return self.packing.views(self.own[run], self._tokens(block))
        self.held[block] = self._new(owner, run)
        return self.packing.views(self.held[block], self._tokens(block))

    def send(self, step: int, blocks: list[Block]) -> None:
        """Adds what has come of earlier ranks, and starts to send the gradients of the step on, or home."""
        group, schedule = self.plan.group, self.plan.schedule
        rank, size = group.rank, group.size
        for started, _ in self.started:
            group.finish(started)
        for _, sent in self.started:
            for buffer in sent:
                self.buffers.give(buffer)
        self.started = []
        for block, buffer in self.arriving.items():
            for a, b in zip(self._views(block, self.held[block]), self._views(block, buffer), strict=True):
                a.add_(b)
            self.buffers.give(buffer)
        self.arriving = {}
        if not self.packing.dims or size == 1:
            return
        messages, sent = [], []
        if step:
            for block in blocks:
                owner, run = block
                to = (rank + 1) % size if schedule.hops[owner][run] > step else owner
                messages.append((True, to, self.held[block]))
                sent.append(self.held.pop(block))
            before, coming = schedule.held(rank, step + 1, size)
            for run in coming if before != rank else ():
                self.arriving[before, run] = self.buffers.take(self.packing.size(self._tokens((before, run))))
                messages.append((False, (rank - 1) % size, self.arriving[before, run]))
            for run, hops in enumerate(schedule.hops[rank]):
                if hops == step:
                    buffer = self.buffers.take(self.packing.size(self._tokens((rank, run))))
                    self.homecoming.append((run, buffer))
                    messages.append((False, (rank + step) % size, buffer))
        self.started.append((group.post(messages), sent))

    def _views(self, block: Block, buffer: Tensor) -> list[Tensor]:
        return self.packing.views(buffer, self._tokens(block))

    def home(self) -> list[list[Tensor]]:
        """Returns the gradients of each run of this rank's keys, once all have come home."""
        rank = self.plan.group.rank
        for started, _ in self.started:
            self.plan.group.finish(started)
        own = [self._views((rank, run), buffer) for run, buffer in enumerate(self.own)]
        for run, buffer in self.homecoming:
            for a, b in zip(own[run], self._views((rank, run), buffer), strict=True):
                a.add_(b)
        return own
