"""What tokens of a shard need from earlier tokens: sums over all of them, and the few before each run."""

from __future__ import annotations

import torch
from torch import Tensor

from ..coordinates import Coordinates, Shard
from ._group import bytes_of_gathered, gathered
from ._shards import Shards


class GroupScans:
    """Scans over the stream of some shards; every rank makes the same scans in the same order.

    Args:
        shards: which tokens each rank has.
    """

    def __init__(self, shards: Shards) -> None:
        self.shards = shards

    def summed(self, steps: Tensor) -> Tensor:
        """Returns the sums of steps [batch, n, …] up to and including each token, over all tokens of the stream."""
        runs = steps.split([stop - start for start, stop in self.shards.runs], dim=1)
        totals = torch.stack([run.sum(1) for run in runs], dim=1)
        before, order = self._of_runs(totals)
        # the 0 of the first run comes from the same tensor, so that every rank has this node in the graph
        sums = torch.cat([torch.zeros_like(before[:, :1]), before.cumsum(1)], dim=1)
        found = [run.cumsum(1) + sums[:, number : number + 1] for run, number in zip(runs, order, strict=True)]
        return torch.cat(found, dim=1)

    def preceding(self, x: Tensor, count: int) -> list[Tensor]:
        """Returns x [batch, n, …] for the ``count`` tokens before each run of the shard; 0 before the first token."""
        if not count:
            return [x[:, :0] for _ in self.shards.runs]
        runs = x.split([stop - start for start, stop in self.shards.runs], dim=1)
        tails = torch.stack([_last(run, count) for run in runs], dim=1)
        tails, order = self._of_runs(tails)
        every = sorted(run for runs in self.shards.layout for run in runs)
        found = []
        for own in order:
            start = every[own][0]
            pieces, missing = [tails[:, own, :0]], count  # an empty piece, for the node in the graph
            for number in reversed(range(own)):  # the tokens before, from the nearest run on
                here = min(missing, every[number][1] - every[number][0])
                pieces.insert(0, tails[:, number, count - here :])
                missing -= here
            zeros = x.new_zeros(x.shape[0], count - min(count, start), *x.shape[2:])
            found.append(torch.cat([zeros, *pieces], dim=1))
        return found

    def _of_runs(self, x: Tensor) -> tuple[Tensor, list[int]]:
        """Returns x [batch, runs, …] of all ranks, in the order of the stream, and the numbers of this rank's runs."""
        layout = self.shards.layout
        order = {run: number for number, run in enumerate(sorted(run for runs in layout for run in runs))}
        numbers = [tuple((order[run], order[run] + 1) for run in runs) for runs in layout]
        return gathered(x, self.shards.group, numbers, 1), [order[run] for run in self.shards.runs]


def _last(run: Tensor, count: int) -> Tensor:
    """The last ``count`` tokens of a run, after zeros if it has fewer."""
    missing = count - run.shape[1]
    if missing <= 0:
        return run[:, -count:]
    return torch.cat([run.new_zeros(run.shape[0], missing, *run.shape[2:]), run], dim=1)


class ScanBytes:
    """Scans a few tokens of a shard. It counts the bytes that a scan of all tokens would send, and sends nothing.

    Args:
        shards: which tokens each rank has.

    Attributes:
        forward: the bytes that this rank sends in the forward pass.
        backward: those of the backward pass.
    """

    def __init__(self, shards: Shards) -> None:
        self.shards, self.forward, self.backward = shards, 0, 0

    def side(self, at: Coordinates) -> Coordinates:
        """Returns a few tokens as if they were a shard that is the whole stream."""
        return at._with(shard=Shard(at, ((0, at.index.shape[1]),), at, self))

    def summed(self, steps: Tensor) -> Tensor:
        self._count(steps[:, 0].nbytes, steps.requires_grad)
        return steps.cumsum(1)

    def preceding(self, x: Tensor, count: int) -> list[Tensor]:
        if count:
            self._count(count * x[:, 0].nbytes, x.requires_grad)
        return [x.new_zeros(x.shape[0], count, *x.shape[2:])]

    def _count(self, of_run: int, differentiable: bool) -> None:
        group = self.shards.group
        forward, backward = bytes_of_gathered(of_run, list(map(len, self.shards.layout)), group.rank)
        self.forward += forward
        self.backward += backward * differentiable
