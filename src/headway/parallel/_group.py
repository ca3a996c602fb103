"""A group of processes, and the few exchanges that shards of a sequence need.

Every exchange that autograd records has the same node on every process, so that all of them take part in its backward
pass. Sums are in the order of the ranks: the same bits in every run.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from ..errors import HeadwayError

Runs = tuple[tuple[int, int], ...]
"""Tokens of a stream, as rising ranges (start, stop)."""


class Group:
    """The processes that share a sequence.

    Args:
        group: the process group; None for this process alone. In place of that of all processes, the group has one of
            its own, so that messages do not mix with those of data parallelism.

    Attributes:
        rank: the number of this process in the group.
        size: the number of processes.
        sent: the bytes that this process has sent to others, without those by which ranks agree on a call.
        agreed: signatures of calls on which all ranks are known to agree, where not each call is checked.
    """

    _made: dict[int, tuple[dist.ProcessGroup, Group]] = {}

    def __init__(self, group: dist.ProcessGroup | None) -> None:
        self.sent = 0
        self.agreed: set[tuple[int, int]] = set()
        self.rank, self.size = (0, 1) if group is None else (dist.get_rank(group), dist.get_world_size(group))
        if group is None or self.size == 1:
            self.ranks, self._own = [0], None
            return
        self.ranks = dist.get_process_group_ranks(group)
        # messages of a ring and of data parallelism must not mix, and the latter often has the group of all processes.
        # A smaller group is one of its own already: torch cannot make another one unless all processes take part.
        everyone = self.size == dist.get_world_size()
        self._own = dist.new_group(timeout=_timeout_of(group)) if everyone else group

    @staticmethod
    def of(mesh: DeviceMesh | dist.ProcessGroup | None) -> Group:
        """Returns the group of a mesh, the same for every use of it.

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
        known = Group._made.get(id(mesh))
        if known is None or known[0] is not mesh:
            known = Group._made[id(mesh)] = mesh, Group(mesh)
        return known[1]

    @property
    def device(self) -> torch.device | None:
        """The device whose tensors the group exchanges; None if it takes those of a CPU."""
        nccl = self._own is not None and "nccl" in str(dist.get_backend(self._own))
        return torch.device("cuda", torch.cuda.current_device()) if nccl else None

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
            outgoing: for each rank what is sent to it; None, or without numbers, for nothing.
            incoming: for each rank where what it sends is written, likewise.
        """
        messages = []
        for step in range(1, self.size):  # every rank meets another one in each step
            to, source = (self.rank + step) % self.size, (self.rank - step) % self.size
            messages += [(True, to, outgoing[to]), (False, source, incoming[source])]
        self.finish(self.post([(sends, rank, x) for sends, rank, x in messages if x is not None]))

    def all_of(self, x: Tensor) -> list[Tensor]:
        """Returns a tensor of each rank, in the order of the ranks, which all have one of its shape.

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
            messages: whether a tensor is sent, the other rank, and the tensor. Two ranks must name what they send one
                another in the same order.
        """
        messages = [one for one in messages if one[2].numel()]
        operations = []
        for sends, rank, x in messages:
            self.sent += x.nbytes if sends else 0
            operation = dist.isend if sends else dist.irecv
            operations.append(dist.P2POp(operation, x.detach(), self.ranks[rank], self._own))
        try:
            return messages, dist.batch_isend_irecv(operations) if operations else []
        except RuntimeError as error:
            raise self._lost([rank for _, rank, _ in messages], error) from error

    def finish(self, started: Any) -> None:
        """Waits for what ``start`` has started.

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

    def _lost(self, ranks: list[int], error: RuntimeError) -> RuntimeError:
        others = ", ".join(str(self.ranks[rank]) for rank in sorted(set(ranks)))
        cause = str(error).partition("\n")[0]
        return RuntimeError(
            f"process {self.ranks[self.rank]} lost process {others} while they shared the attention of a sequence: "
            f"{cause}"
        )


def _timeout_of(group: dist.ProcessGroup) -> timedelta | None:
    """The timeout of a group, which torch tells of its backends alone."""
    for name in ("cpu", "cuda"):
        try:
            found: timedelta = group._get_backend(torch.device(name)).options._timeout
        except (RuntimeError, AttributeError):
            continue
        return found
    return None


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
    """Returns the whole of a tensor whose tokens several processes share, in the order of the stream.

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
        ctx.group, ctx.layout, ctx.dim = group, layout, dim
        own = x.detach().contiguous()
        parts = [_like(x, dim, tokens_in(runs)) for runs in layout]
        group.exchange([own] * group.size, parts)
        parts[group.rank] = own
        whole = _like(x, dim, sum(map(tokens_in, layout)))
        for part, runs in zip(parts, layout, strict=True):
            _write(whole, part, runs, dim)
        return whole

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, d_whole: Tensor) -> tuple[Tensor | None, ...]:
        group, layout, dim = ctx.group, ctx.layout, ctx.dim
        outgoing = [_read(d_whole, runs, dim) for runs in layout]
        own = outgoing[group.rank]
        parts = [torch.empty_like(own) for _ in layout]
        group.exchange(outgoing, parts)
        parts[group.rank] = own
        total = parts[0].to(torch.promote_types(own.dtype, torch.float32))
        for part in parts[1:]:
            total = total + part
        return total.to(own.dtype), None, None, None


def whole_by_heads(x: Tensor, group: Group, layout: Sequence[Runs], heads: int, tokens: int) -> Tensor:
    """Returns all tokens of this rank's share of the heads, of a tensor with this rank's tokens of all heads.

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
    """All-to-all between heads and tokens; the gradient of either direction is the other one."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, group: Group, layout: Sequence[Runs], heads: int, tokens: int, to_whole: bool
    ) -> Tensor:
        ctx.arguments = group, layout, heads, tokens
        ctx.to_whole = to_whole
        return (_to_whole if to_whole else _to_shard)(x.detach(), *ctx.arguments)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, d: Tensor) -> tuple[Tensor | None, ...]:
        return (_to_shard if ctx.to_whole else _to_whole)(d, *ctx.arguments), None, None, None, None, None


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
    """Returns a number drawn from the generator of the first rank, where every rank draws one.

    Args:
        group: the processes.
        device: the device of the call.
    """
    drawn = torch.randint(0, 1 << 62, (1,), device=group.device or "cpu")
    first = drawn.clone()
    outgoing = [drawn if group.rank == 0 else None] * group.size
    group.exchange(outgoing, [first if rank == 0 else None for rank in range(group.size)])
    return int(first.item())
