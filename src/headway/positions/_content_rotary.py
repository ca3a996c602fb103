"""The family of rotary encodings whose phases content decides."""

from __future__ import annotations

from torch import Tensor

from ..coordinates import Coordinates
from ..errors import HeadwayError, need_positive
from ..terms import Rotation
from ._base import Input, need_width
from ._content import Contextual, heads_of_keys
from ._rotary import Rotary


class ContentRotary(Contextual, Rotary):
    """Queries and keys are turned by phases that grow along the stream as the layer's input says.

    A member says ``turns``, the phases of all keys. Keys are never cached turned: a cache that turned one token alone
    would not know what went before. Keys may have fewer heads than queries: ``num_kv_heads``, num_heads if None, which
    is how many heads the phases have.
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
        """φ in float64, [batch, kv_heads or 1, m, pairs]; x [batch, m, embed_dim] in float64."""
        raise NotImplementedError

    def relocate(
        self, q_at: Coordinates, k_at: Coordinates, q_input: Input = None, k_input: Input = None
    ) -> tuple[Coordinates, Coordinates]:
        """Both sides with the cosines and sines of their phases; the queries are the last of the keys."""
        phases = self.turns(self.read(k_input), k_at)
        cos, sin = phases.cos(), phases.sin()
        queries = slice(phases.shape[2] - q_at.index.shape[1], None)
        q_tables = (cos[:, :, queries], sin[:, :, queries])
        return q_at.placed_by(self, q_tables), k_at.placed_by(self, (cos, sin))

    def tables(self, coordinates: Coordinates) -> None:
        """Nothing: coordinates alone decide no phase."""

    def rotation(self, side: str, x: Tensor, coordinates: Coordinates) -> Rotation | None:
        """The turn of x [batch, heads, n, head_dim] by the phases that ``relocate`` has found."""
        need_width(x, "head_dim", self.head_dim)
        if coordinates.tables is None or not coordinates.belongs_to(self):
            raise HeadwayError(
                f"the phases of {type(self).__name__} come of the layer's input: call relocate first, as attention does"
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
        """The head of the keys that query head h looks at."""
        return h * self.num_kv_heads // self.num_heads
