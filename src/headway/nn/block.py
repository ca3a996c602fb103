"""One layer of a Transformer: attention, cross-attention, feed-forward, each with its norm and residual."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ..coordinates import Coordinates
from ..errors import HeadwayError
from ..masks import Mask
from ..positions._base import PositionEncoding
from ._transaction import transaction
from .attention import MultiHeadAttention
from .cache import KeyValueCache
from .feed_forward import FeedForward
from .norm import make_norm

Part = Callable[[Tensor], Tensor]


class Block(nn.Module):
    """Attention and feed-forward, each around a residual.

        norm_first:       x = x + attention(norm(x));  x = x + feed_forward(norm(x))
        norm_first=False: x = norm(x + attention(x));  x = norm(x + feed_forward(x))
        norm_after:       x = x + after(attention(norm(x)));  x = x + after(feed_forward(norm(x)))

    With ``cross_attention`` a third part, from x to a context, stands between the two. Each part is built by
    the keywords, or handed in: ``attention=``, ``cross_attention=``, ``feed_forward=`` take any module that
    is called as MultiHeadAttention and FeedForward are; ``norm`` takes a function of the width.

    Shapes: x [batch, n, embed_dim] → [batch, n, embed_dim]; context [batch, m, embed_dim].
    feed_forward_dim: 4·embed_dim without another choice. ``norm_after``, like ``norm`` and only with norm_first, norms
    what each part adds as well. Dropout acts on the attention weights, in the feed-forward and on what each part adds
    to the residual; in training alone. device, dtype: of the parameters made here; parts handed in stay as they are.
    Raises HeadwayError for sizes that do not fit, and for a context without cross-attention or the other way
    round.
    Cite: Vaswani et al. 2017 (norm behind), Xiong et al. 2020 (norm first), Ding et al. 2021 (on both sides).
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        feed_forward_dim: int | None = None,
        num_kv_heads: int | None = None,
        head_dim: int | None = None,
        activation: str = "gelu",
        norm: str | Callable[[int], nn.Module] = "layer",
        norm_first: bool = True,
        norm_after: str | Callable[[int], nn.Module] | None = None,
        bias: bool = True,
        dropout: float = 0.0,
        scale: float | None = None,
        soft_cap: float | None = None,
        sink: Tensor | float | None = None,
        kernel: str = "auto",
        attention: nn.Module | None = None,
        cross_attention: nn.Module | bool = False,
        feed_forward: nn.Module | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        if norm_after is not None and not norm_first:
            raise HeadwayError("norm_after is given but norm_first is False: what a part adds is normed already")
        super().__init__()
        made: dict[str, Any] = {"device": device, "dtype": dtype}

        def build(sink: Tensor | float | None) -> MultiHeadAttention:
            return MultiHeadAttention(
                embed_dim,
                num_heads,
                num_kv_heads=num_kv_heads,
                head_dim=head_dim,
                bias=bias,
                dropout=dropout,
                scale=scale,
                soft_cap=soft_cap,
                sink=sink,
                kernel=kernel,
                **made,
            )

        self.norm_first = norm_first
        self.attention_norm = make_norm(norm, embed_dim, **made)
        self.attention = build(sink) if attention is None else attention
        cross = cross_attention if isinstance(cross_attention, nn.Module) else None
        self.cross_attention = build(None) if cross is None and cross_attention else cross
        self.cross_attention_norm = None if self.cross_attention is None else make_norm(norm, embed_dim, **made)
        self.feed_forward_norm: nn.Module | None = make_norm(norm, embed_dim, **made)
        self.feed_forward = feed_forward or FeedForward(
            embed_dim,
            4 * embed_dim if feed_forward_dim is None else feed_forward_dim,
            activation,
            bias=bias,
            dropout=dropout,
            **made,
        )
        self.attention_norm_after = None if norm_after is None else make_norm(norm_after, embed_dim, **made)
        self.feed_forward_norm_after = None if norm_after is None else make_norm(norm_after, embed_dim, **made)
        self.dropout = nn.Dropout(dropout)

    def forward(
        self,
        x: Tensor,
        *,
        mask: Mask | Tensor | None = None,
        positions: Tensor | Coordinates | None = None,
        key_positions: Tensor | Coordinates | None = None,
        encoding: PositionEncoding | None = None,
        cache: KeyValueCache | None = None,
        memory: Tensor | None = None,
        context: Tensor | None = None,
        context_mask: Mask | Tensor | None = None,
        context_positions: Tensor | Coordinates | None = None,
        context_cache: KeyValueCache | None = None,
    ) -> Tensor:
        """x [batch, n, embed_dim] → the same.

        memory [batch, m, embed_dim] are hidden states that stand before x: keys are those of both, and
        ``key_positions`` says where both are. ``context_mask`` says which tokens of the context may be seen.
        """
        if (context is None) != (self.cross_attention is None):
            raise HeadwayError(
                "the block has no cross_attention but context is given: build it with cross_attention=True"
                if context is not None
                else "the block has cross_attention but no context is given: give [batch, m, embed_dim]"
            )

        def attend(x: Tensor) -> Tensor:
            # With a memory x is the memory and this segment, of which only the segment asks.
            n = x.shape[1] - (0 if memory is None else memory.shape[1])
            out: Tensor = self.attention(
                x[:, x.shape[1] - n :],
                None if memory is None else x,
                mask=mask,
                positions=positions,
                key_positions=key_positions,
                encoding=encoding,
                cache=cache,
            )
            return out if self.attention_norm_after is None else self.attention_norm_after(out)

        def attend_context(x: Tensor) -> Tensor:
            assert self.cross_attention is not None
            out: Tensor = self.cross_attention(
                x,
                context,
                mask=context_mask,
                positions=positions,
                key_positions=context_positions,
                cache=context_cache,
            )
            return out

        def feed(x: Tensor) -> Tensor:
            out: Tensor = self.feed_forward(x)
            return out if self.feed_forward_norm_after is None else self.feed_forward_norm_after(out)

        with transaction(cache, context_cache):
            return self._join(x, memory, attend, attend_context, feed)

    def _join(self, x: Tensor, memory: Tensor | None, attend: Part, attend_context: Part, feed: Part) -> Tensor:
        """How the parts follow one another."""
        x = self._residual(x, self.attention_norm, attend, before=memory)
        if self.cross_attention is not None and self.cross_attention_norm is not None:
            x = self._residual(x, self.cross_attention_norm, attend_context)
        assert self.feed_forward_norm is not None
        return self._residual(x, self.feed_forward_norm, feed)

    def _residual(self, x: Tensor, norm: nn.Module, part: Part, before: Tensor | None = None) -> Tensor:
        """x and what the part adds to it; ``before`` is shown to the part in front of x."""
        shown = x if before is None else torch.cat([before, x], dim=1)
        if self.norm_first:
            return x + self._dropped(part(norm(shown)))
        out: Tensor = norm(x + self._dropped(part(shown)))
        return out

    def _dropped(self, x: Tensor) -> Tensor:
        dropout = self.dropout  # asked here, a token of decoding is spared ninety calls that do nothing
        return dropout(x) if dropout.training else x


