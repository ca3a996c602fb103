"""The base class of position encodings: five optional hooks, attributes that describe an encoding, and an oracle."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from html import escape
from itertools import count
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from typing_extensions import Self

from .._common import notebook
from .._common.devices import need_numbers
from ..coordinates import Coordinates, Placed
from ..errors import HeadwayError
from ..records import owner
from ..terms import Rotation
from ..tracing import refuse_script
from ._contract import CHECKED, need_arguments
from ._contract import Input as Input
from ._contract import Restore as Restore
from ._contract import Terms as Terms
from ._formulas import at
from ._properties import Properties

HOOKS = {
    "locate": ("locate", "relocate"),
    "embed": ("embed",),
    "prepare": ("prepare", "prepare_query", "prepare_key"),
    "terms": ("terms",),
    "values": ("prepare_value", "restore_output"),
}
IN_ATTENTION = frozenset({"prepare", "terms", "values"})
"""The hooks that act within attention."""

KINDS = {
    "encoding": "makes attention depend on positions",
    "scaling": "changes another encoding so that it reaches further",
    "coordinates": "changes where tokens are, for another encoding to read: compose the two",
}
"""What an encoding does, by the value of its attribute ``kind``."""
EVIDENCE = {
    "authors": "numbers of the authors' own code are in the tests",
    "independent": "an independent implementation gives the same numbers in the tests",
    "formula": "only the paper's formula, implemented twice: experimental",
    "unknown": "unknown: the class declares no evidence",
}
"""What the numbers of an encoding were compared with, by the value of its attribute ``evidence``."""


@dataclass(frozen=True)
class Pair:
    """The arguments of an oracle: query i and key j of one sequence in head h, in float64, before ``prepare``.

    Attributes:
        h: the head.
        i: the slot of the query.
        j: the slot of the key.
        queries: the queries of all heads and tokens, [heads, n, head_dim]; ``query`` is the row of this pair.
        keys: the keys of all heads and tokens, [heads, n, head_dim]; ``key`` is the row of this pair.
        x: the layer's input, [n, embed_dim], or None.
        coordinates: where the tokens are, as given.
        scale: the factor of the scores.
    """

    h: int
    i: int
    j: int
    queries: Tensor
    keys: Tensor
    x: Tensor | None
    coordinates: Coordinates
    scale: float

    @property
    def dot(self) -> float:
        """The product ⟨qᵢ, kⱼ⟩."""
        return (self.query @ self.key).item()

    @property
    def query(self) -> Tensor:
        """qᵢ of the head, [head_dim]."""
        return self.queries[self.h, self.i]

    @property
    def key(self) -> Tensor:
        """kⱼ of the head, [head_dim]."""
        return self.keys[self.h, self.j]

    def at(self, token: int, axis: int = 0) -> float:
        """The position of ``token`` on ``axis``."""
        return at(self.coordinates, token, axis)

    @property
    def distance(self) -> float:
        """The distance δ = pⱼ − pᵢ."""
        return self.at(self.j) - self.at(self.i)


_editions = count(1)


class EncodingSizes(NamedTuple):
    """The sizes that an encoding was built for; None for a size that may be any."""

    num_heads: int | None
    num_kv_heads: int | None
    head_dim: int | None
    embed_dim: int | None
    max_length: int | None


class PositionEncoding(nn.Module):
    """The base class of position encodings.

    An encoding acts through five hooks. By default, each does nothing:

    - ``locate`` changes the positions of tokens.
    - ``embed`` adds to the token embeddings at the model's input.
    - ``prepare`` transforms each query and each key.
    - ``terms`` adds terms to the scores.
    - ``prepare_value`` transforms each value, and ``restore_output`` applies the inverse to the output.

    A subclass overrides the hooks that it needs, and writes the formula of its paper literally in ``oracle``. A hook
    must not write into the tensors that it is given.
    """

    name: str = ""
    """The name in the table ENCODINGS; empty for an encoding that is not in it."""
    citation: ClassVar[str] = ""
    """The paper: keys of references.bib, or BibTeX itself."""
    year: ClassVar[int] = 0
    kind: ClassVar[str] = "encoding"
    """One of ``KINDS``."""
    evidence: ClassVar[str] = "unknown"
    """One of ``EVIDENCE``: what this implementation was compared with, in addition to the paper's formula."""
    same_function_as: ClassVar[str | None] = None
    """The name of another row of the table that computes the same function, if there is one."""
    extrapolates: ClassVar[bool] = False
    """Whether longer inputs produce no values unseen in training, by construction: all far distances share one
    number, or it keeps falling."""

    axes: int | None = 1
    """The axes of the positions that it reads; None for any number."""
    ends: ClassVar[bool] = False
    """Whether it has a table of max_length positions and none beyond."""
    causal_only: bool = False
    """Whether it is defined only for masks that hide later keys."""
    cache_prepared: bool = True
    """Whether caches may hold prepared keys and values: not if these depend on the total length or on later tokens."""
    reads_input: bool = False
    """Whether ``relocate`` or ``terms`` read q_input and k_input."""
    across_shards: ClassVar[bool] = False
    """Whether ``relocate`` and ``terms`` read other tokens only through the functions that cross shards.

    Or they need nothing of others. Processes which share a sequence may then each call them for their own tokens. A
    class says so for itself: it is not inherited."""
    same_terms: ClassVar[bool] = False
    """Whether ``terms`` returns the same terms for all coordinates, so that a decoding step need not ask again."""
    foreign: bool = False
    """Whether the class, or that of a part, is not headway's own, or a method is replaced in this object.

    The steps of such a class check its hooks."""
    _acts: ClassVar[frozenset[str]] = frozenset()
    _rotates: ClassVar[frozenset[str]] = frozenset()
    """The hooks, of "prepare" and "values", that ``rotation`` or ``split`` describes."""
    _has_tables: ClassVar[bool] = False
    _places: ClassVar[bool] = False
    learning_rate_multiplier: ClassVar[float] = 1.0
    """The multiplier for the encoding's own parameters, if its paper gives one."""

    __prepare_scriptable__ = refuse_script

    _edition: int = 0
    """Another number after each change of an attribute other than ``training``, or replacement of a tensor."""

    def _changed(self) -> None:
        if not torch.compiler.is_compiling():
            self.__dict__["_edition"] = next(_editions)

    # counted after the change, since another thread may prepare a call before it

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if callable(getattr(type(self), name, None)):
            self.__dict__["foreign"] = True
        if name != "training":
            self._changed()

    def __delattr__(self, name: str) -> None:
        super().__delattr__(name)
        self._changed()

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._changed()  # numbers from another process may occur again in this one

    def _apply(self, *arguments: Any, **named: Any) -> Self:
        try:
            return super()._apply(*arguments, **named)
        finally:
            self._changed()

    def plan_key(self) -> Hashable:
        """Returns the facts, other than inputs and tensors of a call, that results depend on; None if unknown.

        Calls with an equal key share the preparation of the first one. There is no key for encodings that are
        ``foreign`` or read the layer's input, and in training for those that may draw positions.
        """
        if self.foreign or self.reads_input:
            return None
        if self.training and "locate" in self.acts:
            return None
        if not self._modules:
            return self._edition
        parts = [part for part in self.modules() if isinstance(part, PositionEncoding)]
        unknown = any(part.foreign or (part.training and "locate" in part.acts) for part in parts)
        return None if unknown else tuple([part._edition for part in parts])

    # ------------------------------------------------------------ the hooks

    def locate(self, coordinates: Coordinates) -> Coordinates:
        """Returns the coordinates with the positions that this encoding gives the tokens; nothing else may change.

        Args:
            coordinates: where the tokens are.
        """
        return coordinates

    def relocate(
        self, q_at: Coordinates, k_at: Coordinates, q_input: Input = None, k_input: Input = None
    ) -> tuple[Coordinates, Coordinates]:
        """Changes positions a second time, in every layer, with both sides and the layer's input.

        Override it for positions and phases that depend on content. If keys depend on it, set ``cache_prepared =
        False``.

        Args:
            q_at: placed coordinates of the queries.
            k_at: placed coordinates of the keys.
            q_input: the layer's input for the queries, [batch, n, embed_dim].
            k_input: the layer's input for the keys, [batch, m, embed_dim]. In self-attention the queries are the last.

        Returns:
            Both coordinates, as ``placed_by`` this encoding.
        """
        return q_at, k_at

    def tables(self, coordinates: Coordinates) -> Any:
        """Computes tables, such as cosines, that depend on located coordinates only, once for all layers.

        They must not depend on parameters, buffers or anything that changes after construction, since coordinates may
        outlive such a change. Compute what depends on parameters in ``learned_tables``, ``prepare`` or ``terms``.

        Args:
            coordinates: where the tokens are, located.
        """
        return None

    def learned_tables(self, coordinates: Coordinates) -> Any:
        """Computes tables that depend on parameters too, once for the layers of one forward pass.

        Read them as ``for_one_forward(coordinates).learned``, in ``prepare`` for instance.

        Args:
            coordinates: where the tokens are, placed.
        """
        return None

    def embed(self, x: Tensor, coordinates: Coordinates | Tensor | None = None) -> Tensor:
        """Adds positions to the token embeddings.

        Args:
            x: [batch, n, embed_dim].
            coordinates: where the tokens are. Default: 0 … n − 1.
        """
        return x

    def prepare(self, x: Tensor, coordinates: Coordinates) -> Tensor:
        """Transforms queries and keys.

        Args:
            x: [batch, heads, n, head_dim].
            coordinates: where the tokens are, placed.
        """
        return x

    def prepare_query(self, q: Tensor, coordinates: Coordinates) -> Tensor:
        """Transforms queries, if differently from keys; see ``prepare`` for ``q`` and ``coordinates``."""
        return self.prepare(q, coordinates)

    def prepare_key(self, k: Tensor, coordinates: Coordinates) -> Tensor:
        """Transforms keys, if differently from queries; see ``prepare`` for ``k`` and ``coordinates``."""
        return self.prepare(k, coordinates)

    def rotation(self, side: str, x: Tensor, coordinates: Coordinates) -> Rotation | None:
        """Returns the transform of a hook if it is only a rotation of pairs, which kernels then apply; otherwise None.

        Args:
            side: "query" or "key" for ``prepare``, "value" for ``prepare_value``, "output" for ``restore_output``.
            x: the queries, keys or values, [batch, heads, n, head_dim]. Only the shape and dtype are read.
            coordinates: where the tokens are, placed.

        Returns:
            The rotation, or None if the hook does anything else.
        """
        return None

    def rotation_block(self, position: int) -> tuple[int, Rotation] | None:
        """Returns the rotation of a block of consecutive positions, which decoding steps then read row by row.

        Override it in an encoding that keeps such blocks between calls. On a CPU, its ``prepare`` must rotate a token,
        as query and as key, by an angle that depends only on its position.

        Args:
            position: a position that the block has.

        Returns:
            The first position of the block and its rotation; None if there is none.
        """
        return None

    def terms(self, q_at: Coordinates, k_at: Coordinates, q_input: Input = None, k_input: Input = None) -> Terms:
        """Returns the terms that are added to the scores; see ``headway.terms``.

        Args:
            q_at: placed coordinates of the queries.
            k_at: placed coordinates of the keys.
            q_input: the layer's input for the queries, [batch, n, embed_dim], for encodings that read it.
            k_input: the layer's input for the keys, [batch, m, embed_dim].
        """
        return ()

    def prepare_value(self, v: Tensor, coordinates: Coordinates) -> Tensor:
        """Transforms values, v_j → T_j·v_j, in their dtype and shape.

            out_i = T_i⁻¹·Σ_j A_ij·(T_j·v_j + r_ij)

        T_j is linear, and ``restore_output`` applies the inverse: a class overrides both methods or neither.

        Args:
            v: values [batch, kv_heads, m, v_dim].
            coordinates: where the values are, placed.

        Returns:
            The transformed values, [batch, kv_heads, m, v_dim] in v's dtype.
        """
        return v

    def restore_output(self, out: Tensor, coordinates: Coordinates) -> Tensor:
        """Applies the inverse of ``prepare_value`` to the output, out_i → T_i⁻¹·out_i, in its dtype and shape.

        Args:
            out: the weighted sums of transformed values, [batch, heads, n, v_dim].
            coordinates: where the queries are, placed.

        Returns:
            The output, [batch, heads, n, v_dim] in out's dtype.
        """
        return out

    def default_scale(self, head_dim: int) -> float:
        """Returns the factor s of the scores, used if the caller gives none.

        Args:
            head_dim: the size of each head.
        """
        return float(head_dim) ** -0.5

    # ------------------------------------------------------------ the steps of a call; with checks in ``CHECKED``

    def _located(self, at: Coordinates) -> Coordinates:
        return self.locate(at)

    def tables_of(self, located: Coordinates) -> Any:
        """Computes ``tables`` of ``located`` coordinates; a class that is not headway's own checks them.

        Raises:
            HeadwayError: if a table requires a gradient and the coordinates do not.
        """
        return self.tables(located)

    def _relocated(
        self, q_at: Coordinates, k_at: Coordinates, q_input: Input, k_input: Input
    ) -> tuple[Coordinates, Coordinates]:
        return self.relocate(q_at, k_at, q_input, k_input)

    def _terms_of(self, q_at: Coordinates, k_at: Coordinates, q_input: Input, k_input: Input) -> Terms:
        return self.terms(q_at, k_at, q_input, k_input)

    def _split_of(self, side: str, x: Tensor, at: Coordinates) -> tuple[Tensor, Rotation | None]:
        return self.split(side, x, at)

    def _split_output_of(self, out: Tensor, at: Coordinates) -> tuple[Rotation | None, Restore | None]:
        return self.split_output(out, at)

    # ------------------------------------------------------------ derived from the hooks

    def split(self, side: str, x: Tensor, coordinates: Coordinates) -> tuple[Tensor, Rotation | None]:
        """Applies a hook of queries, keys or values except for a last rotation, and returns that if there is one.

        Args:
            side: "query", "key" or "value".
            x: the queries, keys or values.
            coordinates: where the tokens are, placed.
        """
        if ("values" if side == "value" else "prepare") in self._rotates:
            rotation = self.rotation(side, x, coordinates)
            if rotation is not None:
                return x, rotation
        hook = {"query": self.prepare_query, "key": self.prepare_key, "value": self.prepare_value}[side]
        return hook(x, coordinates), None

    def split_output(self, out: Tensor, coordinates: Coordinates) -> tuple[Rotation | None, Restore | None]:
        """Returns ``restore_output`` as a first rotation and a function of the rest, each None if there is none.

        Args:
            out: the output. Only its shape and dtype are read.
            coordinates: where the queries are, placed.
        """
        rotation = self.rotation("output", out, coordinates) if "values" in self._rotates else None
        return rotation, None if rotation is not None else lambda out: self.restore_output(out, coordinates)

    def place(self, coordinates: Coordinates) -> Coordinates:
        """Places coordinates: locates them and computes their tables.

        Coordinates that this encoding has placed are not located again; those that another encoding has placed are
        placed again, from the given ones. An encoding without ``locate`` and tables returns them unchanged.

        Args:
            coordinates: where the tokens are.

        Raises:
            HeadwayError: if the given coordinates are not known, have other axes, or if ``locate`` or ``tables`` break
                their contract.
        """
        given = coordinates
        if isinstance(coordinates, Placed):
            if coordinates.belongs_to(self):
                made = not self._has_tables or coordinates.tables is not None or coordinates.learned is not None
                if made and coordinates.position is coordinates.located:
                    return coordinates
                return coordinates.placed_by(self, self.tables_of(coordinates))
            given = coordinates.as_given()
        if self._parameters or self._buffers or self._modules:  # hooks read them without a call of the module
            need_numbers(self, given.position.device, self.known_as)
        self.need_axes(given)
        if not self._places:
            return given
        located = self._located(given)
        return given.placed_by(self, self.tables_of(located), position=located.position)

    def for_one_forward(self, coordinates: Coordinates) -> Coordinates:
        """Places coordinates and computes ``learned_tables``; the result must not outlive a forward pass.

        Args:
            coordinates: where the tokens are.
        """
        placed = self.place(coordinates)
        if not isinstance(placed, Placed) or placed.learned is not None:
            return placed
        learned = self.learned_tables(placed)
        return placed if learned is None else placed._with(learned=learned, parts=None)

    @property
    def known_as(self) -> str:
        """The names of the class and of its parts, as in messages."""
        parts = [type(part).__name__ for part in self.modules() if isinstance(part, PositionEncoding)]
        return parts[0] if len(parts) == 1 else f"{parts[0]} ({', '.join(parts[1:])})"

    def need_axes(self, coordinates: Coordinates) -> None:
        """Checks that the positions of ``coordinates`` have as many axes as the encoding reads.

        Raises:
            HeadwayError: if not.
        """
        given = coordinates.position.shape[-1]
        if self.axes is not None and given != self.axes:
            raise HeadwayError(
                f"positions have {given} {'axis' if given == 1 else 'axes'} but {type(self).__name__} reads "
                f"{self.axes}: give positions [batch, n, {self.axes}]"
            )

    @property
    def sizes(self) -> EncodingSizes:
        """The sizes that this encoding, or else a part of it, was built for."""
        sizes: dict[str, int] = {}
        for part in self.modules():
            for name in EncodingSizes._fields:
                for size in (getattr(part, name, None), _given(part).get(name)):
                    if isinstance(size, int):
                        sizes.setdefault(name, size)
        return EncodingSizes(*map(sizes.get, EncodingSizes._fields))

    @property
    def table_end(self) -> int | None:
        """The number of positions in the table of this encoding or of a part of it; None without such a table."""
        tables = (part for part in self.modules() if isinstance(part, PositionEncoding) and part.ends)
        return next((table.sizes.max_length for table in tables), None)

    @property
    def acts(self) -> frozenset[str]:
        """The hooks this encoding acts through, of locate, embed, prepare, terms, values."""
        return self._acts

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        if "__init__" in vars(cls):
            cls.__init__ = _recorded(vars(cls)["__init__"])  # type: ignore[method-assign]
        cls.foreign = cls.__module__.partition(".")[0] != __name__.partition(".")[0]
        if cls.foreign:
            need_arguments(cls, PositionEncoding)
            for name, step in CHECKED.items():
                if vars(cls).get(name, step) is not step:
                    raise HeadwayError(
                        f"{cls.__name__} defines {name}, a step of a call that headway defines: give it another name"
                    )
                setattr(cls, name, step)
        cls._has_tables = cls.tables is not PositionEncoding.tables
        cls._places = any(
            getattr(cls, name) is not getattr(PositionEncoding, name) for name in ("locate", "tables", "learned_tables")
        )
        # an inherited rotation does not describe a ``prepare`` or ``prepare_value`` of a subclass
        rotates = (owner(cls, "rotation"), owner(cls, "split"))
        cls._rotates = frozenset(
            hook
            for hook in ("prepare", "values")
            if any(all(issubclass(one, owner(cls, name)) for name in HOOKS[hook]) for one in rotates)
        )
        changed = [(hook, name) for hook, name, idle in IDLE if getattr(cls, name) is not idle]
        cls._acts = frozenset([hook for hook, _ in changed])
        values = [name for hook, name in changed if hook == "values"]
        if len(values) == 1:
            raise HeadwayError(
                f"{cls.__name__} defines only {values[0]}: define prepare_value and its inverse, restore_output"
            )

    def coordinates_for(self, x: Tensor, coordinates: Coordinates | Tensor | None) -> Coordinates:
        """Returns the placed ``coordinates`` of ``x`` [batch, n, …], by default 0 … n − 1."""
        n = x.shape[1]
        if coordinates is None:
            coordinates = Coordinates.span(n, device=x.device)
        return self.place(Coordinates.of(coordinates, n))

    def properties(self) -> Properties:
        """Measures the four properties of this encoding; see ``Properties``."""
        from ..properties import measure  # here, since it measures through attention, which imports the encodings

        return measure(self)

    def arguments(self) -> dict[str, Any]:
        """Returns the constructor's literal arguments: the attributes of their names, or else the given values."""
        arguments: dict[str, Any] = {}
        for name in inspect.signature(type(self)).parameters:
            for value in (vars(self).get(name, ...), _given(self).get(name, ...), getattr(self, name, ...)):
                if _is_literal(value):
                    arguments.setdefault(name, value)
        return arguments

    def extra_repr(self) -> str:
        return ", ".join(f"{name}={value!r}" for name, value in self.arguments().items())

    def _repr_html_(self) -> str:
        doc = (inspect.getdoc(type(self)) or "").partition("\n\n")
        equation = doc[2].partition("\n\n")[0]
        learned = sum(parameter.numel() for parameter in self.parameters())
        rows = [
            ("acts through", ", ".join(sorted(self.acts)) or "nothing"),
            ("axes of positions", "any number" if self.axes is None else self.axes),
            ("learned numbers", f"{learned:,}"),
            ("year", self.year or ""),
        ]
        shown = f"<pre>{escape(inspect.cleandoc(equation))}</pre>" if equation.startswith("    ") else ""
        return notebook.heading(repr(self)) + notebook.paragraph(doc[0]) + shown + notebook.table(rows)

    # ------------------------------------------------------------ for the checks

    def oracle(self, pair: Pair) -> float:
        """Returns the score of a ``pair``, as the paper writes it, with pair.scale in place of 1/√d."""
        return pair.scale * pair.dot

    def oracle_weights(self, h: int, i: int, scores: list[float]) -> list[float]:
        """Returns the weights of the keys of query ``i`` in head ``h`` from their ``scores``; here the softmax."""
        return torch.tensor(scores, dtype=torch.float64).softmax(0).tolist()

    def oracle_value(self, pair: Pair, v: Tensor) -> Tensor:
        """Returns the value that the query of a ``pair`` takes from its key; ``v`` is [heads, n, head_dim]."""
        return v[pair.h, pair.j]

    def oracle_locate(self, coordinates: Coordinates) -> Coordinates:
        """Returns the located ``coordinates`` of one sequence, as the paper writes them."""
        return self.locate(coordinates)

    def oracle_embed(self, x: Tensor, coordinates: Coordinates) -> Tensor:
        """Returns the embeddings ``x`` [n, embed_dim] with positions at ``coordinates``, as the paper writes them."""
        return x

    @classmethod
    def examples(cls) -> list[PositionEncoding]:
        """Returns instances for the checks, with 4 and with 6 heads of 8 and embed_dim = 8·heads."""
        return [cls()]


