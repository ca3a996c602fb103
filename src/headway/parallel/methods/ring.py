"""Ring: keys and values pass round the ranks, and each rank merges what its queries take from them.

While a rank computes with the keys that it has, the next ones arrive. In the backward pass the keys pass round once
more, and their gradients follow them: each rank adds its part, and the last one sends the sum back to the rank of the
keys.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor

from ...coordinates import Coordinates
from ...kernels import Call
from ...kernels._autograd import NATIVE, through_lowering
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
from ...tracing import without_autocast
from .._call import SharedCall
from .._group import Group, Runs, backward_of, once, tokens_in
from .._packing import Buffers, Packing
from .._schedule import Part, Schedule, Span, schedule_of
from ._base import Method, Traffic


class Ring(Method):
    """Passes prepared keys, values and biases of keys round the ranks that see them.

    Beyond the inputs, a ring needs memory for two shards of keys and one part of the call. It refuses terms that are
    functions of all keys at once, since they cannot be cut into parts.
    """

    name = "ring"

    def why_not(self, call: SharedCall) -> str | None:
        if call.kernel not in ("auto", *NATIVE):
            return f"kernel {call.kernel!r} computes no parts of the keys"
        return call.why_not_apart()

    def traffic(self, call: SharedCall) -> Traffic:
        schedule, size, rank = schedule_of(call), call.group.size, call.group.rank
        few, moved, scans = call.rehearsal()
        tensors, dims = keys_of(few, moved)
        packing = Packing.of(tensors, dims)
        gradients = packing.of_gradients([x.requires_grad for x in tensors])

        def sent(hops: Sequence[Sequence[int]]) -> tuple[int, int]:
            forward = backward = 0
            for of, runs in enumerate(hops):
                step = (rank - of) % size
                for (start, stop), last in zip(call.k_shards.layout[of], runs, strict=True):
                    keys = packing.size(stop - start) * (last > step)
                    forward += keys
                    backward += keys + gradients.size(stop - start) * (last >= step > 0)
            return forward, backward

        forward, backward = sent(schedule.hops)
        every = sum(sent([[size - 1] * len(runs) for runs in schedule.hops]))
        return Traffic(forward + scans.forward, backward + scans.backward, every - forward - backward)

    def run(self, call: SharedCall) -> tuple[Tensor, Tensor | None]:
        local, moved = call.encoded()
        kernel = NATIVE[kernel_of_part(local, call.kernel)]
        with without_autocast(call.q):
            plan, tensors = _plan(call, kernel.rotated(local), moved)
            out, lse, *_ = _Ring.apply(plan, *tensors)
            out = kernel.restored(local, out)
        return out.to(local.q.dtype), lse if call.wants_lse else None


GROUPED = 4096
"""The tokens of a rank from which on heads are computed in two groups; in four from twice as many."""

# ---------------------------------------------------------------- which tensors travel


def keys_of(call: Call, moved: bool) -> tuple[list[Tensor], list[int]]:
    """Returns the tensors of a call that belong to keys, and the dimension of the keys of each.

    Args:
        call: the call, whose rotations have been applied.
        moved: whether the positions of keys are among these tensors.
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
    """What the ranks of a ring compute, apart from the tensors.

    Attributes:
        call: the shared call, for its mask and the coordinates.
        at: where the encoding sees all queries and all keys.
        structure: the call of this rank's queries, whose keys are empty.
        of_queries: for each tensor of the structure its dimension of the queries; None if all queries share the tensor.
        of_heads: its dimension of the heads, likewise.
        heads_of_keys: the dimension of the heads of each tensor of keys, likewise.
        groups: the number of groups of heads, which are computed one after the other so that buffers are smaller.
        packing: the tensors of keys of a group of heads, as a message.
        moved: whether positions are tensors of the structure, and travel with the keys.
        schedule: which rank sees which keys.
        group: the processes.
    """

    call: SharedCall
    at: tuple[Coordinates, Coordinates]
    structure: Any
    of_queries: tuple[int | None, ...]
    of_heads: tuple[int | None, ...]
    heads_of_keys: tuple[int | None, ...]
    groups: int
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

    @property
    def every_query(self) -> Span:
        """All runs of this rank's queries."""
        return 0, len(self.own)

    def tokens(self, queries: Span) -> slice:
        """Returns where runs of queries are among this rank's tensors."""
        return slice(self.own[queries[0]][0], self.own[queries[1] - 1][1])

    def keys(self, rank: int, run: int) -> tuple[int, int]:
        """Returns the slots of a run of keys."""
        return self.call.k_shards.layout[rank][run]

    def of_group(self, x: Tensor, dim: int | None, group: int) -> Tensor:
        """Returns the part of a tensor for a group of heads."""
        return x if dim is None else x.chunk(self.groups, dim)[group]

    def of_runs(self, number: int, x: Tensor, queries: Span, group: int) -> Tensor:
        """Returns the part of a tensor of the structure, or its gradient, for runs of queries and a group of heads."""
        tokens, dim = self.tokens(queries), self.of_queries[number]
        x = self.of_group(x, self.of_heads[number], group)
        return x if dim is None else x.narrow(dim, tokens.start, tokens.stop - tokens.start)

    def queries(self, tensors: Sequence[Tensor], queries: Span, group: int) -> list[Tensor]:
        """Returns the tensors of the structure for runs of queries and a group of heads, without their graph."""
        return [self.of_runs(number, x.detach(), queries, group) for number, x in enumerate(tensors)]

    def of_keys(self, tensors: Sequence[Tensor | None], runs: Span, group: int) -> list[Tensor]:
        """Returns the parts of tensors of this rank's keys, or of their gradients, for runs and a group of heads."""
        local = _local(self.call.k_shards.runs)
        start, stop = local[runs[0]][0], local[runs[1] - 1][1]
        dims = zip(tensors, self.packing.dims, self.heads_of_keys, strict=True)
        return [
            self.of_group(x, heads, group).narrow(dim, start, stop - start) for x, dim, heads in dims if x is not None
        ]

    def base(self, tensors: Sequence[Tensor], queries: Span, group: int) -> Call:
        """Returns the call of runs of queries and a group of heads from its tensors; its keys are empty."""
        call, position = unflatten(self.structure, tensors)
        side = _tokens_of(self.at[0], self.call.q_shards.runs[slice(*queries)])
        side = side._with(position=position) if self.moved else side
        made: Call = call._with(q_coordinates=side, head_offset=call.head_offset + group * call.q.shape[1])
        return made

    def call_of(self, part: Part, base: Call, group: int, tensors: Sequence[Tensor]) -> Call:
        """Returns the call of a part for a group of heads from the tensors of its keys."""
        queries = self.call.q_shards.runs[slice(*part.queries)]
        keys = self.call.k_shards.layout[part.owner][slice(*part.keys)]
        mask = part.mask
        if mask is not None and (self.groups > 1 or self.call.options["head_shard"] is not None):
            mask = mask.cut("heads", base.head_offset, base.head_offset + base.q.shape[1])
        diagonal = self.call.itself and queries == keys and len(keys) == 1 and base.q_coordinates.ordered
        call = _with_keys(base, tensors, _tokens_of(self.at[1], keys), self.moved)
        return without_tables(call._with(mask=mask, aligned=diagonal))


