"""What an encoding is: four optional hooks, an oracle, and the four demands measured."""

from __future__ import annotations

import inspect
import math
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from ..coordinates import Coordinates
from ..errors import HeadwayError
from ..terms import Term

if TYPE_CHECKING:
    from ._properties import Properties

HOOKS = {
    "locate": ("locate",),
    "embed": ("embed",),
    "prepare": ("prepare", "prepare_query", "prepare_key"),
    "terms": ("terms",),
}


class PositionEncoding(nn.Module):
    """The base of every encoding: each hook is optional and does nothing by itself.

    locate(coordinates)    changes where tokens are
    embed(x)               adds to the token embeddings, once, at the model's input
    prepare(q or k)        a transform of each query and each key
    terms(…)               what the scores gain

    A subclass overrides the hooks it acts through and writes its paper's formula, literally, in an ``oracle``.
    """

    citation: ClassVar[str] = ""
    """BibTeX of the paper."""
    cache_prepared: bool = True
    """Whether a key may be cached after ``prepare``: not where that depends on the total length."""
    reads_input: bool = False
    """Whether ``terms`` reads q_input and k_input."""
    learning_rate_multiplier: ClassVar[float] = 1.0
    """For the encoding's own parameters, where its paper gives one."""

    # ------------------------------------------------------------ the hooks

    def locate(self, coordinates: Coordinates) -> Coordinates:
        """Where the tokens are, as this encoding sees it."""
        return coordinates

    def tables(self, coordinates: Coordinates) -> Any:
        """What located coordinates alone decide (cosines, sines): computed once per forward for all layers."""
        return None

    def embed(self, x: Tensor, coordinates: Coordinates | Tensor | None = None) -> Tensor:
        """x [batch, n, embed_dim] with positions added, at the model's input."""
        return x

    def prepare(self, x: Tensor, coordinates: Coordinates) -> Tensor:
        """The transform of queries and keys alike; x [batch, heads, n, head_dim]."""
        return x

    def prepare_query(self, q: Tensor, coordinates: Coordinates) -> Tensor:
        """The transform of queries, where it differs from that of keys."""
        return self.prepare(q, coordinates)

    def prepare_key(self, k: Tensor, coordinates: Coordinates) -> Tensor:
        """The transform of keys, where it differs from that of queries."""
        return self.prepare(k, coordinates)

    def terms(
        self,
        q_coordinates: Coordinates,
        k_coordinates: Coordinates,
        q_input: Tensor | None = None,
        k_input: Tensor | None = None,
    ) -> tuple[Term, ...]:
        """What the scores gain; q_input and k_input are the layer's inputs, for those that read content."""
        return ()

    def default_scale(self, head_dim: int) -> float:
        """The factor s of the scores where the caller gives none."""
        return float(head_dim) ** -0.5

    # ------------------------------------------------------------ what follows from the hooks

    def place(self, coordinates: Coordinates) -> Coordinates:
        """The coordinates located and with their tables: what is there already is not done again."""
        located = coordinates if coordinates.placed else self.locate(coordinates)
        return located if located.tables is not None else located.placed_with(self.tables(located))

    @property
    def acts(self) -> frozenset[str]:
        """The hooks this encoding acts through, of locate, embed, prepare, terms."""
        kind = type(self)
        return frozenset([hook for hook, name, idle in IDLE if getattr(kind, name) is not idle])

    def coordinates_for(self, x: Tensor, coordinates: Coordinates | Tensor | None) -> Coordinates:
        """The placed coordinates of x [batch, n, …]: 0 … n − 1 where none are given."""
        n = x.shape[1]
        if coordinates is None:
            coordinates = Coordinates.span(n, device=x.device)
        return self.place(Coordinates.of(coordinates, n))

    def properties(self) -> Properties:
        """The four demands on a code of positions, measured on this encoding; see ``Properties``."""
        from ._properties import measure

        return measure(self)

    def arguments(self) -> dict[str, Any]:
        """The constructor's arguments, as far as they are held under their own names and are literals."""
        held = {name: getattr(self, name) for name in inspect.signature(type(self)).parameters if hasattr(self, name)}
        return {name: value for name, value in held.items() if _is_literal(value)}

    def extra_repr(self) -> str:
        return ", ".join(f"{name}={value!r}" for name, value in self.arguments().items())

    # ------------------------------------------------------------ for the checks

    def oracle(
        self,
        h: int,
        i: int,
        j: int,
        q: Tensor,
        k: Tensor,
        x: Tensor | None,
        coordinates: Coordinates,
        scale: float,
    ) -> float:
        """The score of query i and key j in head h as the paper writes it, for one sequence.

        q, k: [heads, n, head_dim] float64 as projected, before ``prepare``; x: [n, embed_dim], the layer's input.
        """
        return scale * (q[h, i] @ k[h, j]).item()

    def oracle_value(self, h: int, i: int, j: int, v: Tensor, coordinates: Coordinates) -> Tensor:
        """What query i takes from key j in head h; v: [heads, n, head_dim]."""
        return v[h, j]

    def oracle_embed(self, x: Tensor, coordinates: Coordinates) -> Tensor:
        """The embeddings with positions as the paper writes it; x: [n, embed_dim]."""
        return x

    @classmethod
    def examples(cls) -> list[PositionEncoding]:
        """Instances for the checks: with 4 and with 6 heads of 8, and embed_dim = 8·heads."""
        return [cls()]