IDLE = [(hook, name, getattr(PositionEncoding, name)) for hook, names in HOOKS.items() for name in names]
"""The hooks of the base class, which do nothing."""

# ---------------------------------------------------------------- the arguments that a constructor was given


def _recorded(init: Callable[..., None]) -> Callable[..., None]:
    """Returns the constructor ``init``, which also keeps the arguments that it is given."""

    @functools.wraps(init)
    def recording(self: PositionEncoding, *values: Any, **named: Any) -> None:
        if not torch.compiler.is_compiling():  # a compiler cannot write to a module before nn.Module's constructor
            _record(self, init, values, named)
        init(self, *values, **named)

    return recording


def _record(encoding: PositionEncoding, init: Callable[..., None], values: Any, named: Any) -> None:
    """Keeps the arguments of the constructor ``init``; those of a subclass come before its base's."""
    signature = inspect.signature(init)
    try:
        bound = signature.bind(encoding, *values, **named)
    except TypeError:
        return  # ``init`` raises its own error
    bound.apply_defaults()
    given: dict[str, Any] = {}
    for parameter in list(signature.parameters.values())[1:]:
        value = bound.arguments[parameter.name]
        if parameter.kind is parameter.VAR_KEYWORD:
            given |= value
        elif parameter.kind is not parameter.VAR_POSITIONAL:
            given[parameter.name] = value
    held = vars(encoding).setdefault("_given", {})
    for name, value in given.items():
        held.setdefault(name, value if _is_literal(value) else ...)


def _given(part: nn.Module) -> dict[str, Any]:
    """Returns the arguments that the constructors of ``part`` were given, with ... for all except literals."""
    arguments: dict[str, Any] = vars(part).get("_given", {})
    return arguments


def built_for_others(encoding: PositionEncoding, sizes: Mapping[str, int]) -> str:
    """Returns the sizes to build an encoding, or a part of it, for if it was built for others; "" if it fits.

    Args:
        encoding: the encoding.
        sizes: heads, kv_heads and head_dim of a call.
    """
    wanted = {"num_heads": sizes["heads"], "num_kv_heads": sizes["kv_heads"], "head_dim": sizes["head_dim"]}
    for part in encoding.modules():
        takes = [name for name in inspect.signature(type(part)).parameters if name in wanted]
        own = {name: getattr(part, name, None) for name in takes}
        if any(isinstance(size, int) and size != wanted[name] for name, size in own.items()):
            had, give = (", ".join(f"{name}={sizes[name]}" for name in takes) for sizes in (own, wanted))
            return f"{type(part).__name__} was built with {had}: build it with {give}"
    return ""


def _is_literal(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return all(map(_is_literal, value))
    return value is None or isinstance(value, (bool, int, float, str))
