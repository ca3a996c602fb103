"""The base class of rotary encodings whose phases depend on content."""

from __future__ import annotations

from torch import Tensor

from ..coordinates import Coordinates
from ..errors import HeadwayError, need_positive
from ..terms import Rotation
from ._base import Input
from ._content import Contextual, heads_of_keys, numbers_of
from ._formulas import need_width
from ._rotary import Rotary


class ContentRotary(Contextual, Rotary):
    """Rotates queries and keys by phases that the layer's input determines.

    A subclass defines ``turns``, the phases of all keys. Keys are cached unrotated, since the phase of a token depends
    on the tokens before it. The phases have as many heads as the keys.

    Args:
        embed_dim: the width of the layer's input, at least 1.
        num_heads: the number of query heads, at least 1.
        head_dim: the width of each head, even; embed_dim / num_heads if None.
        num_kv_heads: the number of key and value heads, a divisor of num_heads; num_heads if None.
        layout: which dimensions form the pair c: (2c, 2c+1) for "interleaved", (c, c + head_dim/2) for "half".

    Raises:
        HeadwayError: if a size is below 1, head_dim is odd, num_kv_heads does not divide num_heads, or layout is
            unknown.
    """

    cache_prepared = False

    def __init__(
        self, embed_dim: int, num_heads: int, head_dim: int | None, num_kv_heads: int | None, layout: str
    ) -> None:
        need_positive(embed_dim=embed_dim, num_heads=num_heads)
        super().__init__(embed_dim // num_heads if head_dim is None else head_dim, layout)
        self.embed_dim, self.num_heads = embed_dim, num_heads
        self.num_kv_heads = heads_of_keys(num_heads, num_kv_heads)

    def turns(self, x: Tensor, k_at: Coordinates) -> Tensor:
        """Returns φ, [batch, kv_heads or 1, m, pairs] in float64.

        Args:
            x: the input of the layer's keys, [batch, m, embed_dim] in float64.
            k_at: the coordinates of the keys.

        Raises:
            NotImplementedError: if the subclass does not define it.
        """
        raise NotImplementedError

    def relocate(
        self, q_at: Coordinates, k_at: Coordinates, q_input: Input = None, k_input: Input = None
    ) -> tuple[Coordinates, Coordinates]:
        """Returns both sides with the cosines and sines of their phases; the queries are the last of the keys.

        Raises:
            HeadwayError: if there are more queries than keys.
        """
        n, m = numbers_of(self, q_at, k_at)
        phases = self.turns(self.read(k_input), k_at)
        cos, sin = phases.cos(), phases.sin()
        queries = slice(m - n, None)
        q_tables = (cos[:, :, queries], sin[:, :, queries])
        return q_at.placed_by(self, q_tables), k_at.placed_by(self, (cos, sin))

    def tables(self, coordinates: Coordinates) -> None:
        """Returns None, since no phase depends on coordinates only."""

    def rotation(self, side: str, x: Tensor, coordinates: Coordinates) -> Rotation | None:
        """Returns the rotation of x [batch, heads, n, head_dim] by the phases that ``relocate`` has computed.

        Raises:
            HeadwayError: if ``relocate`` was not called, or x has another number of heads.
        """
        need_width(x, "head_dim", self.head_dim)
        if coordinates.tables is None or not coordinates.belongs_to(self):
            raise HeadwayError(
                f"the phases of {type(self).__name__} come from the input: call relocate first, as attention does"
            )
        cos, sin = coordinates.tables
        if cos.shape[1] not in (1, x.shape[1]):
            if x.shape[1] % cos.shape[1]:
                raise HeadwayError(
                    f"x has {x.shape[1]} heads but phases are for {cos.shape[1]}: build {type(self).__name__} with "
                    f"the heads of the keys as num_kv_heads"
                )
            cos, sin = (part.repeat_interleave(x.shape[1] // cos.shape[1], dim=1) for part in (cos, sin))
        return Rotation(cos, sin, self.layout)

    def oracle_head(self, h: int) -> int:
        """Returns the key head of query head ``h``."""
        return h * self.num_kv_heads // self.num_heads
