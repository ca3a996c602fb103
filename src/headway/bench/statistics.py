"""Statistics of attention as sides of a case: during attention, alone, and from weights that torch stores."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import chain, pairwise

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..inspection import Statistics, statistics_of
from ..inspection._run import Wanted
from ..inspection.statistics import STATISTICS, Classes, Distances, Statistic, TopKeys
from ..kernels import KERNELS, Call, Kernel

ONE_PASS = (
    *("entropy", "visible", "largest", "previous", "current", "next", "first", "sink"),
    *("distance", "distances", "classes"),
)
"""The statistics of each query that need no list of keys; one pass over the keys gives all of them."""
RECEIVED, TOP, POOLED = "received", "top_keys", "pooled_map"
COMPARED = (*ONE_PASS, RECEIVED)
"""The statistics that are computed without attention, too."""

ALL = "with all of one pass"
ALONE = "statistics alone"
RECEIVED_ALONE = "received alone"
MATERIALIZED = "torch, materialized weights"

CLASSES, COUNT = 5, 8
"""The classes of tokens, and the keys of ``TopKeys``."""

Runs = dict[str, Callable[[], list[Tensor]]]
"""Functions that run each side and return what it computed, without the slots of keys."""


def beside(name: str) -> str:
    """Returns the side that computes one statistic in the pass of attention."""
    return f"with {name}"


def all_statistics(m: int) -> dict[str, Statistic]:
    """Returns every statistic by its name, with random classes of tokens that are the same in every process."""
    labels = torch.randint(CLASSES, (m,), generator=torch.Generator().manual_seed(0))
    given = {
        "classes": Classes(labels, tuple(f"class {i}" for i in range(CLASSES))),
        TOP: TopKeys(min(COUNT, m)),
    }
    return {name: given.get(name) or STATISTICS[name]() for name in STATISTICS}


def numbers(values_by_name: Statistics) -> list[Tensor]:
    """Returns the tensors of statistics, without the slots of keys, which two sides may choose differently."""
    values = (values_by_name[name] for name in values_by_name)
    return [x for value in values for x in ([value] if isinstance(value, Tensor) else _weights_among(value))]


def _weights_among(value: Iterable[Tensor]) -> list[Tensor]:
    return [x for x in value if x.is_floating_point()]


# ---------------------------------------------------------------- headway's sides


def attend(call: Call, statistics: Iterable[Statistic], kernel: Kernel) -> tuple[Tensor, Statistics]:
    """Computes attention without padding, and statistics of it in the same pass, as ``statistics_of`` returns them.

    The kernel is one that ``reduces_as_it_runs``.
    """
    wanted = Wanted(call, list(statistics), None)
    out, values = kernel.run_and_reduce(call, wanted.reductions, wanted.queries)
    return out, wanted.found(values)


def headway_sides(made: Callable[[], Call], kernel: str) -> Runs:
    """Returns the sides of headway; each makes its call, but the kernel is chosen beforehand."""
    first = made()
    known, chosen = all_statistics(first.k.shape[2]), KERNELS[kernel]

    def in_the_pass(*names: str) -> Callable[[], list[Tensor]]:
        def run() -> list[Tensor]:
            with torch.no_grad():
                out, values = attend(made(), [known[name] for name in names], chosen)
            return [out, *numbers(values)]

        return run

    def alone(*names: str) -> Callable[[], list[Tensor]]:
        return lambda: numbers(statistics_of(made(), [known[name] for name in names], kernel=kernel))

    runs = {ALONE: alone(*COMPARED), RECEIVED_ALONE: alone(RECEIVED)}
    with torch.no_grad():
        together = chosen.reduces_as_it_runs(first)
    if together:
        runs[ALL] = in_the_pass(*ONE_PASS)
        runs |= {beside(name): in_the_pass(name) for name in (*COMPARED, TOP, POOLED)}
    return runs


# ---------------------------------------------------------------- torch's side


class Materialized:
    """Statistics from the weights of a call without sinks as one tensor, in ordinary operations of torch.

    Some data is prepared before the timing: rotated q and k, the mask, distances, classes, and in ``bias`` the biases
    of terms with the mask, or None without terms.
    """

    def __init__(self, call: Call, bias: Tensor | None) -> None:
        n, m = call.q.shape[2], call.k.shape[2]
        rotated = KERNELS["reference"].rotated(call)
        self.q, self.k, self.scale, self.bias = rotated.q, rotated.k, call.scale, bias
        seen = torch.ones(1, 1, n, m, dtype=torch.bool)
        if call.mask is not None:
            seen = call.mask.allowed(call.q_coordinates, call.k_coordinates)
        self.seen, self.hidden = seen, ~seen
        slot = torch.arange(n)
        self.distance = (torch.arange(m) - slot[:, None]).abs().float()
        known = all_statistics(m)
        distances, classes, pooled = known["distances"], known["classes"], known[POOLED].reductions(call)[0]
        assert isinstance(distances, Distances)
        assert isinstance(classes, Classes)
        # keys before each edge of a query
        self.before = (slot[:, None] + torch.tensor(distances.edges)).clamp(0, m).expand(*call.q.shape[:3], -1)
        self.one_hot = torch.nn.functional.one_hot(classes.labels, classes.count).float()
        self.count = known[TOP].reductions(call)[0].count  # type: ignore[attr-defined]
        self.rows, self.columns = _bounds(pooled.rows, n), _bounds(pooled.columns, m)  # type: ignore[attr-defined]

    def weights(self) -> Tensor:
        """Returns the weights, [batch, heads, n, m] in float32, of scores in q's dtype."""
        scores = (self.q * self.scale) @ self.k.mT
        if self.bias is None:
            scores.masked_fill_(self.hidden, -torch.inf)
        else:
            scores += self.bias
        return scores.softmax(-1, dtype=torch.float32)

    def of(self, name: str, weights: Tensor) -> list[Tensor]:
        """Returns a statistic of the weights as ``numbers`` does."""
        values = COMPUTED[name](self, weights)
        return [values] if isinstance(values, Tensor) else list(values)

    def run(self) -> list[Tensor]:
        """Returns the statistics ``COMPARED`` from weights that are computed once."""
        with torch.no_grad():
            weights = self.weights()
            return [x for name in COMPARED for x in self.of(name, weights)]

    def expected(self, out: list[Tensor], sides: Iterable[str]) -> dict[str, list[Tensor]]:
        """Returns what the sides of headway should compute."""
        with torch.no_grad():
            weights = self.weights()
            by_name = {name: self.of(name, weights) for name in COMPUTED}
        values_of = {beside(name): [*out, *values] for name, values in by_name.items()}
        values_of[ALL] = [*out, *chain(*(by_name[name] for name in ONE_PASS))]
        values_of[RECEIVED_ALONE] = by_name[RECEIVED]
        values_of[ALONE] = [*chain(*(by_name[name] for name in COMPARED))]
        return {name: values_of[name] for name in sides if name in values_of}