def _tokens_of(at: Coordinates, runs: Runs) -> Coordinates:
    """The coordinates of some runs of tokens, as those of a call of its own."""
    return at.rows(*runs[0]) if len(runs) == 1 else at.take(runs)._with(shard=None)


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

    of_heads = {id(x): 1 for x in (local.q, local.k, local.v)}

    def noted_heads(x: Tensor, words: tuple[str, ...]) -> Tensor:
        of_heads[id(x)] = words.index("heads" if "heads" in words else "kv_heads")
        return x

    for term in base.terms:
        term.along("queries", noted)
    for term in (*base.terms, *local.terms):  # those of base have no keys
        term.along("heads", noted_heads).along("kv_heads", noted_heads)
    tensors: list[Tensor] = []
    structure = flatten((base, position), tensors)
    groups = _groups(call)
    heads_of_keys = tuple([of_heads.get(id(x)) for x in keys])
    first = [x if dim is None else x.chunk(groups, dim)[0] for x, dim in zip(keys, heads_of_keys, strict=True)]
    plan = _Plan(
        call, at, structure, tuple([of_queries.get(id(x)) for x in tensors]),
        tuple([of_heads.get(id(x)) for x in tensors]), heads_of_keys, groups, Packing.of(first, dims), moved,
        schedule_of(call), call.group,
    )  # fmt: skip
    return plan, tensors + keys


