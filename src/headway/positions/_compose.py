"""Several encodings as one."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from functools import reduce
from typing import Any, cast

import torch
from torch import Tensor, nn

from ..coordinates import Coordinates, Placed
from ..errors import HeadwayError
from ..terms import Rotation
from ._base import IN_ATTENTION, Input, Pair, PositionEncoding, Restore, Terms
from ._temperature import Scaling


class Compose(PositionEncoding):
    """Applies several encodings, in the order given.

        Compose(a, b):  positions   b.locate(a.locate(p))
                        embeddings  b.embed(a.embed(x)), which adds both encodings to x
                        queries     b.prepare(a.prepare(q)), and keys alike
                        terms       those of a, then those of b
                        values      b.prepare_value(a.prepare_value(v))
                        output      a.restore_output(b.restore_output(out))

    Every part reads the positions that result from the ``locate`` of all parts. If a part has a scale of its own, this
    is the scale.

    Args:
        *parts: the encodings, at least one.

    Raises:
        HeadwayError: if there is no part, a part is not an encoding or is given twice, no part acts in attention
            although one relocates tokens there, or parts read positions of different axes.
    """

    def __init__(self, *parts: PositionEncoding) -> None:
        super().__init__()
        if not parts:
            raise HeadwayError("Compose has no parts: give at least one encoding")
        for part in parts:
            if not isinstance(part, PositionEncoding):
                raise HeadwayError(
                    f"a part is {part!r}: give encodings, such as headway.encoding('alibi', num_heads=8)"
                )
        if len({id(part) for part in parts}) < len(parts):
            raise HeadwayError("one encoding stands twice among the parts: build it a second time, or leave it out")
        self.parts = nn.ModuleList(parts)
        self.cache_prepared = all(part.cache_prepared for part in parts)
        self.reads_input = any(part.reads_input for part in parts)
        self.foreign = self.foreign or any(part.foreign for part in parts)
        self.causal_only = any(part.causal_only for part in parts)
        moving = [type(part).__name__ for part in parts if type(part).relocate is not PositionEncoding.relocate]
        if moving and not self.acts & IN_ATTENTION:
            raise HeadwayError(
                f"{moving[0]} changes where tokens are within attention, and no part acts there: compose it with one "
                "that does, such as RoPE"
            )
        axes = {part.axes: type(part).__name__ for part in parts if part.axes is not None}
        if len(axes) > 1:
            said = " and ".join(f"{name} {count}" for count, name in axes.items())
            raise HeadwayError(f"the parts read positions of different axes ({said}): compose those of as many axes")
        self.axes = next(iter(axes), None)

    def __repr__(self) -> str:
        return f"Compose({', '.join(map(repr, self.each))})"

    @property
    def each(self) -> tuple[PositionEncoding, ...]:
        """Returns the parts."""
        # four times as fast as iterating over parts
        return cast("tuple[PositionEncoding, ...]", tuple(self.parts._modules.values()))

    @property
    def acts(self) -> frozenset[str]:
        """The hooks that any part acts through."""
        return frozenset(hook for part in self.each for hook in part.acts)

    def plan_key(self) -> Hashable:
        """Returns the keys of all parts; None if one has none."""
        keys = [part.plan_key() for part in self.each]
        return None if None in keys else (self._edition, *keys)

    def _placed(self, coordinates: Coordinates) -> tuple[Placed, ...]:
        """Returns the coordinates placed by each part, with its tables."""
        placed = self.place(coordinates)
        assert isinstance(placed, Placed)  # since it has tables
        if placed.parts is not None:
            return placed.parts
        learned = placed.learned or (None,) * len(self.each)
        each = zip(self.each, placed.tables, learned, strict=True)
        parts = tuple([placed.placed_by(part, tables, learned=own) for part, tables, own in each])
        if not torch.compiler.is_compiling():
            object.__setattr__(placed, "parts", parts)
        return parts

    # ------------------------------------------------------------ the hooks

    def locate(self, coordinates: Coordinates) -> Coordinates:
        """Returns the coordinates after ``locate`` of every part."""
        for part in self.each:
            coordinates = part._located(coordinates)
        return coordinates

    def relocate(
        self, q_at: Coordinates, k_at: Coordinates, q_input: Input = None, k_input: Input = None
    ) -> tuple[Coordinates, Coordinates]:
        """Returns both sides after ``relocate`` of every part, with the tables of each."""
        moving = [type(part).relocate is not PositionEncoding.relocate for part in self.each]
        if not any(moving):
            return q_at, k_at
        tables_of_parts = []
        for part, moves in zip(self.each, moving, strict=True):
            q_at, k_at = q_at.placed_by(part), k_at.placed_by(part)
            if moves:
                q_at, k_at = part._relocated(q_at, k_at, q_input, k_input)
            tables_of_parts.append((q_at.tables, k_at.tables))
        q_tables, k_tables = (
            tuple(part.tables_of(side) if own is None else own for part, own in zip(self.each, tables, strict=True))
            for side, tables in zip((q_at, k_at), zip(*tables_of_parts, strict=True), strict=True)
        )
        return q_at.placed_by(self, q_tables), k_at.placed_by(self, k_tables)

    def tables(self, coordinates: Coordinates) -> Any:
        """Returns the tables of each part."""
        return tuple(part.tables_of(coordinates) for part in self.each)

    def learned_tables(self, coordinates: Coordinates) -> Any:
        """Returns the learned tables of each part, or None if no part has any."""
        sides = zip(self.each, self._placed(coordinates), strict=True)
        learned = tuple(part.learned_tables(side) for part, side in sides)
        return None if all(own is None for own in learned) else learned

    def embed(self, x: Tensor, coordinates: Coordinates | Tensor | None = None) -> Tensor:
        """Returns x [batch, n, embed_dim] after ``embed`` of all parts."""
        for part, at in zip(self.each, self._placed(self.coordinates_for(x, coordinates)), strict=True):
            x = part.embed(x, at)
        return x

    def split(self, side: str, x: Tensor, coordinates: Coordinates) -> tuple[Tensor, Rotation | None]:
        """Returns x after the transforms of all parts, except a rotation by the last part that transforms it."""
        hook = "values" if side == "value" else "prepare"
        if hook not in self._rotates:
            return super().split(side, x, coordinates)
        rotation: Rotation | None = None
        for part, at in zip(self.each, self._placed(coordinates), strict=True):
            if hook in part.acts:
                x, rotation = part._split_of(side, x if rotation is None else rotation._of(x), at)
        return x, rotation

    def split_output(self, out: Tensor, coordinates: Coordinates) -> tuple[Rotation | None, Restore | None]:
        """Returns the rotation of the last part that transforms values, inverted first, and the rest of all parts."""
        if "values" not in self._rotates:
            return super().split_output(out, coordinates)
        parts = zip(self.each, self._placed(coordinates), strict=True)
        (last, at), *before = reversed([(part, at) for part, at in parts if "values" in part.acts])
        rotation, rest = last._split_output_of(out, at)
        if not before:
            return rotation, rest

        def restore(out: Tensor) -> Tensor:
            out = out if rest is None else rest(out)
            for part, at in before:
                rotation, own = part._split_output_of(out, at)
                out = out if rotation is None else rotation._of(out)
                out = out if own is None else own(out)
            return out

        return rotation, restore

    def prepare_query(self, q: Tensor, coordinates: Coordinates) -> Tensor:
        """Returns q [batch, heads, n, head_dim] after the transforms of all parts."""
        for part, at in zip(self.each, self._placed(coordinates), strict=True):
            q = part.prepare_query(q, at)
        return q

    def prepare_key(self, k: Tensor, coordinates: Coordinates) -> Tensor:
        """Returns k [batch, kv_heads, m, head_dim] after the transforms of all parts."""
        for part, at in zip(self.each, self._placed(coordinates), strict=True):
            k = part.prepare_key(k, at)
        return k

    def prepare_value(self, v: Tensor, coordinates: Coordinates) -> Tensor:
        """Returns v [batch, kv_heads, m, v_dim] after the transforms of all parts."""
        for part, at in zip(self.each, self._placed(coordinates), strict=True):
            v = part.prepare_value(v, at)
        return v

    def restore_output(self, out: Tensor, coordinates: Coordinates) -> Tensor:
        """Returns out [batch, heads, n, v_dim] after the inverse transforms of all parts, the last part first."""
        for part, at in reversed(list(zip(self.each, self._placed(coordinates), strict=True))):
            out = part.restore_output(out, at)
        return out

    def terms(self, q_at: Coordinates, k_at: Coordinates, q_input: Input = None, k_input: Input = None) -> Terms:
        """Returns the terms of all parts."""
        sides = zip(self.each, self._placed(q_at), self._placed(k_at), strict=True)
        return tuple(term for part, q_at, k_at in sides for term in part._terms_of(q_at, k_at, q_input, k_input))

    def default_scale(self, head_dim: int) -> float:
        """Returns the scale of the part that has one of its own, else head_dim^−½.

        Raises:
            HeadwayError: if parts have different scales of their own.
        """
        usual = super().default_scale(head_dim)
        scales = [(part, part.default_scale(head_dim)) for part in self.each]
        own = [(type(part).__name__, scale) for part, scale in scales if scale != usual]
        if len({scale for _, scale in own}) > 1:
            said = " and ".join(f"{name} {scale:g}" for name, scale in own)
            raise HeadwayError(f"the parts have different scales ({said}): give scale=")
        return own[0][1] if own else usual

    # ------------------------------------------------------------ for the checks

    def _elsewhere(self, part: PositionEncoding, coordinates: Coordinates) -> Coordinates:
        """Returns the coordinates after ``locate`` of the other parts; the part's own oracle locates them itself."""
        for other in self.each:
            if other is not part:
                coordinates = other.oracle_locate(coordinates)
        return coordinates

    def oracle(self, pair: Pair) -> float:
        """Returns s·⟨q, k⟩ plus each part's change: the score, if at most one part transforms q and k.

        Raises:
            HeadwayError: if several parts transform queries and keys.
        """
        if sum("prepare" in part.acts for part in self.each) > 1:
            raise HeadwayError("two parts transform queries and keys: scores of pairs are not sums over the parts")
        sharper = [part for part in self.each if isinstance(part, Scaling)]
        for part in sharper:
            pair = replace(pair, scale=pair.scale * part.oracle_temperature(self._seen_by(part, pair)))
        plain = super().oracle(pair)
        rest = (part for part in self.each if part not in sharper)
        return plain + sum(part.oracle(self._seen_by(part, pair)) - plain for part in rest)

    def oracle_value(self, pair: Pair, v: Tensor) -> Tensor:
        """Returns the value of a pair after the changes of all parts.

        Raises:
            HeadwayError: if one part transforms values and another changes them otherwise.
        """
        changing = [part for part in self.each if type(part).oracle_value is not PositionEncoding.oracle_value]
        if len(changing) > 1 and "values" in self.acts:
            raise HeadwayError(
                "one part transforms values and another changes them: values of pairs are not sums over the parts"
            )
        plain = super().oracle_value(pair, v)
        return reduce(torch.add, (part.oracle_value(self._seen_by(part, pair), v) - plain for part in self.each), plain)

    def oracle_weights(self, h: int, i: int, scores: list[float]) -> list[float]:
        """Returns the weights of the part that replaces the softmax, or else the softmax."""
        usual = PositionEncoding.oracle_weights
        own = [part for part in self.each if type(part).oracle_weights is not usual]
        return own[0].oracle_weights(h, i, scores) if own else super().oracle_weights(h, i, scores)

    def oracle_locate(self, coordinates: Coordinates) -> Coordinates:
        return reduce(lambda where, part: part.oracle_locate(where), self.each, coordinates)

    def _seen_by(self, part: PositionEncoding, pair: Pair) -> Pair:
        return replace(pair, coordinates=self._elsewhere(part, pair.coordinates))

    def oracle_embed(self, x: Tensor, coordinates: Coordinates) -> Tensor:
        for part in self.each:
            x = part.oracle_embed(x, self._elsewhere(part, coordinates))
        return x

    @classmethod
    def examples(cls) -> list[PositionEncoding]:
        from ._encodings.alibi import ALiBi
        from ._encodings.log_n import LogN
        from ._encodings.rope import RoPE
        from ._encodings.shaw import Shaw

        return [cls(RoPE(8), ALiBi(4), LogN(3)), cls(ALiBi(6), Shaw(8, max_distance=3))]