def _bounds(cells: int, slots: int) -> list[tuple[int, int]]:
    """The first slot of each cell and the one after its last: slot i is in cell ⌊i·cells/slots⌋."""
    return list(pairwise(-(-cell * slots // cells) for cell in range(cells + 1)))


def _neighbour(weights: Tensor, offset: int) -> Tensor:
    return pad(weights.diagonal(offset, -2, -1), (max(-offset, 0), max(offset, 0)))


def _by_distance(given: Materialized, weights: Tensor) -> Tensor:
    """Uses differences of running sums, which is faster in torch than scatter_add or a mask for each range."""
    running = weights.cumsum(-1)
    sums = running.gather(-1, (given.before - 1).clamp(min=0)).masked_fill_(given.before == 0, 0)
    return torch.cat([sums[..., :1], sums.diff(), running[..., -1:] - sums[..., -1:]], -1)


def _pooled(given: Materialized, weights: Tensor) -> tuple[Tensor, Tensor]:
    columns = torch.stack([weights[..., a:b].sum(-1) for a, b in given.columns], -1)
    peaks = torch.stack([weights[..., a:b].amax(-1) for a, b in given.columns], -1)
    mass = torch.stack([columns[:, :, a:b].mean(2) for a, b in given.rows], 2)
    return mass, torch.stack([peaks[:, :, a:b].amax(2) for a, b in given.rows], 2)


def _top(given: Materialized, weights: Tensor) -> tuple[Tensor, Tensor]:
    top = weights.topk(given.count).values
    return top, top[..., -1]


COMPUTED: dict[str, Callable[[Materialized, Tensor], Tensor | tuple[Tensor, ...]]] = {
    "entropy": lambda given, weights: torch.special.entr(weights).sum(-1),
    "visible": lambda given, weights: given.seen.sum(-1).expand(weights.shape[:-1]),
    "largest": lambda given, weights: weights.max(-1)[0],
    "previous": lambda given, weights: _neighbour(weights, -1),
    "current": lambda given, weights: _neighbour(weights, 0),
    "next": lambda given, weights: _neighbour(weights, 1),
    "first": lambda given, weights: weights[..., 0],
    "sink": lambda given, weights: weights.new_zeros(weights.shape[:-1]),
    "distance": lambda given, weights: (weights * given.distance).sum(-1),
    "distances": _by_distance,
    "classes": lambda given, weights: weights @ given.one_hot,
    RECEIVED: lambda given, weights: weights.sum(-2),
    TOP: _top,
    POOLED: _pooled,
}
"""How each statistic is computed from weights."""
