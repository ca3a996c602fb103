"""Ring: keys and values pass round the ranks, and each merges what its queries take from them.

While a rank computes with the keys that it has, the next ones arrive. In the backward pass keys pass round once more.
The gradients of keys follow them: each rank adds its own, and the last one sends the sum home.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
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


@dataclass(frozen=True)
class _Plan:
    """What the ranks of a ring compute, without the tensors.

    Attributes:
        call: the shared call, for its mask and the coordinates.
        at: where the encoding sees all queries and all keys.
        structure: the call of this rank's queries, whose keys are empty.
        of_queries: for each tensor of the structure its dimension of the queries; None for those that all share.
        packing: the tensors of keys, as a message.
        moved: whether positions are tensors of the structure, and travel with the keys.
        schedule: who sees what.
        group: the processes.
    """

    call: SharedCall
    at: tuple[Coordinates, Coordinates]
    structure: Any
    of_queries: tuple[int | None, ...]
    packing: Packing
    moved: bool
    schedule: Schedule
    group: Group

    @property
    def inputs(self) -> int:
        """The number of tensors of the structure; those of this rank's keys follow."""
        return len(self.of_queries)

    @cached_property
    def own(self) -> list[tuple[int, int]]:
        """The runs of this rank's queries, among its tensors."""
        return _local(self.call.q_shards.runs)

    def keys(self, rank: int, run: int) -> tuple[int, int]:
        """Returns the slots of a run of keys."""
        return self.call.k_shards.layout[rank][run]

    def queries(self, tensors: Sequence[Tensor], i: int) -> list[Tensor]:
        """Returns the tensors of the structure for one run of queries; gradients reach neither those of the whole."""
        start, stop = self.own[i]
        return [
            x.detach() if dim is None else x.detach().narrow(dim, start, stop - start)
            for x, dim in zip(tensors, self.of_queries, strict=True)
        ]

    def of_keys(self, tensors: Sequence[Tensor], run: int) -> list[Tensor]:
        """Returns the tensors of one run of this rank's keys."""
        start, stop = _local(self.call.k_shards.runs)[run]
        return [x.detach().narrow(dim, start, stop - start) for x, dim in zip(tensors, self.packing.dims, strict=True)]

    def base(self, tensors: Sequence[Tensor], i: int) -> Call:
        """Returns the call of a run of queries, whose keys are empty, of its tensors."""
        call, position = unflatten(self.structure, tensors)
        side = self.at[0].rows(*self.call.q_shards.runs[i])
        return call._with(q_coordinates=side._with(position=position) if self.moved else side)  # type: ignore[no-any-return]

    def part(self, base: Call, i: int, keys: tuple[int, int], tensors: Sequence[Tensor]) -> Call:
        """Returns the call of a run of queries and a run of keys."""
        queries, k_side = self.call.q_shards.runs[i], self.at[1].rows(*keys)
        mask = self.call.part_of_mask(queries, keys)
        mask = None if sees_all(mask, self.at[0].rows(*queries), k_side) else mask
        diagonal = self.call.itself and queries == keys and base.q_coordinates.ordered
        call = _with_keys(base, tensors, k_side, self.moved)._with(mask=mask, aligned=diagonal)
        return without_tables(call)


def _local(runs: Runs) -> list[tuple[int, int]]:
    """The runs of a shard among its own tokens."""
    ends = [0, *accumulate(stop - start for start, stop in runs)]
    return list(pairwise(ends))


def _plan(call: SharedCall, local: Call, moved: bool) -> tuple[_Plan, list[Tensor]]:
    """Returns the plan of a call and its tensors: those of the queries, and then those of the keys."""
    at = call.located()
    keys, dims = keys_of(local, moved)
    empty = [x.detach().narrow(dim, 0, 0) for x, dim in zip(keys, dims, strict=True)]
    base = _with_keys(local._with(include_sink=False, mask=None), empty, at[1].rows(0, 0), moved)
    base = without_tables(base._with(q_coordinates=at[0].rows(0, 0)))
    position = local.q_coordinates.position if moved else None
    of_queries = {id(local.q): 2, id(position): 1}

    def noted(x: Tensor, words: tuple[str, ...]) -> Tensor:
        of_queries[id(x)] = words.index("queries")
        return x

    for term in base.terms:
        term.along("queries", noted)
    tensors: list[Tensor] = []
    structure = flatten((base, position), tensors)
    plan = _Plan(
        call, at, structure, tuple([of_queries.get(id(x)) for x in tensors]), Packing.of(keys, dims), moved,
        schedule_of(call), call.group,
    )  # fmt: skip
    return plan, tensors + keys


