"""Attention to the keys and values of an earlier layer, which several layers share."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from ..attention import attention
from ..coordinates import Coordinates
from ..errors import HeadwayError, need_positive, right_call
from ..jagged import is_nested
from ..masks import AnyMask, Mask, mask_or_tensor
from ..positions._base import PositionEncoding
from ..tracing import refuse_script, watched
from .attention import caches_prepared, check_encoding, make_parts
from .cache import KeyValueCache
from .linear import apply_linear, reset_projections
from .norm import make_norm
from .parts import LayerSizes, Part, PartLike, parts_of


class CrossLayerAttention(nn.Module):
    """Attends to the keys and values that an earlier layer has put into a cache; it computes only queries.

        out = Wo·concat_h( attention(Wq_h·x, k_h, v_h) ),   k and v those of the cache

    Layers that share keys and values use one cache. If L layers share it, caches hold 1/L of the numbers. Pass the
    cache first to a ``MultiHeadAttention``, which appends the tokens of the call, and then to this layer with the input
    of the same tokens. Make a new cache for each training pass; the earlier layer gets its gradient through it. The
    encoding that has prepared the keys in the cache also prepares the queries.

    Args:
        embed_dim: the width of input and output.
        num_heads: the number of query heads, a multiple of those of the keys in the cache.
        head_dim: the width of each head; embed_dim / num_heads if None.
        encoding: the position encoding, the same object as that of the layer that fills the cache. If None, the
            encoding that has prepared the keys of the cache. Give an encoding that adds biases here too.
        bias: whether both projections have a bias.
        dropout: the probability of dropping an attention weight in training, 0 ≤ dropout < 1.
        scale: the factor of the scores; the encoding's own (head_dim^−½ for most) if None.
        qk_norm: the norm of each head's query, before the encoding: "rms", "layer" or a function of the width; none
            if None.
        parts: what the layer computes around attention, as in MultiHeadAttention. Only parts that change just the
            output, such as "head-gate".
        layer: the number of the layer in its stack, from 0, for parts that depend on it.
        kernel: the name of an attention kernel, or "auto".
        device: the device of the parameters created here; an encoding passed in keeps its own.
        dtype: the dtype of the parameters created here, likewise.

    Shape:
        x: [batch, n, embed_dim]
        Output: [batch, n, embed_dim]

    Raises:
        HeadwayError: if sizes are below 1 or do not divide, dropout is outside of its range, encoding is not a
            PositionEncoding, or a part changes values.

    References:
        Brandon et al. 2024, arXiv:2405.12981, section 3.

    Example:
        cache = KeyValueCache()
        first, second = MultiHeadAttention(512, 8), CrossLayerAttention(512, 8)
        y = first(x, mask=Causal(), cache=cache)
        z = second(y, mask=Causal(), cache=cache)
    """

    __prepare_scriptable__ = refuse_script

    @right_call("CrossLayerAttention(embed_dim=512, num_heads=8)")
    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        head_dim: int | None = None,
        encoding: PositionEncoding | None = None,
        bias: bool = True,
        dropout: float = 0.0,
        scale: float | None = None,
        qk_norm: str | Callable[[int], nn.Module] | None = None,
        parts: Sequence[PartLike] = (),
        layer: int = 0,
        kernel: str = "auto",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        need_positive(embed_dim=embed_dim, num_heads=num_heads, **({} if head_dim is None else {"head_dim": head_dim}))
        if head_dim is None and embed_dim % num_heads:
            raise HeadwayError(f"num_heads is {num_heads}: give a divisor of embed_dim, {embed_dim}, or head_dim")
        if not 0 <= dropout < 1:
            raise HeadwayError(f"dropout is {dropout}: give at least 0 and less than 1")
        width = head_dim or embed_dim // num_heads
        if encoding is not None:
            check_encoding(encoding, width)
        super().__init__()
        self.embed_dim, self.num_heads, self.head_dim = embed_dim, num_heads, width
        self.encoding, self.dropout, self.scale, self.kernel = encoding, dropout, scale, kernel
        self.q_proj = nn.Linear(embed_dim, num_heads * width, bias=bias, device=device, dtype=dtype)
        self.out_proj = nn.Linear(num_heads * width, embed_dim, bias=bias, device=device, dtype=dtype)
        self.q_norm = None if qk_norm is None else make_norm(qk_norm, width, device=device, dtype=dtype)
        self.parts = make_parts(parts, LayerSizes(embed_dim, num_heads, num_heads, width, layer), device, dtype)
        for part in parts_of(self.parts):
            if type(part).values is not Part.values or type(part).attended is not Part.attended:
                raise HeadwayError(
                    f"parts has a {type(part).__name__}, which changes values, and they are another layer's: drop it"
                )
        self._reset_own()

    def reset_parameters(self) -> None:
        """Resets projections to uniform values of variance 2/(in + out) (Glorot and Bengio 2010), and biases to 0.

        Parts are reset, too.
        """
        self._reset_own()
        for part in parts_of(self.parts):
            part.reset_parameters()

    def _reset_own(self) -> None:
        reset_projections(self.q_proj, self.out_proj)

    def forward(
        self,
        x: Tensor,
        *,
        cache: KeyValueCache,
        mask: AnyMask = None,
        positions: Tensor | Coordinates | None = None,
        encoding: PositionEncoding | None = None,
    ) -> Tensor:
        """Returns the attention of x to the keys in the cache, [batch, n, embed_dim].

        Args:
            x: [batch, n, embed_dim], the input of the last n tokens of the cache.
            cache: the cache that an earlier layer has filled, with these tokens too. It does not change.
            mask: which keys each query may see; all if None.
            positions: the positions of the tokens of x, if the cache keeps none; else those in the cache, or None.
            encoding: used in place of the layer's own.

        Raises:
            HeadwayError: if x has another width or is jagged, the cache was made with a mask, it holds fewer tokens
                than x has or heads that do not fit, positions differ from its own (checked on a CPU), or another
                encoding has prepared its keys.
        """
        if is_nested(x):
            raise HeadwayError(
                "x is jagged, but caches hold no jagged keys: give [batch, tokens, embed_dim], padded or packed"
            )
        if x.ndim != 3 or x.shape[-1] != self.embed_dim:
            raise HeadwayError(f"x has shape {tuple(x.shape)}: give [batch, tokens, {self.embed_dim}]")
        if cache.retention is not None:
            raise HeadwayError(
                "the cache drops tokens under its mask when one layer has read it: use KeyValueCache() for layers that "
                "share one"
            )
        n, m = x.shape[1], len(cache)
        if n > m:
            raise HeadwayError(
                f"x has {n} tokens but the cache holds {m}: call the layer that fills it first, with these tokens"
            )
        keys, values = cache.keys, cache.values
        if values.shape != keys.shape:
            raise HeadwayError(
                f"the cache holds values {list(values.shape)} for keys {list(keys.shape)}: fill it by a layer whose "
                "values have the heads and width of its keys, as without differential attention"
            )
        if keys.shape[0] != x.shape[0] or keys.shape[-1] != self.head_dim or self.num_heads % keys.shape[1]:
            raise HeadwayError(
                f"the cache holds keys {list(keys.shape)}: give x a batch of {keys.shape[0]}, and build the layer with "
                f"head_dim={keys.shape[-1]} and a multiple of {keys.shape[1]} for num_heads"
            )
        encoding = next((one for one in (encoding, self.encoding) if one is not None), cache.prepared_by)
        prepared_by = encoding if caches_prepared(encoding) else None
        cache.need_prepared_by(prepared_by)
        own, all_keys = self._places(cache, positions, n, x.device)
        q = apply_linear(self.q_proj, x).unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2)
        if self.q_norm is not None:
            q = self.q_norm(q)
        shown = mask_or_tensor(mask)
        assert shown is None or isinstance(shown, (Mask, Tensor))
        out = attention(
            q,
            keys,
            values,
            encoding=encoding,
            mask=shown,
            scale=self.scale,
            dropout=self.dropout if self.training else 0.0,
            q_positions=own,
            k_positions=all_keys,
            q_input=x,
            k_input=cache.inputs,
            prepared_by=prepared_by,
            kernel=self.kernel,
        )
        if parts_of(self.parts):
            values = values[:, :, m - n :]
            if prepared_by is not None:  # parts read values as projected
                values = prepared_by.restore_output(values, prepared_by.place(own))
        for part in parts_of(self.parts):
            out = part.output(out, x, values)
        return apply_linear(self.out_proj, out.transpose(1, 2).flatten(2))

    def _places(
        self, cache: KeyValueCache, positions: Tensor | Coordinates | None, n: int, device: torch.device
    ) -> tuple[Coordinates, Coordinates]:
        """Returns the coordinates of the last n tokens of a cache, and of all of them."""
        m, all_keys = len(cache), cache.coordinates
        if all_keys is None:
            all_keys = Coordinates.span(m, device=device)
            if positions is not None:
                return Coordinates.of(positions, n, start=m - n), all_keys
        # all tokens are one object, for which an encoding draws places once
        own = all_keys if n == m else all_keys.rows(m - n, m)
        if positions is not None:
            given = Coordinates.of(positions, n).position
            if given.is_cpu and not watched() and bool((given != own.position).any()):
                raise HeadwayError(
                    "positions differ from those of the same tokens in the cache: leave them out, or give "
                    "the positions that the layer which fills it got"
                )
        placed = cache.placed
        if placed is not None and placed.index.shape[1] >= n:
            placed_tokens = placed.index.shape[1]
            own = placed if placed_tokens == n else placed.rows(placed_tokens - n, placed_tokens)
        return own, all_keys

    def extra_repr(self) -> str:
        return f"embed_dim={self.embed_dim}, num_heads={self.num_heads}"