def _groups(call: SharedCall) -> int:
    """The number of groups of heads, the same on every rank: one for short shards, and on GPUs, to use them fully."""
    longest = max(map(tokens_in, (*call.q_shards.layout, *call.k_shards.layout)))
    if not call.q.is_cpu or longest < GROUPED:
        return 1
    most = 4 if longest >= 2 * GROUPED else 2
    return next(count for count in range(most, 0, -1) if call.k.shape[1] % count == 0)


# ---------------------------------------------------------------- the ring

Block = tuple[int, int]
"""The rank whose keys they are, and the number of their run."""


class _Passing:
    """The keys that pass round: first this rank's, then those of the rank before it, and so on.

    Args:
        plan: the plan.
        own: the tensors of this rank's keys.
        buffers: where those of others are written.
        number: the group of heads.
    """

    def __init__(self, plan: _Plan, own: Sequence[Tensor], buffers: Buffers, number: int) -> None:
        self.plan, self.buffers, self.number = plan, buffers, number
        self.own = [x.detach() for x in own]

    def __iter__(self) -> Iterator[tuple[int, list[Block], list[tuple[Part, list[Tensor]]]]]:
        """Yields the number of each step, the keys that are here, and the parts with the tensors of their keys."""
        plan, group = self.plan, self.plan.group
        rank, size, packing = group.rank, group.size, plan.packing
        held: dict[Block, Tensor] = {}
        for j, hops in enumerate(plan.schedule.hops[rank]):
            if hops:
                start, stop = plan.keys(rank, j)
                held[rank, j] = self.buffers.take(packing.size(stop - start))
                views = packing.views(held[rank, j], stop - start)
                for view, x in zip(views, plan.of_keys(self.own, (j, j + 1), self.number), strict=True):
                    view.copy_(x)
        for step in range(plan.schedule.steps + 1):
            group.at(step=f"step {step} of {plan.schedule.steps}")
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
            parts = []
            for part in plan.schedule.parts[owner]:
                first = part.keys[0]
                if owner == rank:
                    keys = plan.of_keys(self.own, part.keys, self.number)
                else:  # they are those of one run
                    start, stop = plan.keys(owner, first)
                    keys = packing.views(held[owner, first], stop - start)
                parts.append((part, keys))
            yield step, [(owner, j) for j in here], parts
            group.finish(started)
            for buffer in held.values():
                self.buffers.give(buffer)
            held = arriving


class _Ring(torch.autograd.Function):
    """Computes the attention of this rank's queries; in the backward pass the gradients of keys follow the keys."""

    @staticmethod
    def forward(ctx: Any, plan: _Plan, *tensors: Tensor) -> tuple[Tensor, ...]:
        whole = _new_results(plan, plan.call.q, tensors[plan.inputs + 1])
        buffers = Buffers(whole.out.device)
        for group in range(plan.groups):
            _forward(plan, tensors, whole, buffers, group)
        ctx.plan, ctx.place = plan, plan.group.place
        ctx.save_for_backward(*tensors, *whole)
        lse = whole.log_sum_exp
        ctx.mark_non_differentiable(whole.row_max, whole.row_sum, *(() if plan.call.wants_lse else (lse,)))
        return whole.out, lse, whole.row_max, whole.row_sum

    @staticmethod
    @once
    def backward(ctx: Any, d_out: Tensor, d_lse: Tensor | None, *unused: Any) -> tuple[Tensor | None, ...]:
        *tensors, out, row_max, row_sum = ctx.saved_tensors
        plan: _Plan = ctx.plan
        with plan.group.during(backward_of(ctx.place)), torch.enable_grad(), without_autocast(out):
            whole = ForwardResults(out.detach(), row_max, row_sum)  # a saved output is one of this node
            d_lse = d_lse if plan.call.wants_lse else None
            found = _backward(plan, tensors, ctx.needs_input_grad[1:], whole, d_out, d_lse)
        return None, *found


