"""A group of processes and the few exchanges that shards of a sequence need.

Every exchange that autograd records has the same node on every process, so that all processes take part in its backward
pass. Sums are computed in the order of the ranks, so they have the same bits in every run.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any, TypeVar
from weakref import WeakKeyDictionary, ref

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from .._torch import backend_of, devices_of, is_batched_by_autograd, store_of, timeout_of
from ..errors import HeadwayError

TAGS = 1 << 20
"""The number of exchanges whose messages differ by their tags."""
SAID = 300
"""The most letters of an error that other processes are told."""

Runs = tuple[tuple[int, int], ...]
"""Tokens of a stream, as rising ranges (start, stop)."""


@dataclass(frozen=True)
class Place:
    """What a process computes, as messages name it.

    Attributes:
        layer: the name of the layer; empty for a call without a layer.
        method: the method, once it is chosen.
        backward: whether it is the backward pass.
        step: the step of a ring, such as "step 1 of 3".
    """

    layer: str = ""
    method: str = ""
    backward: bool = False
    step: str = ""

    def __str__(self) -> str:
        where = f"the {'backward' if self.backward else 'forward'} pass of {self.layer or 'attention'}"
        return where + f" by {self.method}" * bool(self.method) + f", {self.step}" * bool(self.step)


def backward_of(place: Place | None) -> Place:
    """Returns the place of the backward pass of the computation at a place."""
    return replace(place or Place(), backward=True, step="")


class Group:
    """The processes that share a sequence.

    Args:
        group: the process group; None for this process alone. If it is the group of all processes, a new group of the
            same processes is made, so that messages do not mix with those of data parallelism.

    Attributes:
        rank: the number of this process in the group.
        size: the number of processes.
        sent: the bytes that this process has sent to others, without those of the check that ranks agree on a call.
        agreed: signatures of calls on which all ranks are known to agree, for devices where not every call is
            checked.
        place: the computation of this process; None outside of calls.
        exchanges: the number of exchanges so far, the same on every rank at the same place of a program.
        contexts: the number of contexts that were entered.
    """

    # weak, since dist.destroy_process_group ends the threads of a group only if nothing else holds it: a process that
    # exits while they live may be aborted
    _made: WeakKeyDictionary[dist.ProcessGroup, Group] = WeakKeyDictionary()

    def __init__(self, group: dist.ProcessGroup | None) -> None:
        self.sent = self.exchanges = self.contexts = 0
        self.agreed: set[tuple[int, int]] = set()
        self.place: Place | None = None
        self._open = 0
        self._told = False
        self._able: set[str] = set()
        self.rank, self.size = (0, 1) if group is None else (dist.get_rank(group), dist.get_world_size(group))
        self._find: Callable[[], dist.ProcessGroup | None]
        if group is None or self.size == 1:
            self.ranks, self._find = [0], lambda: None
            return
        self.ranks = dist.get_process_group_ranks(group)
        # messages of a ring and of data parallelism must not mix, and the latter often uses the group of all processes.
        # A smaller group is used directly: torch cannot make another one unless all processes take part.
        everyone = self.size == dist.get_world_size()
        backend = dist.get_backend_config(group)  # the default would be the backend of all processes, which may differ
        own = dist.new_group(timeout=timeout_of(group), backend=backend) if everyone else None
        self._find = ref(group) if own is None else lambda: own

    @property
    def _own(self) -> dist.ProcessGroup | None:
        own = self._find()
        if own is None and self.size > 1:
            raise HeadwayError("the process group was destroyed: give a new one to Shards or context")
        return own

    @staticmethod
    def of(mesh: DeviceMesh | dist.ProcessGroup | None) -> Group:
        """Returns the group of a mesh, always the same one for a mesh.

        Args:
            mesh: a mesh of one dimension, a process group, or None for this process alone.

        Raises:
            HeadwayError: for a mesh of several dimensions, or if this process is not in the group.
        """
        if mesh is None:
            return Group(None)
        if isinstance(mesh, DeviceMesh):
            if mesh.ndim != 1:
                raise HeadwayError(
                    f"mesh has {mesh.ndim} dimensions: give one of them, such as mesh['sequence'] of "
                    "init_device_mesh(…, mesh_dim_names=…)"
                )
            mesh = mesh.get_group()
        if not isinstance(mesh, dist.ProcessGroup):
            raise HeadwayError(f"mesh is a {type(mesh).__name__}: give a DeviceMesh of one dimension or a ProcessGroup")
        known = Group._made.get(mesh)
        if known is None:
            known = Group._made[mesh] = Group(mesh)
        return known

    @property
    def device(self) -> torch.device | None:
        """The device whose tensors the group exchanges; None if it exchanges those of a CPU."""
        kinds = [] if self._own is None else devices_of(self._own)
        if not kinds or "cpu" in kinds:
            return None
        return torch.device(kinds[0], torch.accelerator.current_device_index())

    def need_exchanges(self, device: torch.device) -> None:
        """Checks that the group exchanges tensors of a device.

        Args:
            device: the device.

        Raises:
            HeadwayError: if it has no backend for them, or one that takes them only in collectives.
        """
        if self._own is None or device.type in self._able:
            return
        backend = backend_of(self._own, device.type)
        if backend is None or (device.type != "cpu" and backend.name() == "gloo"):
            remedy = (
                "move the call to a GPU, or give a group with gloo" if device.type == "cpu" else "give one with nccl"
            )
            raise HeadwayError(
                f"the processes exchange by {dist.get_backend_config(self._own)}, which sends no tensors of "
                f"{device.type}: {remedy}"
            )
        self._able.add(device.type)

    # ------------------------------------------------------------ errors

    @contextmanager
    def during(self, place: Place) -> Iterator[None]:
        """A block that computes something of a sequence; if an error leaves the block, the other processes are told.

        Args:
            place: its computation.
        """
        before, self.place = self.place, place
        try:
            yield
        except BaseException as error:
            self.tell(error)
            raise
        finally:
            self.place = before

    def at(self, method: str | None = None, step: str = "") -> None:
        """Notes where in ``during`` the process is.

        Args:
            method: the method; None for that so far.
            step: the step.
        """
        if self.place is not None:
            self.place = replace(self.place, method=self.place.method if method is None else method, step=step)

    def tell(self, error: BaseException) -> None:
        """Leaves a message about an error for processes that will wait for this one in vain.

        Args:
            error: the error. The first one stays until all processes agree on a later call.
        """
        if self._own is None or self._told or getattr(error, "_headway_told", False):
            return
        try:
            error._headway_told = True  # type: ignore[attr-defined]
        except AttributeError:
            return
        text = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"[:SAID]
        said = {
            "said": text,
            "place": "" if self.place is None else str(self.place),
            "first": not hasattr(error, "_headway_of_others"),
        }
        self._told = self._write(json.dumps(said))

    def begin(self) -> None:
        """Checks that a call can begin.

        Raises:
            HeadwayError: if an error has left an earlier exchange unfinished.
        """
        if self._open:
            raise HeadwayError(
                "an error ended an earlier call of this process while messages were under way, which later ones "
                "would be mixed up with: start the processes again"
            )

    def agreed_on_call(self) -> None:
        """Withdraws the message about an error that all processes have survived, since they agree on a later call."""
        if self._told:
            self._write("")
            self._told = False

    def told(self, *, causes: bool = True) -> str:
        """Returns in words which errors the others have reported; empty if there are none.

        Args:
            causes: whether to leave out errors whose cause is in another process, even if there are no others.
        """
        found = []
        for rank in range(self.size):
            text = self._read(rank) if rank != self.rank else ""
            if text:
                found.append((self.ranks[rank], json.loads(text)))
        first = [one for one in found if one[1]["first"]] or ([] if causes else found)
        return "; ".join(
            f"process {rank} stopped{' in ' if one['place'] else ''}{one['place']} by {one['said']}"
            for rank, one in first
        )

    def _write(self, text: str) -> bool:
        store = None if self._own is None else store_of(self._own)
        if store is None:
            return False
        try:
            store.set(f"headway/{self.rank}", text)
        except Exception:  # many kinds; the process with the store may be the lost one
            return False
        return True

    def _read(self, rank: int) -> str:
        store, key = None if self._own is None else store_of(self._own), f"headway/{rank}"
        try:
            return store.get(key).decode() if store is not None and store.check([key]) else ""
        except Exception:
            return ""

    # ------------------------------------------------------------ messages

    def start(self, to: int | None, outgoing: Sequence[Tensor], source: int | None, incoming: Sequence[Tensor]) -> Any:
        """Starts to send tensors to one rank and to receive tensors from another; ``finish`` waits for both.

        Args:
            to: the rank that receives ``outgoing``.
            outgoing: contiguous tensors.
            source: the rank that sends ``incoming``.
            incoming: where they are written.
        """
        messages = [(True, to, x) for x in outgoing] + [(False, source, x) for x in incoming]
        return self.post([(sends, rank, x) for sends, rank, x in messages if rank is not None])

    def exchange(self, outgoing: Sequence[Tensor | None], incoming: Sequence[Tensor | None]) -> None:
        """Sends a tensor to each other rank and receives one from each.

        Args:
            outgoing: for each rank the tensor that is sent to it; None or an empty tensor to send nothing.
            incoming: for each rank the tensor that its message is written to, likewise.
        """
        messages = []
        for step in range(1, self.size):  # in each step every rank has another partner
            to, source = (self.rank + step) % self.size, (self.rank - step) % self.size
            messages += [(True, to, outgoing[to]), (False, source, incoming[source])]
        self.finish(self.post([(sends, rank, x) for sends, rank, x in messages if x is not None]))

    def all_of(self, x: Tensor) -> list[Tensor]:
        """Returns the tensors of all ranks, in the order of the ranks; all have the same shape.

        Args:
            x: this rank's, contiguous.
        """
        each = [torch.empty_like(x) for _ in range(self.size)]
        self.exchange([x] * self.size, each)
        each[self.rank] = x
        return each

    def post(self, messages: list[tuple[bool, int, Tensor]]) -> Any:
        """Starts to send and receive tensors; ``finish`` waits for all of them.

        Args:
            messages: for each message whether it is sent, the other rank, and the tensor. Two ranks must list their
                messages to one another in the same order.
        """
        messages = [one for one in messages if one[2].numel()]
        self.exchanges += 1
        self._open += 1
        # by gloo, messages of calls that differ do not meet, after an error on one rank; nccl has no tags
        tag = 2 * (self.exchanges % TAGS) + (self.place is not None and self.place.backward)
        operations = []
        for sends, rank, x in messages:
            self.sent += x.nbytes if sends else 0
            operation = dist.isend if sends else dist.irecv
            operations.append(dist.P2POp(operation, x.detach(), self.ranks[rank], self._own, tag))
        try:
            return messages, dist.batch_isend_irecv(operations) if operations else []
        except RuntimeError as error:
            raise self._lost([rank for _, rank, _ in messages], error) from error

    def finish(self, started: Any) -> None:
        """Waits for the transfers that ``start`` has begun.

        Raises:
            RuntimeError: if another process has died or does not answer within the timeout of the group.
        """
        messages, works = started
        for number, work in enumerate(works):
            # nccl has one work for all messages
            ranks = [messages[number][1]] if len(works) == len(messages) else [rank for _, rank, _ in messages]
            try:
                work.wait()
            except RuntimeError as error:
                raise self._lost(ranks, error) from error
        self._open -= 1

    def _lost(self, ranks: list[int], error: RuntimeError) -> LostError:
        others = ", ".join(str(self.ranks[rank]) for rank in sorted(set(ranks)))
        # without the line of gloo's source and gloo's guess at the cause
        cause = re.sub(r"^\[\S+\] ", "", str(error).partition("\n")[0]).partition(" This is typically")[0]
        told = self.told(causes=False)
        return of_others(
            LostError(
                f"process {self.ranks[self.rank]} lost process {others} in {self.place or 'an exchange of a sequence'}"
                f": {cause}{told and '; '}{told}"
            )
        )


class LostError(RuntimeError):
    """Raised if another process has died or has not answered within the timeout of the group."""


E = TypeVar("E", bound=Exception)


def of_others(error: E) -> E:
    """Marks an error whose cause is in another process; the others should be told that cause."""
    error._headway_of_others = True  # type: ignore[attr-defined]
    return error


# ---------------------------------------------------------------- backward passes


def once(backward: Callable[..., tuple[Tensor | None, ...]]) -> Callable[..., tuple[Tensor | None, ...]]:
    """Wraps the backward pass of a Function, so that differentiating its gradients again raises an error.

    If the gradient of the output is a constant, torch's ``once_differentiable`` would treat them as constants without
    an error.

    Args:
        backward: the backward pass, which is computed without a graph.
    """

    @wraps(backward)
    def wrapped(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        if any(x is not None and is_batched_by_autograd(x) for x in gradients):
            raise HeadwayError(
                "gradients of attention over several processes cannot be batched: leave is_grads_batched out"
            )
        with torch.no_grad():
            found = backward(ctx, *gradients)
        if not torch.is_grad_enabled():
            return found
        marked = iter(_Once.apply(torch.zeros((), requires_grad=True), *(x for x in found if x is not None)))
        return tuple([None if x is None else next(marked) for x in found])

    return wrapped


class _Once(torch.autograd.Function):
    """Gradients that refuse to be differentiated."""

    @staticmethod
    def forward(ctx: Any, mark: Tensor, *gradients: Tensor) -> tuple[Tensor, ...]:
        return tuple([x.view_as(x) for x in gradients])

    @staticmethod
    def backward(ctx: Any, *unused: Tensor) -> tuple[Tensor | None, ...]:
        raise HeadwayError(
            "attention over several processes has no second derivatives: leave create_graph out, or call the model on "
            "the whole sequence in one process"
        )


def tokens_in(runs: Runs) -> int:
    """Returns the number of tokens of some runs.

    Args:
        runs: the runs.
    """
    return sum(stop - start for start, stop in runs)


# ---------------------------------------------------------------- shards of a tensor, to and from the whole


def _local(runs: Runs) -> list[tuple[int, int, int]]:
    """Returns (start among the tokens of the shard, start in the stream, tokens) of each run."""
    found, at = [], 0
    for start, stop in runs:
        found.append((at, start, stop - start))
        at += stop - start
    return found


def _write(whole: Tensor, part: Tensor, runs: Runs, dim: int) -> None:
    for at, start, count in _local(runs):
        whole.narrow(dim, start, count).copy_(part.narrow(dim, at, count))


def _read(whole: Tensor, runs: Runs, dim: int) -> Tensor:
    parts = [whole.narrow(dim, start, count) for _, start, count in _local(runs)]
    return (parts[0] if len(parts) == 1 else torch.cat(parts, dim)).contiguous()


def _like(x: Tensor, dim: int, size: int) -> Tensor:
    return x.new_empty(*x.shape[:dim], size, *x.shape[dim + 1 :])


def gathered(x: Tensor, group: Group, layout: Sequence[Runs], dim: int) -> Tensor:
    """Returns the whole tensor whose tokens are divided among processes, in the order of the stream.

    Its gradient is the sum of those of all processes.

    Args:
        x: this rank's part.
        group: the processes.
        layout: the tokens of each rank.
        dim: the dimension of the tokens.
    """
    whole: Tensor = _Gathered.apply(x, group, layout, dim % x.ndim) if group.size > 1 else x
    return whole


class _Gathered(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group, layout: Sequence[Runs], dim: int) -> Tensor:
        ctx.group, ctx.layout, ctx.dim, ctx.place = group, layout, dim, group.place
        own = x.detach().contiguous()
        parts = [_like(x, dim, tokens_in(runs)) for runs in layout]
        group.exchange([own] * group.size, parts)
        parts[group.rank] = own
        whole = _like(x, dim, sum(map(tokens_in, layout)))
        for part, runs in zip(parts, layout, strict=True):
            _write(whole, part, runs, dim)
        return whole

    @staticmethod
    @once
    def backward(ctx: Any, d_whole: Tensor) -> tuple[Tensor | None, ...]:
        group, layout, dim = ctx.group, ctx.layout, ctx.dim
        outgoing = [_read(d_whole, runs, dim) for runs in layout]
        own = outgoing[group.rank]
        parts = [torch.empty_like(own) for _ in layout]
        with group.during(backward_of(ctx.place)):
            group.exchange(outgoing, parts)
        parts[group.rank] = own
        del outgoing, d_whole
        total = parts[0].to(torch.promote_types(own.dtype, torch.float32), copy=True)
        for part in parts[1:]:
            total.add_(part)
        return total.to(own.dtype), None, None, None


def summed_over(group: Group, x: Tensor) -> Tensor:
    """Returns the sum of a tensor over the processes, in the order of the ranks.

    Its gradient is the sum of those of all processes.

    Args:
        group: the processes.
        x: this rank's, of the same shape on each.
    """
    return gathered(x[None], group, [((rank, rank + 1),) for rank in range(group.size)], 0).sum(0)


def bytes_of_gathered(of_one: int, counts: Sequence[int], rank: int) -> tuple[int, int]:
    """Returns the bytes that a rank sends to gather a whole tensor, and in the backward pass of that.

    Args:
        of_one: the bytes of one token.
        counts: the tokens of each rank.
        rank: the rank.
    """
    return (len(counts) - 1) * counts[rank] * of_one, (sum(counts) - counts[rank]) * of_one


def bytes_by_heads(of_one: int, counts: Sequence[int], rank: int) -> tuple[int, int]:
    """Returns the bytes that a rank sends, forward and backward, if each gets all tokens of its share of the heads.

    Args:
        of_one: the bytes of one token of all heads, which divide by the ranks.
        counts: the tokens of each rank.
        rank: the rank.
    """
    share = of_one // len(counts)
    return (len(counts) - 1) * counts[rank] * share, (sum(counts) - counts[rank]) * share


def whole_by_heads(x: Tensor, group: Group, layout: Sequence[Runs], heads: int, tokens: int) -> Tensor:
    """Turns this rank's tokens of all heads into all tokens of this rank's share of the heads.

    Args:
        x: this rank's tokens.
        group: the processes, whose number divides the heads.
        layout: the tokens of each rank.
        heads: the dimension of the heads.
        tokens: that of the tokens.
    """
    out: Tensor = _Exchanged.apply(x, group, layout, heads, tokens, True)
    return out


def shard_by_tokens(x: Tensor, group: Group, layout: Sequence[Runs], heads: int, tokens: int) -> Tensor:
    """Returns this rank's tokens of all heads: the inverse of ``whole_by_heads``, which has the same arguments."""
    out: Tensor = _Exchanged.apply(x, group, layout, heads, tokens, False)
    return out


