"""The base class of masks, and the slots of keys that a mask may name."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import wraps
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from .._common import notebook
from ..coordinates import Coordinates
from ..errors import HeadwayError
from ..records import Divisible, Sizes, owner

FEW_TOKENS, MANY_TOKENS = 16, 64
"""The tokens of the picture of a mask: as many as its tensors have, within these bounds."""


class Slot(NamedTuple):
    """The key slot i + offset for the query in slot i.

    Args:
        offset: slots after the query's own.
    """

    offset: int


Bound = int | Slot | Tensor | None
"""A key slot: an int for all queries, a ``Slot``, integers [b, 1 or n], or None for the first or the last slot."""
Bounds = tuple[Bound, Bound]
"""The key slots start … stop − 1, as far as they exist; none if stop ≤ start."""


class Mask(Divisible):
    """The base class of masks.

    A subclass defines ``allowed`` and the ``axes`` of its tensors. Everything else is optional.
    """

    foreign: ClassVar[bool] = False
    """Whether the class is defined outside of this package."""

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        cls.foreign = cls.__module__.rpartition(".")[0] != __package__
        if "allowed" in vars(cls) and cls.foreign:
            cls.allowed = _checked(cls.allowed)  # type: ignore[assignment, method-assign]
        for name in ("interval", "reach"):  # an inherited one describes an inherited ``allowed``
            if not issubclass(owner(cls, name), owner(cls, "allowed")):
                setattr(cls, name, getattr(Mask, name))

    def allowed(self, q: Coordinates, k: Coordinates) -> Tensor:
        """Returns where queries may attend to keys, as a boolean tensor that broadcasts to [batch, heads, n, m].

        Args:
            q: coordinates of the queries.
            k: coordinates of the keys.
        """
        raise TypeError(f"{type(self).__name__} must define allowed(q, k)")

    def interval(self, q: Coordinates, k: Coordinates) -> Bounds | None:
        """Returns the mask as one interval of key slots for each query, the same in all heads; None if it is not one.

        It is used if the class that defines it also defines ``allowed``, or is a subclass of the class that does.

        Args:
            q: coordinates of the queries, at least one.
            k: coordinates of the keys, at least one.

        Returns:
            The first key slot and the one after the last. Each is an int, a ``Slot`` that counts from the query's own,
            an integer tensor [b, 1 or n] where b is 1 or the batch, or None for the first or the last key.
        """
        return None

    def reach(self, start: int, stop: int, n: int, m: int) -> tuple[int, int]:
        """Returns the slots that queries ``start`` … ``stop`` − 1 reach; ``n`` queries are the last of ``m`` keys."""
        return 0, m

    def plan_key(self) -> Hashable:
        """Returns the facts other than coordinates that the mask depends on; None if it holds tensors or is foreign.

        Calls with an equal key share the preparation of the first one.
        """
        kind, held = type(self), vars(self).values()
        if kind.foreign:
            return None
        for one in held:
            if one is not None and type(one) is not int and type(one) is not str:
                return None
        return (kind, *held)

    def block(self, start: int, stop: int, n: int) -> Mask:
        """Returns the mask for the queries ``start`` … ``stop`` − 1 of ``n``."""
        return self.cut("queries", start, stop)

    def of_keys(self, start: int, stop: int, n: int, m: int) -> Mask:
        """Returns the mask for the keys ``start`` … ``stop`` − 1 of ``m``, for ``n`` queries.

        Raises:
            HeadwayError: if the dimensions of a tensor are not named in ``axes``.
        """
        return self.cut("keys", start, stop)

    def check(self, batch: int, heads: int, n: int, m: int) -> None:
        """Checks by ``axes`` that tensors fit a call of ``batch`` rows, ``heads``, ``n`` queries and ``m`` keys.

        Raises:
            HeadwayError: if one does not.
        """
        if self.axes:
            self.check_tensors({"batch": batch, "heads": heads, "queries": n, "keys": m})

    def for_call(self, batch: int, heads: int) -> Mask:
        """Returns the mask for a call of ``batch`` rows and ``heads``, which coordinates do not state."""
        return self

    def _misfit(self, holder: Divisible, name: str, x: Tensor, sizes: Sizes) -> HeadwayError:
        layouts = [[word for _, word, _ in layout] for layout in self.axes[name].values()]
        if layouts[0][-1:] not in (["batch"], ["queries"], ["keys"]):
            return super()._misfit(holder, name, x, sizes)
        each = {"batch": "row", "queries": "query", "keys": "key"}[layouts[0][-1]]
        wanted = " or ".join(f"[{', '.join(str(sizes.get(word, word)) for word in layout)}]" for layout in layouts)
        return HeadwayError(
            f"{type(holder).__name__} has {name} of shape {tuple(x.shape)}: give one for each {each}, {wanted}"
        )

    def _spelled(self) -> str:
        """Returns the mask as one writes it, with the shapes of tensors in place of their numbers."""
        held = {name: list(value.shape) if isinstance(value, Tensor) else value for name, value in vars(self).items()}
        said = ", ".join(f"{name}={value}" for name, value in held.items() if value is not None)
        return f"{type(self).__name__}({said})"

    def _repr_html_(self) -> str:
        """A picture of the mask for a few tokens, if the mask needs no further coordinates."""
        queries, keys = self.extent("queries"), self.extent("keys")  # 1 where no tensor has them
        n, m = (
            min(one if one > 1 else max(other, FEW_TOKENS), MANY_TOKENS)
            for one, other in ((queries, keys), (keys, queries))
        )
        said = notebook.paragraph(self._spelled())
        try:
            self.check(1, 1, n, m)
            k = Coordinates.span(m)
            seen = self.allowed(k if n == m else Coordinates.span(n, start=m - n, length=m), k)
            rows = seen[0, 0].expand(n, m).tolist()
        except Exception:  # it is for rows, heads or documents that are not known here, or of a user's class
            return said
        return said + notebook.grid(rows, "keys", "queries")

    def __and__(self, other: Mask) -> Mask:
        from ._joined import both  # here, since And is a subclass of this class

        return both(self, other)

    def __or__(self, other: Mask) -> Mask:
        from ._joined import either  # here, since Or is, too

        return either(self, other)


Allowed = Callable[[Any, Coordinates, Coordinates], Tensor]


def _checked(allowed: Allowed) -> Allowed:
    """Returns ``allowed`` of a foreign class, with a check of its result."""

    @wraps(allowed)
    def checked(self: Mask, q: Coordinates, k: Coordinates) -> Tensor:
        found = allowed(self, q, k)
        n, m = q.index.shape[1], k.index.shape[1]
        said = type(found).__name__
        if isinstance(found, Tensor):
            if found.ndim == 2:
                found = found[None, None]
            said = f"{found.dtype} of shape {tuple(found.shape)}"
            if found.dtype == torch.bool and found.ndim == 4 and found.shape[2] in (1, n) and found.shape[3] in (1, m):
                return found
        raise HeadwayError(
            f"{type(self).__name__}.allowed returns {said}: return a boolean tensor [batch, heads, {n}, {m}], each 1 "
            "where it does not matter, such as allowed[:, None] of one [batch, queries, keys]"
        )

    return checked