def _new_results(plan: _Plan, q: Tensor, v: Tensor) -> ForwardResults:
    return new_results(q, v, torch.promote_types(v.dtype, torch.float32))


def _pieces(plan: _Plan, whole: ForwardResults, group: int) -> list[ForwardResults]:
    """The results of each run of queries, as parts of those of all."""
    each = [plan.of_group(x, 1, group) for x in whole]
    return [ForwardResults(*(x[:, :, start:stop] for x in each)) for start, stop in plan.own]


def _forward(plan: _Plan, tensors: Sequence[Tensor], whole: ForwardResults, buffers: Buffers, group: int) -> None:
    """Writes the results of a group of heads."""

    @cache
    def base(queries: Span) -> Call:
        return plan.base(plan.queries(tensors[: plan.inputs], queries, group), queries, group)

    pieces, seen = _pieces(plan, whole, group), [False] * len(plan.own)
    for _, _, parts in _Passing(plan, tensors[plan.inputs :], buffers, group):
        for part, keys in parts:
            call = plan.call_of(part, base(part.queries), group, keys)
            found, first = forward_part(call, plan.call.kernel), plan.tokens(part.queries).start
            for i in range(*part.queries):
                start, stop = plan.own[i]
                of_run = ForwardResults(*(x[:, :, start - first : stop - first] for x in found))
                if seen[i]:
                    merge_into(pieces[i], of_run)
                else:
                    for a, b in zip(pieces[i], of_run, strict=True):
                        a.copy_(b)
                seen[i] = True
    for piece, some in zip(pieces, seen, strict=True):
        if not some:
            for x, nothing in zip(piece, (0.0, -math.inf, 0.0), strict=True):
                x.fill_(nothing)
    merge_sinks(ForwardResults(*(plan.of_group(x, 1, group) for x in whole)), sinks_of(base(plan.every_query)))


def _backward(
    plan: _Plan, tensors: Sequence[Tensor], needed: Sequence[bool], whole: ForwardResults, d_out: Tensor,
    d_lse: Tensor | None,
) -> list[Tensor | None]:  # fmt: skip
    """The gradients of the tensors of a plan."""
    inputs, own = tensors[: plan.inputs], tensors[plan.inputs :]
    wanted = [number for number in range(plan.inputs) if needed[number]]
    of_keys = needed[plan.inputs :]
    sums = {number: _wide_zeros(inputs[number]) for number in wanted}  # they sum one part for each run of keys
    totals = [_wide_zeros(x) if need else None for x, need in zip(own, of_keys, strict=True)]
    buffers = Buffers(own[0].device)
    late: _Travelling | None = None  # gradients of the last group, so that no rank waits after each group
    for group in range(plan.groups):
        some = partial(_Queries, plan, group, inputs, wanted, sums, whole, d_out, d_lse)
        queries_of = cache(some)
        travelling = _Travelling(plan, totals, group, buffers)
        for step, blocks, parts in _Passing(plan, own, buffers, group):
            travelling.begin(blocks)
            for part, keys in parts:
                into = travelling.gradients(part)
                leaves = [x.detach().requires_grad_(need) for x, need in zip(keys, of_keys, strict=True)]
                if wanted or into:
                    queries_of(part.queries).add_part(part, leaves, into)
            travelling.send(step, blocks)
            if late is not None:
                late.come_home()
                late = None
        queries_of(plan.every_query).add_sinks()
        late = travelling
    if late is not None:
        late.come_home()
    home = (x for x in totals if x is not None)
    of_own = [next(home).to(x.dtype) if need else None for x, need in zip(own, of_keys, strict=True)]
    of_inputs = [sums.pop(number).to(x.dtype) if number in sums else None for number, x in enumerate(inputs)]
    return of_inputs + of_own


def _wide_zeros(x: Tensor) -> Tensor:
    return torch.zeros_like(x, dtype=torch.promote_types(x.dtype, torch.float32))