class _Exchanged(torch.autograd.Function):
    """All-to-all between heads and tokens; the gradient of each direction is the other direction."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, group: Group, layout: Sequence[Runs], heads: int, tokens: int, to_whole: bool
    ) -> Tensor:
        ctx.arguments = group, layout, heads, tokens
        ctx.to_whole, ctx.place = to_whole, group.place
        return (_to_whole if to_whole else _to_shard)(x.detach(), *ctx.arguments)

    @staticmethod
    @once
    def backward(ctx: Any, d: Tensor) -> tuple[Tensor | None, ...]:
        with ctx.arguments[0].during(backward_of(ctx.place)):
            d = (_to_shard if ctx.to_whole else _to_whole)(d, *ctx.arguments)
        return d, None, None, None, None, None


def _to_whole(x: Tensor, group: Group, layout: Sequence[Runs], heads: int, tokens: int) -> Tensor:
    outgoing = [part.contiguous() for part in x.chunk(group.size, heads)]
    own = outgoing[group.rank]
    parts = [_like(own, tokens, tokens_in(runs)) for runs in layout]
    group.exchange(outgoing, parts)
    parts[group.rank] = own
    whole = _like(own, tokens, sum(map(tokens_in, layout)))
    for part, runs in zip(parts, layout, strict=True):
        _write(whole, part, runs, tokens)
    return whole


def _to_shard(x: Tensor, group: Group, layout: Sequence[Runs], heads: int, tokens: int) -> Tensor:
    outgoing = [_read(x, runs, tokens) for runs in layout]
    own = outgoing[group.rank]
    parts = [torch.empty_like(own) for _ in layout]
    group.exchange(outgoing, parts)
    parts[group.rank] = own
    return torch.cat(parts, heads)


def same_seed(group: Group, device: torch.device) -> int:
    """Returns the number drawn from the generator of the first rank; every rank draws one.

    Args:
        group: the processes.
        device: the device of the call.
    """
    drawn = torch.randint(0, 1 << 62, (1,), device=group.device or "cpu")
    first = drawn.clone()
    outgoing = [drawn if group.rank == 0 else None] * group.size
    group.exchange(outgoing, [first if rank == 0 else None for rank in range(group.size)])
    return int(first.item())
