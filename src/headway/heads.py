"""Restricts an encoding, terms and a mask of all heads to the heads of one process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from .coordinates import Coordinates
from .errors import HeadwayError, need_whole
from .masks import Mask
from .positions._base import Input, PositionEncoding, Restore, Terms
from .records import Record
from .terms import DenseBias, HeadNetwork, Normalizer, Product, Rotation, ScoreMap, Term
from .tracing import watched

APART = 1e-2
"""The share of the largest number by which what is prepared may depend on other heads: that of rounding."""
_apart: WeakKeyDictionary[PositionEncoding, set[str]] = WeakKeyDictionary()
"""The sides that encodings are known to prepare head by head."""

P = TypeVar("P", Term, Mask)


def _unchanged(x: Tensor) -> Tensor:
    """Returns a tensor as it is.

    Args:
        x: the tensor.
    """
    return x


@dataclass(frozen=True)
class HeadShard:
    """The heads that a call computes, if each of several processes computes some of them.

    q, k and v have only these heads. Everything else is given for all heads: the encoding, terms, the mask and the
    sink. The call takes its part of them along the dimensions that are named "heads" and "kv_heads".

    Args:
        first: the number of q's first head among all.
        count: the number of q's heads.
        total: the number of all query heads.
        shared: a function that is applied to each parameter, and to each tensor that requires a gradient and that all
            shards read, such as a table by head. It returns the same values, and its backward adds the gradients of all
            shards. For a parameter of which each process holds a part, it returns that part. Default: each shard keeps
            the gradient of its own heads.

    Raises:
        HeadwayError: if the heads are not among ``total``, or a number is not whole.
    """

    first: int
    count: int
    total: int
    shared: Callable[[Tensor], Tensor] = _unchanged

    def __post_init__(self) -> None:
        need_whole(first=self.first, count=self.count, total=self.total)
        if not (self.count > 0 and 0 <= self.first <= self.total - self.count):
            raise HeadwayError(
                f"heads {self.first} to {self.first + self.count - 1} are not among {self.total}: give first ≥ 0, "
                "count ≥ 1 and first + count ≤ total"
            )

    def __deepcopy__(self, memo: dict[int, Any]) -> HeadShard:
        return self  # ``shared`` may hold a mesh, which belongs to this process

    def check(self, q: Tensor, k: Tensor) -> None:
        """Checks that q and k have the heads of this shard, in whole groups that share keys.

        Args:
            q: queries, [batch, heads, n, head_dim].
            k: keys, [batch, kv_heads, m, head_dim].

        Raises:
            HeadwayError: if not.
        """
        if q.shape[1] != self.count:
            raise HeadwayError(f"q has {q.shape[1]} heads but head_shard counts {self.count}: give both the same")
        group = self.count // k.shape[1]
        if self.first % group or self.total % group:
            raise HeadwayError(
                f"head_shard takes heads {self.first} to {self.first + self.count - 1} of {self.total}, which cuts a "
                f"group of {group} that share keys: give multiples of {group}"
            )

    def whole(self, sizes: dict[str, int]) -> dict[str, int]:
        """Returns the sizes of a call of all heads.

        Args:
            sizes: those of this call.
        """
        return {**sizes, "heads": self.total, "kv_heads": self._all(sizes["kv_heads"])}

    def _all(self, heads: int) -> int:
        """Returns how many heads a side has in total if it has ``heads`` of them here."""
        return heads * self.total // self.count

    def _own(self, heads: int) -> slice:
        first = self.first * heads // self.count
        return slice(first, first + heads)

    def own_part(self, part: P, kv_heads: int) -> P:
        """Returns a term or a mask of all heads for those of this shard.

        Args:
            part: the term or the mask.
            kv_heads: the number of key heads of this shard.

        Raises:
            HeadwayError: if it is a term for another number of heads.
        """
        if not isinstance(part, Mask) and (size := part.extent("heads")) not in (1, self.total):
            raise HeadwayError(
                f"{type(part).__name__} is for {size} heads, but head_shard takes some of {self.total}: give an "
                f"encoding or a term for {self.total}"
            )
        kv = self._own(kv_heads)
        cut: Any = part.cut("heads", self.first, self.first + self.count).cut("kv_heads", kv.start, kv.stop)
        return cut

    def own_terms(self, terms: Sequence[Term], kv_heads: int, of: str, *, any_heads: bool = False) -> tuple[Term, ...]:
        """Returns the terms of all heads for those of this shard.

        Args:
            terms: the terms.
            kv_heads: the number of key heads of this shard.
            of: whose terms they are, for messages.
            any_heads: whether functions among them take any number of heads.

        Raises:
            HeadwayError: for a function that may mix heads, or a term for another number of heads.
        """
        own = []
        for term in terms:
            mixes = isinstance(term, HeadNetwork) and self.count < self.total
            if mixes or (isinstance(term, (ScoreMap, Normalizer)) and not any_heads):
                raise HeadwayError(
                    f"{of} is built for {self.total} heads and has a {type(term).__name__}, which maps the scores "
                    "of all heads, and a shard computes only some: keep this layer whole on each process"
                )
            if isinstance(term, Product) and not any_heads:
                term = Product(self._product(term.function), term.tensors)
            elif isinstance(term, DenseBias) and not isinstance(term.values, Tensor):
                term = DenseBias(self._bias(term.values), term.tensors)
            elif not isinstance(term, (Product, ScoreMap, Normalizer)):
                term = self.own_part(term, kv_heads)
            own.append(term)
        return tuple(own)

    def _product(self, function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def product(q: Tensor, k: Tensor, rows: Tensor, *tensors: Tensor) -> Tensor:
            return function(self.spread(q), self.spread(k), rows, *tensors)[:, self._own(self.count)]

        return product

    def _bias(self, function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def bias(rows: Tensor, *tensors: Tensor) -> Tensor:
            values = function(rows, *tensors)
            return values if values.shape[1] == 1 else values[:, self._own(self.count)]

        return bias

    def spread(self, x: Tensor) -> Tensor:
        """Returns a tensor of all heads that has ``x`` at its own heads, and copies of them at the others.

        If each head is computed separately, the results at the own heads are right; the copies keep the others finite.

        Args:
            x: [batch, heads or kv_heads of this shard, n, width].
        """
        heads = x.shape[1]
        order = torch.arange(self._all(heads), device=x.device) - self._own(heads).start
        return x.index_select(1, order % heads)

    def shared_in(self, value: Any) -> Any:
        """Applies ``shared`` to the tensors that require a gradient.

        Args:
            value: a tensor, or a record, a tuple or a dictionary that holds some. Anything else stays as it is.
        """
        known: dict[int, Tensor] = {}  # one object must stay one, since coordinates compare by identity

        def shared(value: Any) -> Any:
            if isinstance(value, Tensor):
                if value.requires_grad and id(value) not in known:
                    known[id(value)] = self.shared(value)
                return known.get(id(value), value)
            if isinstance(value, dict):
                return {name: shared(one) for name, one in value.items()}
            if isinstance(value, (tuple, list)):
                items = list(map(shared, value))
                return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
            if not isinstance(value, Record):
                return value
            held = value._values()
            changes = {name: shared(one) for name, one in held.items() if name != "given"}
            changes = {name: one for name, one in changes.items() if _differs(one, held[name])}
            return value._with(**changes) if changes else value

        return shared(value)

    @contextmanager
    def reading(self, *modules: nn.Module | None) -> Iterator[None]:
        """A context in which modules read their parameters through ``shared``.

        Args:
            *modules: the modules, with their parts.
        """
        held = [
            (part._parameters, name, parameter)
            for module in modules
            if module is not None
            for part in module.modules()
            for name, parameter in part._parameters.items()
            if parameter is not None
        ]
        if self.shared is _unchanged:
            held = []
        try:
            for parameters, name, parameter in held:
                parameters[name] = self.shared(parameter)  # type: ignore[assignment]
            yield
        finally:
            for parameters, name, parameter in held:
                parameters[name] = parameter


def _differs(one: Any, other: Any) -> bool:
    """Whether two values of the same form differ in any object that they hold."""
    if isinstance(one, dict):
        return any(_differs(one[name], other[name]) for name in one)
    if isinstance(one, (tuple, list)):
        return any(map(_differs, one, other))
    return one is not other


class EncodingOfHeads:
    """The steps of a call that use an encoding of all heads, for the heads of a shard.

    Args:
        encoding: the encoding.
        shard: the heads.
        kv_heads: the number of their key heads.
    """

    def __init__(self, encoding: PositionEncoding, shard: HeadShard, kv_heads: int) -> None:
        self.encoding, self.shard, self.kv_heads = encoding, shard, kv_heads
        self.acts = encoding.acts
        heads = encoding.sizes.num_heads
        self._any_heads = heads in (None, 1)  # one head is the same for all
        if not self._any_heads and heads != shard.total:
            raise HeadwayError(
                f"{encoding.known_as} is built for {heads} heads and head_shard has {shard.total} in all: build it "
                f"with num_heads={shard.total}"
            )

    def for_one_forward(self, at: Coordinates) -> Coordinates:
        with self.shard.reading(self.encoding):
            return self.encoding.for_one_forward(at)

    def _relocated(
        self, q_at: Coordinates, k_at: Coordinates, q_input: Input, k_input: Input
    ) -> tuple[Coordinates, Coordinates]:
        one_side = q_at is k_at
        q_at = self.shard.shared_in(q_at)
        k_at = q_at if one_side else self.shard.shared_in(k_at)
        with self.shard.reading(self.encoding):
            return self.encoding._relocated(q_at, k_at, q_input, k_input)

    def _terms_of(self, q_at: Coordinates, k_at: Coordinates, q_input: Input, k_input: Input) -> Terms:
        with self.shard.reading(self.encoding):
            terms = self.encoding._terms_of(q_at, k_at, q_input, k_input)
        return self.shard.own_terms(terms, self.kv_heads, self.encoding.known_as, any_heads=self._any_heads)

    def _split_of(self, side: str, x: Tensor, at: Coordinates) -> tuple[Tensor, Rotation | None]:
        if ("values" if side == "value" else "prepare") not in self.acts:
            return x, None
        with self.shard.reading(self.encoding):
            if self._any_heads:
                return self.encoding._split_of(side, x, at)
            whole, own = self.shard.spread(x), self.shard._own(x.shape[1])
            prepared, rotation = self.encoding._split_of(side, whole, at)
            if prepared is not whole:
                self._need_heads_apart(side, whole, at, prepared, own)
        return x if prepared is whole else prepared[:, own], _cut(rotation, own)

    def _need_heads_apart(self, side: str, whole: Tensor, at: Coordinates, prepared: Tensor, own: slice) -> None:
        """Checks, once for each encoding, that the other heads do not change how it prepares the own ones.

        Raises:
            HeadwayError: if not.
        """
        known = _apart.setdefault(self.encoding, set())
        if side in known or watched():
            return
        with torch.no_grad():
            others = 1 - 2 * whole
            others[:, own] = whole[:, own]
            again, _ = self.encoding._split_of(side, others, at)
            gap, largest = (again - prepared)[:, own].abs(), prepared[:, own].abs()
            if bool((gap > APART * largest.amax()).any()):
                raise HeadwayError(
                    f"{self.encoding.known_as} prepares a {side} of one head from those of other heads, and a shard "
                    "has only some: keep this layer whole on each process"
                )
        known.add(side)

    def _split_output_of(self, out: Tensor, at: Coordinates) -> tuple[Rotation | None, Restore | None]:
        own, any_heads = self.shard._own(self.shard.count), self._any_heads
        whole = out if any_heads else out.new_empty_strided((out.shape[0], self.shard.total, *out.shape[2:]), (0,) * 4)
        with self.shard.reading(self.encoding):
            rotation, rest = self.encoding._split_output_of(whole, at)
        if rest is None:
            return rotation if any_heads else _cut(rotation, own), None

        def restore(out: Tensor) -> Tensor:
            with self.shard.reading(self.encoding):
                return rest(out) if any_heads else rest(self.shard.spread(out))[:, own]

        return rotation if any_heads else _cut(rotation, own), restore


def _cut(rotation: Rotation | None, own: slice) -> Rotation | None:
    return None if rotation is None else rotation.cut("heads", own.start, own.stop)