IDLE = [(hook, name, getattr(PositionEncoding, name)) for hook, names in HOOKS.items() for name in names]
"""The hooks as they do nothing."""

# ---------------------------------------------------------------- what several encodings need


def need_positive(**sizes: float) -> None:
    """Raises unless each size is at least 1."""
    for name, value in sizes.items():
        if value < 1:
            raise HeadwayError(f"{name} is {value}: give at least 1")


def need_base(base: float) -> None:
    """Raises unless a base of frequencies is above 1."""
    if not 1 < base < math.inf:
        raise HeadwayError(f"base is {base}: give a number above 1, such as 10000.0")


def need_width(x: Tensor, name: str, width: int) -> None:
    """Raises unless the last dimension of x is what the encoding was built for."""
    if x.shape[-1] != width:
        raise HeadwayError(
            f"x has a last dimension of {x.shape[-1]} but the encoding {name} {width}: build it with "
            f"{name}={x.shape[-1]}"
        )


def rates(count: int, width: int, base: float, device: torch.device) -> Tensor:
    """ω_c = base^(−2c/width), c = 0 … count − 1, in float64."""
    return base ** (-2.0 / width * torch.arange(count, dtype=torch.float64, device=device))


def angles(coordinates: Coordinates, frequencies: Tensor) -> Tensor:
    """p·ω [b, n, frequencies] in float64, whatever dtype the model and autocast have."""
    return coordinates.axis().double()[..., None] * frequencies


def added(x: Tensor, code: Tensor) -> Tensor:
    """x + code, summed in float32 or wider, in the dtype of x."""
    wide = torch.promote_types(x.dtype, torch.float32)
    return (x.to(wide) + code.to(wide)).to(x.dtype)


def stream_length(coordinates: Coordinates) -> Tensor | int:
    """The tokens in the stream, an int or [b, 1 or n]; without one, the largest position + 1."""
    if coordinates.length is not None:
        return coordinates.length
    return coordinates.axis().amax(dim=1, keepdim=True) + 1


def at(coordinates: Coordinates, i: int) -> float:
    """The position of token i of one sequence, as a Python number: for the oracles."""
    return coordinates.position[0, i, 0].item()


def _is_literal(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return all(map(_is_literal, value))
    return value is None or isinstance(value, (bool, int, float, str))


def readable(values: Tensor) -> bool:
    """Whether values may be looked at: in eager mode on a real device, not while a graph is traced."""
    return type(values) is Tensor and values.device.type != "meta" and not torch.compiler.is_compiling()