class ParallelBlock(Block):
    """Attention and feed-forward side by side, around one residual.

        x = x + attention(norm(x)) + feed_forward(norm'(x))

    Takes what Block takes but cross_attention and norm_first=False. norm' is the same norm with ``shared_norm``, as in
    GPT-J and Phi, and one of its own without, as in GPT-NeoX.
    Cite: Wang and Komatsuzaki 2021 (GPT-J); Black et al. 2022 (GPT-NeoX).
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        shared_norm: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **parts: Any,
    ) -> None:
        for name, idle in (("cross_attention", False), ("norm_first", True)):
            if parts.get(name, idle) is not idle:
                raise HeadwayError(f"{name} is {parts[name]!r}: parallel parts have none of it, leave it out")
        super().__init__(embed_dim, num_heads, device=device, dtype=dtype, **parts)
        if shared_norm:
            self.feed_forward_norm = None

    def _join(self, x: Tensor, memory: Tensor | None, attend: Part, attend_context: Part, feed: Part) -> Tensor:
        normed = self.attention_norm(x)
        shown = normed if memory is None else torch.cat([self.attention_norm(memory), normed], dim=1)
        other = normed if self.feed_forward_norm is None else self.feed_forward_norm(x)
        return x + self._dropped(attend(shown)) + self._dropped(feed(other))