class _Queries:
    """Runs of this rank's queries in the backward pass; their gradients are added to slices of the rank's gradients.

    Args:
        plan: the plan.
        group: the group of heads.
        inputs: the tensors of the structure.
        wanted: the numbers of the tensors whose gradients are wanted.
        sums: these gradients.
        whole: the results of the forward pass.
        d_out: the gradient of the output.
        d_lse: that of the log-sum-exp, or None.
        queries: the runs.
    """

    def __init__(
        self, plan: _Plan, group: int, inputs: Sequence[Tensor], wanted: list[int], sums: dict[int, Tensor],
        whole: ForwardResults, d_out: Tensor, d_lse: Tensor | None, queries: Span,
    ) -> None:  # fmt: skip
        tensors = plan.queries(inputs, queries, group)
        self.plan, self.group, self.base = plan, group, plan.base(tensors, queries, group)
        for one in wanted:
            tensors[one].requires_grad_()
        self.leaves = [tensors[one] for one in wanted]
        self.into = [plan.of_runs(one, sums[one], queries, group) for one in wanted]
        tokens = plan.tokens(queries)
        out, row_max, row_sum, self.d_out = (plan.of_group(x, 1, group)[:, :, tokens] for x in (*whole, d_out))
        self.results = ForwardResults(out, row_max.contiguous(), row_sum.contiguous())
        self.d_lse = None if d_lse is None else plan.of_group(d_lse, 1, group)[:, :, tokens].contiguous()

    def add_part(self, part: Part, tensors: list[Tensor], into: list[Tensor]) -> None:
        """Adds the gradients of a part to those of the queries, and to ``into``.

        Args:
            part: the part.
            tensors: those of its keys.
            into: the gradients of those that require one.
        """
        call = self.plan.call_of(part, self.base, self.group, tensors)
        leaves = [*self.leaves, *(x for x in tensors if x.requires_grad)]
        found = backward_part(call, self.results, self.d_out, self.d_lse, leaves, self.plan.call.kernel)
        for total, gradient in zip([*self.into, *into], found, strict=True):
            total.add_(gradient)

    def add_sinks(self) -> None:
        """Adds the gradients of the sinks, which belong to no part."""
        gradients = sink_gradients(sinks_of(self.base), self.results, self.d_out, self.d_lse)
        if gradients:
            for total, gradient in zip(self.into, through_lowering(gradients, self.leaves), strict=True):
                total.add_(gradient)


class _Travelling:
    """The gradients of keys; they follow the keys one step behind, and the last rank that sees these sends them home.

    Args:
        plan: the plan.
        totals: the gradients of this rank's keys, None for tensors that require none.
        group: the group of heads.
        buffers: where those of others are written.
    """

    def __init__(self, plan: _Plan, totals: Sequence[Tensor | None], group: int, buffers: Buffers) -> None:
        self.plan, self.totals, self.group, self.buffers = plan, totals, group, buffers
        self.packing = plan.packing.of_gradients([x is not None for x in totals])
        self.held: dict[Block, Tensor] = {}
        self.arriving: dict[Block, Tensor] = {}
        self.homecoming: list[tuple[int, Tensor]] = []
        self.started: list[tuple[Any, list[Tensor]]] = []

    def _tokens(self, block: Block) -> int:
        start, stop = self.plan.keys(*block)
        return stop - start

    def _of_own(self, runs: Span) -> list[Tensor]:
        return self.plan.of_keys(self.totals, runs, self.group)

    def begin(self, blocks: list[Block]) -> None:
        """Makes room for the gradients of the keys of a step."""
        for block in blocks:
            if block[0] != self.plan.group.rank:
                self.held[block] = self.buffers.take(self.packing.size(self._tokens(block))).zero_()

    def gradients(self, part: Part) -> list[Tensor]:
        """Returns where this rank adds its gradients of the keys of a part."""
        if part.owner == self.plan.group.rank:
            return self._of_own(part.keys)
        block = part.owner, part.keys[0]
        return self._views(block, self.held[block])

    def send(self, step: int, blocks: list[Block]) -> None:
        """Adds the gradients from earlier ranks, and starts to send those of the step on or home."""
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

    def come_home(self) -> None:
        """Adds the gradients from other ranks to those of this rank's keys, once all of them have come."""
        rank = self.plan.group.rank
        for started, sent in self.started:
            self.plan.group.finish(started)
            for buffer in sent:
                self.buffers.give(buffer)
        for run, buffer in self.homecoming:
            for a, b in zip(self._of_own((run, run + 1)), self._views((rank, run), buffer), strict=True):
                a.add_(b)
            self.buffers.give(buffer)
