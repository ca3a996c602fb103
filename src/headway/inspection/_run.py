"""Statistics of the weights of a call, in memory that grows with its tokens."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from typing_extensions import Unpack

from ..attention import _check_kernel, _takes_the_arguments_of_attention
from ..call import Arguments, make_call
from ..errors import HeadwayError, unknown
from ..kernels import KERNELS, Call, reduce
from ..reductions import VisibleKeys
from ._tokens import real_queries
from .statistics import STATISTICS, Statistic

if TYPE_CHECKING:
    from ..parallel import Shards


class Statistics:
    """Statistics of one call of attention, read by name: ``found.entropy`` or ``found["entropy"]``.

    Args:
        values: the value of each statistic by its name.
        statistics: the statistics, in the same order.
        counted: the queries that count, [batch, heads, n]: those that are not padding and see a key.
    """

    def __init__(self, values: dict[str, Any], statistics: Sequence[Statistic], counted: Tensor) -> None:
        self._values, self._statistics = values, tuple(statistics)
        self.counted = counted

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the statistics, in the order in which they were asked for."""
        return tuple(self._values)

    @property
    def left_out(self) -> Tensor:
        """The number of queries that do not count, [batch, heads]: they are padding or see no key."""
        return (~self.counted).sum(-1)

    def summary(self) -> dict[str, Tensor]:
        """Returns a few numbers for each head, [batch, heads] each, by the names of columns: mostly means.

        Raises:
            HeadwayError: if a class of ``Classes`` has the name of another column.
        """
        numbers: dict[str, Tensor] = {}
        for statistic in self._statistics:
            columns = statistic.summary(self._values[statistic.name], self.counted)
            refuse_twice(numbers, columns)
            numbers |= columns
        return numbers

    def __getitem__(self, name: str) -> Any:
        if name not in self._values:
            raise HeadwayError(f"{name!r} was not asked for: this holds {', '.join(self._values)}")
        return self._values[name]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in self._values:
            raise AttributeError(
                f"{name!r} was not asked for: this holds {', '.join(self.__dict__.get('_values', ()))}"
            )
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self._values})

    def __repr__(self) -> str:
        batch, heads, n = self.counted.shape
        return f"Statistics({', '.join(self._values)}; batch {batch}, {heads} heads, {n} queries)"


def refuse_twice(known: Iterable[str], columns: Iterable[str]) -> None:
    """Raises HeadwayError if a column has the name of a known one."""
    twice = next((name for name in columns if name in set(known)), None)
    if twice is not None:
        raise HeadwayError(f"there is a column {twice!r} already: give Classes other names")


@_takes_the_arguments_of_attention
def attention_statistics(
    q: Tensor,
    k: Tensor,
    v: Tensor | None = None,
    statistics: Sequence[str | Statistic] = ("entropy", "largest"),
    *,
    queries: Tensor | None = None,
    shards: Shards | None = None,
    kernel: str = "auto",
    **arguments: Unpack[Arguments],
) -> Statistics:
    """Computes statistics of the attention weights without holding them.

    The weights are those before dropout. Memory grows with n + m. No gradients reach the results.

        found = attention_statistics(q, k, statistics=("entropy", "received", TopKeys(4)))
        found.entropy          # [batch, heads, n]
        found.top_keys.keys    # [batch, heads, n, 4]

    Args:
        q: queries, as for ``attention``.
        k: keys.
        v: values; only their shape is read. Default: as k.
        statistics: names of ``headway.inspection.STATISTICS``, or statistics such as ``TopKeys(4)``.
        queries: the queries that count, [n] or [batch, n] bool, True for those that do. Default: all but padding.
            Padding is known from padded ``Coordinates``, and from a ``masks.Padding`` if the queries are the last of
            the keys or those of ``shards``. Queries that see no key never count.
        shards: which tokens each of several processes has, as for ``headway.parallel.attention``. q, k, v and queries
            are then this process's, and so are the results of each query. Every process makes the same call and gathers
            all keys. Sums over queries, such as ``received``, are those of all processes.
        kernel: "auto", "cpu" or "reference". A named kernel never falls back to another.
        **arguments: the other arguments of ``attention``.

    Returns:
        The statistics, in float32 (float64 for float64). For a query that does not count they are NaN, or −1 in whole
        numbers.

    Raises:
        HeadwayError: as ``attention`` does, and if a statistic does not exist or does not fit the call.
    """
    _check_kernel(kernel)
    wanted = chosen(statistics)
    v = k if v is None else v
    if shards is None:
        return statistics_of(make_call(q, k, v, **arguments), wanted, queries, kernel)
    from ..parallel._attention import call_with_weights  # here, since it imports process groups

    call = call_with_weights(q, k, v, shards, [one.name for one in wanted], kernel, arguments)
    queries = real_queries(call, shards.runs) if queries is None else queries
    return _summed(statistics_of(call, wanted, queries, kernel), wanted, shards)


