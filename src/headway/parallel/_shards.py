"""Shards: which tokens of a sequence each process has."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from ..coordinates import Coordinates
from ..errors import HeadwayError
from ..masks import AnyMask, as_mask
from ._group import Group, Place, Runs, gathered, tokens_in
from ._sight import pairs_of

CHUNKS = 4
"""The chunks of a rank among which ``Shards.balanced`` chooses."""
KEPT = 8
"""The most facts about calls that shards keep."""

Mesh = DeviceMesh | dist.ProcessGroup | None
Fact = TypeVar("Fact")


class Shards:
    """Which tokens of a sequence each process of a group has, as runs of slots.

        mesh = init_device_mesh("cuda", (2, 8), mesh_dim_names=("data", "sequence"))
        shards = Shards.zigzag(32768, mesh["sequence"])
        ids, targets, at = shards.take(ids, targets)         # this rank's tokens, and where they are
        whole = shards.join(logits, dim=1)                   # the whole sequence again

    Every process makes the shards of a sequence in the same way. ``contiguous``, ``zigzag`` and ``balanced`` make them
    for any number of tokens; it need not be a multiple of the number of processes.

    Args:
        layout: for each rank of the group its tokens, as ascending ranges (start, stop). All of them together cover 0 …
            n − 1.
        mesh: the processes: a ``DeviceMesh`` of one dimension, a process group, or None for this process alone.

    Attributes:
        layout: the runs of every rank.
        group: the processes, with a communicator of their own.

    Raises:
        HeadwayError: if the layout has another number of ranks, its runs do not cover every token once, or a rank has
            none.
    """

    def __init__(self, layout: Sequence[Sequence[tuple[int, int]]], mesh: Mesh) -> None:
        self.group = Group.of(mesh)
        self.layout: tuple[Runs, ...] = tuple(tuple((int(a), int(b)) for a, b in runs) for runs in layout)
        if len(self.layout) != self.group.size:
            raise HeadwayError(
                f"layout has the runs of {len(self.layout)} ranks but the group has {self.group.size}: give one for "
                "each rank"
            )
        every = sorted(run for runs in self.layout for run in runs)
        ends = [0, *(stop for _, stop in every)]
        if any(start != end for (start, _), end in zip(every, ends, strict=False)):
            raise HeadwayError(f"layout has the runs {every!s:.80}: give every token from 0 on once")
        if any(not runs or any(stop == start for start, stop in runs) for runs in self.layout):
            raise HeadwayError("layout has a rank or a run without tokens: give each at least one")
        if any(list(runs) != sorted(runs) for runs in self.layout) or any(stop < start for start, stop in every):
            raise HeadwayError("layout has runs that do not rise: give the runs of a rank in the order of the tokens")
        self._facts: OrderedDict[Hashable, tuple[Any, Any]] = OrderedDict()

    # ------------------------------------------------------------ layouts

    @classmethod
    def contiguous(cls, n: int, mesh: Mesh) -> Shards:
        """Shards of consecutive tokens, n/R for each of R processes.

        Args:
            n: the number of tokens.
            mesh: the processes.

        Raises:
            HeadwayError: for fewer tokens than processes.
        """
        size = Group.of(mesh).size
        _need_tokens(n, size)
        return cls([[run] for run in _ranges(n, size)], mesh)

    @classmethod
    def zigzag(cls, n: int, mesh: Mesh) -> Shards:
        """Shards that balance a causal mask: of 2R chunks, rank r has the chunks r and 2R − 1 − r.

        Args:
            n: the number of tokens.
            mesh: the processes.

        Raises:
            HeadwayError: for fewer tokens than chunks.
        """
        size = Group.of(mesh).size
        if size == 1:
            return cls.contiguous(n, mesh)
        _need_tokens(n, 2 * size)
        chunks = _ranges(n, 2 * size)
        return cls([_joined([chunks[rank], chunks[-1 - rank]]) for rank in range(size)], mesh)

    @classmethod
    def balanced(cls, lengths: Sequence[int], mask: AnyMask, mesh: Mesh) -> Shards:
        """Shards of packed documents, with equally many tokens and about equally many visible pairs on each process.

        Each chunk of the stream, in descending order of pairs, goes to the rank that has the fewest pairs so far.

        Args:
            lengths: the tokens of each document.
            mask: the mask of the calls. Pairs are balanced only for masks that are intervals of keys.
            mesh: the processes.

        Raises:
            HeadwayError: for fewer tokens than chunks.
        """
        size = Group.of(mesh).size
        at = Coordinates.packed(list(lengths), device="cpu")
        n = at.index.shape[1]
        if size == 1:
            return cls.contiguous(n, mesh)
        count = CHUNKS * size
        _need_tokens(n, count)
        chunks = _ranges(n, count)
        pairs = pairs_of(as_mask(mask), at)
        cost = [sum(pairs[start:stop]) for start, stop in chunks]
        held: list[list[tuple[int, int]]] = [[] for _ in range(size)]
        total = [0] * size
        for number in sorted(range(count), key=lambda one: (-cost[one], one)):
            rank = min((r for r in range(size) if len(held[r]) < CHUNKS), key=lambda r: (total[r], r))
            held[rank].append(chunks[number])
            total[rank] += cost[number]
        return cls([_joined(runs) for runs in held], mesh)

    # ------------------------------------------------------------ properties

    @property
    def runs(self) -> Runs:
        """This rank's tokens, as ascending ranges (start, stop)."""
        return self.layout[self.group.rank]

    @property
    def length(self) -> int:
        """The number of this rank's tokens."""
        return tokens_in(self.runs)

    @property
    def whole(self) -> int:
        """The number of all tokens."""
        return sum(map(tokens_in, self.layout))

    def __repr__(self) -> str:
        runs = ", ".join(f"{start} … {stop - 1}" for start, stop in self.runs)
        return (
            f"Shards({self.whole} tokens on {self.group.size} processes; rank {self.group.rank} has "
            f"{self.length}: {runs})"
        )

    # ------------------------------------------------------------ from the whole and back

    def take(self, *tensors: Tensor, dim: int = 1, coordinates: Coordinates | None = None) -> tuple[Any, ...]:
        """Returns this rank's tokens of tensors of the whole sequence, and where these tokens are.

            ids, targets, at = shards.take(ids, targets, coordinates=Coordinates.packed(lengths))

        If targets are the next tokens, shift them before you take them.

        Args:
            *tensors: tensors of the whole sequence.
            dim: the dimension of the tokens.
            coordinates: where all tokens are. Default: 0 … n − 1.

        Returns:
            The tensors of this rank's tokens, followed by their ``Coordinates``, which know the whole sequence.
            ``headway.parallel.attention`` takes these; ``headway.attention`` refuses them.

        Raises:
            HeadwayError: if a tensor or the coordinates have another number of tokens.
        """
        at = self.span(tensors[0].device if tensors else None) if coordinates is None else coordinates
        if at.index.shape[1] != self.whole:
            raise HeadwayError(f"coordinates are of {at.index.shape[1]} tokens but the shards of {self.whole}")
        return (*[self._part(x, dim) for x in tensors], at if self.group.size == 1 else at.take(self.runs))

    def _part(self, x: Tensor, dim: int) -> Tensor:
        if x.shape[dim] != self.whole:
            raise HeadwayError(
                f"a tensor of shape {tuple(x.shape)} has {x.shape[dim]} tokens along dimension {dim} but the shards "
                f"are of {self.whole}: give the whole sequence, and dim="
            )
        parts = [x.narrow(dim, start, stop - start) for start, stop in self.runs]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim)

    def join(self, x: Tensor, dim: int = 1) -> Tensor:
        """Joins the tokens of all processes to the whole tensor, in order, on every process.

        Gradients go back to the process that has the token, summed over all processes.

        Args:
            x: this rank's tokens.
            dim: the dimension of the tokens.

        Raises:
            HeadwayError: if x has another number of tokens.
        """
        self.need(x, dim, "x")
        with self.group.during(Place("Shards.join")):
            return gathered(x, self.group, self.layout, dim)

    def sum(self, x: Tensor) -> Tensor:
        """Returns the sum of a tensor over all processes, in the order of the ranks: the same bits on each.

        It has no gradient.

        Args:
            x: this process's, of the same shape on each.
        """
        if self.group.size == 1:
            return x
        first, *others = self.group.all_of(x.detach().contiguous())
        return sum(others, start=first)

    def need(self, x: Tensor, dim: int, name: str) -> None:
        """Checks that a tensor has this rank's tokens.

        Args:
            x: the tensor.
            dim: the dimension of the tokens.
            name: its name in messages.

        Raises:
            HeadwayError: if not.
        """
        if x.shape[dim] != self.length:
            raise HeadwayError(
                f"{name} has {x.shape[dim]} tokens but rank {self.group.rank} has {self.length} of {self.whole}: give "
                "the result of Shards.take"
            )

    def span(self, device: torch.device | str | None = None) -> Coordinates:
        """Returns the coordinates 0 … n − 1 of the whole sequence, made only once.

        Args:
            device: where they are.
        """
        device = torch.device("cpu") if device is None else torch.device(device)
        with torch.inference_mode(False):  # an inference tensor could not be saved for a backward pass later
            return self.fact(("span", device), (), lambda: Coordinates.span(self.whole, device=device))

    def fact(self, key: Hashable, about: Any, compute: Callable[[], Fact]) -> Fact:
        """Returns a fact about calls on these shards that is computed once for the objects that it is about.

        Args:
            key: the key of the fact.
            about: the objects whose identity is in the key; they are kept alive.
            compute: computes it.
        """
        found = self._facts.get(key)
        if found is None:
            found = self._facts[key] = about, compute()
            if len(self._facts) > KEPT:
                self._facts.popitem(last=False)
        else:
            self._facts.move_to_end(key)
        fact: Fact = found[1]
        return fact

    def attend(self, method: str = "auto") -> Callable[..., Tensor]:
        """Returns ``attention`` on these shards, for a layer whose attention function can be given.

        Args:
            method: the method, as for ``headway.parallel.attention``.
        """
        from ._attention import attention  # here, since it takes shards

        return partial(attention, shards=self, method=method)


def _need_tokens(n: int, least: int) -> None:
    if n < least:
        raise HeadwayError(f"there are {n} tokens for {least} chunks: give at least one for each")


def _ranges(n: int, count: int) -> list[tuple[int, int]]:
    """The ranges of n tokens in ``count`` parts that differ by at most one token; the first parts are longer."""
    short, longer = divmod(n, count)
    ends = [0]
    for number in range(count):
        ends.append(ends[-1] + short + (number < longer))
    return list(pairwise(ends))


def _joined(runs: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Returns the runs in order, with adjacent runs joined."""
    joined: list[tuple[int, int]] = []
    for start, stop in sorted(runs):
        if joined and joined[-1][1] == start:
            joined[-1] = joined[-1][0], stop
        else:
            joined.append((start, stop))
    return joined