# ---------------------------------------------------------------- the ring

Block = tuple[int, int]
"""The rank whose keys they are, and the number of their run."""


class _Passing:
    """Keys that pass round: those of this rank first, then those of the rank before, and so on.

    Args:
        plan: the plan.
        own: the tensors of this rank's keys.
        buffers: where those of others are written.
    """

    def __init__(self, plan: _Plan, own: Sequence[Tensor], buffers: Buffers) -> None:
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
                for view, x in zip(packing.views(held[rank, j], stop - start), plan.of_keys(self.own, j), strict=True):
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
                keys = packing.views(held[owner, j], stop - start) if inside else plan.of_keys(self.own, j)
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
        bases = [plan.base(plan.queries(tensors[: plan.inputs], i), i) for i in range(len(plan.own))]
        whole = _new_results(plan, bases[0])
        pieces, seen = _pieces(whole, plan.own), [False] * len(bases)
        for _, blocks in _Passing(plan, tensors[plan.inputs :], Buffers(whole.out.device)):
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
        with torch.enable_grad(), without_autocast(out):
            whole = ForwardResults(out.detach(), row_max, row_sum)  # a saved output is one of this node
            d_lse = d_lse if plan.call.wants_lse else None
            found = _backward(plan, tensors, ctx.needs_input_grad[1:], whole, d_out, d_lse)
        return None, *found


def _new_results(plan: _Plan, base: Call) -> ForwardResults:
    n = plan.own[-1][1] if plan.own else 0
    like = base.q[:, :, :1].expand(-1, -1, n, -1)
    return new_results(like, base.v, torch.promote_types(base.q.dtype, torch.float32))


def _pieces(whole: ForwardResults, runs: Sequence[tuple[int, int]]) -> list[ForwardResults]:
    """The results of each run of queries, as parts of those of all."""
    return [ForwardResults(*(x[:, :, start:stop] for x in whole)) for start, stop in runs]


def _backward(
    plan: _Plan, tensors: Sequence[Tensor], needed: Sequence[bool], whole: ForwardResults, d_out: Tensor,
    d_lse: Tensor | None,
) -> list[Tensor | None]:  # fmt: skip
    """The gradients of the tensors of a plan."""
    inputs, own = tensors[: plan.inputs], tensors[plan.inputs :]
    wanted = [number for number in range(plan.inputs) if needed[number]]
    of_keys = needed[plan.inputs :]
    sums = {number: torch.zeros_like(inputs[number]) for number in wanted}
    runs = [_Queries(plan, i, inputs, wanted, sums, whole, d_out, d_lse) for i in range(len(plan.own))]
    travelling = _Travelling(plan, own, of_keys)
    for step, blocks in _Passing(plan, own, travelling.buffers):
        for block, keys in blocks:
            into = travelling.gradients(block)
            leaves = [x.detach().requires_grad_(need) for x, need in zip(keys, of_keys, strict=True)]
            for run in runs:
                if plan.schedule.visible[run.number][block[0]][block[1]] and (wanted or into):
                    run.add_part(plan.keys(*block), leaves, into)
        travelling.send(step, [block for block, _ in blocks])
    for run in runs:
        run.add_sinks()
    home = iter(travelling.home())
    of_own = [next(home).to(x.dtype) if need else None for x, need in zip(own, of_keys, strict=True)]
    return [sums.get(number) for number in range(plan.inputs)] + of_own