def _summed(found: Statistics, statistics: Sequence[Statistic], shards: Shards) -> Statistics:
    """Returns statistics of a process's queries with sums over the queries of all processes."""
    values = {one.name: shards.sum(found[one.name]) if one.sums_queries else found[one.name] for one in statistics}
    return Statistics(values, statistics, found.counted)


def chosen(statistics: str | Statistic | Sequence[str | Statistic]) -> tuple[Statistic, ...]:
    """The statistics that are named or given, each once.

    Raises HeadwayError for a name that is not known or that hides an attribute, and for two results of one name.
    """
    by_name: dict[str, Statistic] = {}
    for one in listed(statistics):
        statistic = _by_name(one) if isinstance(one, str) else one
        if not isinstance(statistic, Statistic):
            raise HeadwayError(f"statistics holds {one!r}: give names such as 'entropy', or objects such as TopKeys(4)")
        if hasattr(Statistics, statistic.name) or statistic.name == "counted":
            raise HeadwayError(
                f"{type(statistic).__name__} is called {statistic.name!r}, as an attribute of Statistics: give it "
                "another name"
            )
        if statistic.name in by_name:
            raise HeadwayError(f"statistics holds {statistic.name!r} twice: give it once, or ask in two calls")
        by_name[statistic.name] = statistic
    if not by_name:
        raise HeadwayError(f"statistics is empty: give one or more of {', '.join(STATISTICS)}")
    return tuple(by_name.values())


def listed(statistics: str | Statistic | Sequence[str | Statistic]) -> list[str | Statistic]:
    """The statistics that are named or given; one may be given without a list."""
    if isinstance(statistics, (str, Statistic)):
        return [statistics]
    if not isinstance(statistics, Iterable):
        raise HeadwayError(f"statistics is {statistics!r}: give names such as 'entropy', or objects such as TopKeys(4)")
    return list(statistics)


def _by_name(name: str) -> Statistic:
    if name not in STATISTICS:
        raise unknown("statistic", name, STATISTICS, see="headway.inspection.STATISTICS")
    if name == "classes":
        raise HeadwayError("'classes' needs the class of each key: give headway.inspection.Classes(labels)")
    return STATISTICS[name]()


def statistics_of(
    call: Call, statistics: Sequence[Statistic], queries: Tensor | None = None, kernel: str = "auto"
) -> Statistics:
    """Computes statistics of a call.

    Args:
        call: the call, from ``headway.call.make_call``.
        statistics: the statistics, each of another name.
        queries: as for ``attention_statistics``.
        kernel: likewise.

    Raises:
        HeadwayError: if a statistic does not fit the call, or the kernel cannot compute it.
    """
    wanted = Wanted(call, statistics, queries)
    return wanted.found(reduce(KERNELS, call, wanted.reductions, wanted.queries, kernel))


class Wanted:
    """The statistics to compute for a call, as reductions of its weights. ``queries`` are those that count.

    Raises HeadwayError if a statistic does not fit the call.
    """

    def __init__(self, call: Call, statistics: Sequence[Statistic], queries: Tensor | None) -> None:
        for statistic in statistics:
            statistic.check(call)
        self.call, self.statistics = call, statistics
        self.queries = real_queries(call) if queries is None else _checked(queries, call)
        self._parts = [statistic.reductions(call) for statistic in statistics]
        self.reductions = [VisibleKeys(), *(one for each in self._parts for one in each)]

    def found(self, values: Sequence[Any]) -> Statistics:
        """The statistics, computed from the values of ``reductions``."""
        visible, *rest = values
        counted = visible > 0 if self.queries is None else (visible > 0) & self.queries[:, None]
        results, left = {}, iter(rest)
        for statistic, parts in zip(self.statistics, self._parts, strict=True):
            results[statistic.name] = statistic.result(self.call, [next(left) for _ in parts], counted)
        return Statistics(results, self.statistics, counted)


def _checked(queries: Tensor, call: Call) -> Tensor:
    batch, n = call.q.shape[0], call.q.shape[2]
    fits = isinstance(queries, Tensor) and queries.dtype == torch.bool
    if not fits or tuple(queries.shape) not in ((n,), (1, n), (batch, n)):
        said = f"{queries.dtype} of shape {tuple(queries.shape)}" if isinstance(queries, Tensor) else repr(queries)
        raise HeadwayError(f"queries are {said}: give booleans [{n}] or [{batch}, {n}], True for queries that count")
    return (queries if queries.ndim == 2 else queries[None]).to(call.q.device)