class _Queries:
    """A run of this rank's queries in the backward pass. Its gradients are added to slices of those of the rank.

    Args:
        plan: the plan.
        number: the number of the run.
        inputs: the tensors of the structure.
        wanted: the numbers of those whose gradients are wanted.
        sums: these gradients.
        whole: the results of the forward pass.
        d_out: the gradient of the output.
        d_lse: that of the log-sum-exp, or None.
    """

    def __init__(
        self, plan: _Plan, number: int, inputs: Sequence[Tensor], wanted: list[int], sums: dict[int, Tensor],
        whole: ForwardResults, d_out: Tensor, d_lse: Tensor | None,
    ) -> None:  # fmt: skip
        start, stop = plan.own[number]
        tensors = plan.queries(inputs, number)
        self.plan, self.number, self.base = plan, number, plan.base(tensors, number)
        for one in wanted:
            tensors[one].requires_grad_()
        self.leaves = [tensors[one] for one in wanted]
        into = (sums[one] for one in wanted)
        dims = (plan.of_queries[one] for one in wanted)
        self.into = [
            x if dim is None else x.narrow(dim, start, stop - start) for x, dim in zip(into, dims, strict=True)
        ]
        out, row_max, row_sum = (x[:, :, start:stop] for x in whole)
        self.results = ForwardResults(out, row_max.contiguous(), row_sum.contiguous())
        self.d_out = d_out[:, :, start:stop]
        self.d_lse = None if d_lse is None else d_lse[:, :, start:stop].contiguous()

    def add_part(self, keys: tuple[int, int], tensors: list[Tensor], into: list[Tensor]) -> None:
        """Adds the gradients of a run of keys to those of the queries, and to ``into``.

        Args:
            keys: the slots of the keys.
            tensors: their tensors.
            into: the gradients of those that require one.
        """
        part = self.plan.part(self.base, self.number, keys, tensors)
        leaves = [*self.leaves, *(x for x in tensors if x.requires_grad)]
        found = backward_part(part, self.results, self.d_out, self.d_lse, leaves, self.plan.call.kernel)
        for total, gradient in zip([*self.into, *into], found, strict=True):
            total.add_(gradient)

    def add_sinks(self) -> None:
        """Adds the gradients of the sinks, which belong to no part."""
        gradients = sink_gradients(sinks_of(self.base), self.results, self.d_out, self.d_lse)
        if gradients:
            for total, gradient in zip(self.into, through_lowering(gradients, self.leaves), strict=True):
                total.add_(gradient)


class _Travelling:
    """Gradients of keys, which follow the keys one step behind and come home from the last rank that sees them.

    Args:
        plan: the plan.
        own: the tensors of this rank's keys.
        needed: which of them require a gradient.
    """

    def __init__(self, plan: _Plan, own: Sequence[Tensor], needed: Sequence[bool]) -> None:
        self.plan, self.packing, self.buffers = plan, plan.packing.of_gradients(needed), Buffers(own[0].device)
        wanted = [x for x, need in zip(own, needed, strict=True) if need]
        self.own = [torch.zeros_like(x, dtype=dtype) for x, dtype in zip(wanted, self.packing.dtypes, strict=True)]
        self.held: dict[Block, Tensor] = {}
        self.arriving: dict[Block, Tensor] = {}
        self.homecoming: list[tuple[int, Tensor]] = []
        self.started: list[tuple[Any, list[Tensor]]] = []

    def _tokens(self, block: Block) -> int:
        start, stop = self.plan.keys(*block)
        return stop - start

    def _of_own(self, run: int) -> list[Tensor]:
        start, stop = _local(self.plan.call.k_shards.runs)[run]
        return [x.narrow(dim, start, stop - start) for x, dim in zip(self.own, self.packing.dims, strict=True)]

    def gradients(self, block: Block) -> list[Tensor]:
        """Returns where this rank adds its gradients of a run of keys."""
        owner, run = block
        if owner == self.plan.group.rank:
            return self._of_own(run)
        self.held[block] = self.buffers.take(self.packing.size(self._tokens(block))).zero_()
        return self._views(block, self.held[block])

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

    def home(self) -> list[Tensor]:
        """Returns the gradients of this rank's keys that are wanted, once all have come home."""
        rank = self.plan.group.rank
        for started, _ in self.started:
            self.plan.group.finish(started)
        for run, buffer in self.homecoming:
            for a, b in zip(self._of_own(run), self._views((rank, run), buffer), strict=True):
                a.add_(b)
        return self.own
