"""One layer of a Transformer: attention, cross-attention and feed-forward, each with its norm and residual."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import Never

from ..coordinates import Coordinates
from ..errors import HeadwayError, refuse, refuses_others, right_call
from ..jagged import Sequences, is_nested, need_none
from ..masks import AnyMask, mask_or_tensor
from ..positions._base import PositionEncoding
from ..tracing import refuse_tracers
from ._transaction import transaction
from .attention import MultiHeadAttention
from .cache import KeyValueCache
from .feed_forward import FeedForward
from .norm import make_norm
from .parts import FirstValues, PartLike

Sublayer = Callable[[Tensor], Tensor]


class Block(nn.Module):
    """Applies attention and a feed-forward layer, each with a norm and a residual connection.

        norm_first:       x = x + attention(norm(x));  x = x + feed_forward(norm(x))
        norm_first=False: x = norm(x + attention(x));  x = norm(x + feed_forward(x))
        norm_after:       x = x + after(attention(norm(x)));  x = x + after(feed_forward(norm(x)))

    With ``cross_attention``, attention from x to a context comes between the two. In training, dropout acts on the
    attention weights, inside the feed-forward layer, and on what each part adds to the residual.

    Args:
        embed_dim: the width of input and output.
        num_heads: the number of query heads.
        feed_forward_dim: the number of hidden features of the feed-forward layer; 4·embed_dim if None.
        num_kv_heads: the number of key and value heads; ``num_heads`` if None.
        head_dim: the width of each head; embed_dim / num_heads if None.
        activation: the activation of the feed-forward layer, as in FeedForward.
        norm: "layer", "rms" or a function of the width.
        norm_first: whether norms come before the parts, or after the residual sums.
        norm_after: a second norm, of what attention and feed-forward add to the residual: "layer", "rms" or a
            function of the width. Needs ``norm_first``.
        bias: whether projections and feed-forward maps have biases.
        dropout: the probability of dropping an element, 0 ≤ dropout < 1.
        scale: the factor of the scores; the encoding's own (head_dim^−½ for most) if None.
        soft_cap: bounds the scores, score ← cap·tanh(score/cap), if given.
        sink: the attention sink of self-attention, as in MultiHeadAttention; none if None.
        encoding: the position encoding of self-attention, as in MultiHeadAttention; none if None.
        parts: what self-attention computes around attention, as in MultiHeadAttention.
        layer: the number of the block in its stack, from 0, for parts that depend on it.
        kernel: the name of an attention kernel, or "auto".
        attention: a module with the call of MultiHeadAttention; built from the arguments above if None.
        cross_attention: True builds cross-attention from the arguments above; a module is used as it is.
        feed_forward: a module with the call of FeedForward; built from the arguments above if None.
        device: the device of the parameters created here; modules and tensors passed in keep their own.
        dtype: the dtype of the parameters created here, likewise.

    Shape:
        x: [batch, n, embed_dim]
        context: [batch, m, embed_dim]
        Output: [batch, n, embed_dim]

    Raises:
        HeadwayError: if sizes do not fit, a name is unknown, or ``norm_after`` is given without ``norm_first``.

    References:
        Vaswani et al. 2017 (norm after the sum); Xiong et al. 2020 (norm first); Ding et al. 2021 (both).
    """

    @right_call("Block(embed_dim=512, num_heads=8)")
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
        encoding: PositionEncoding | str | None = None,
        parts: Sequence[PartLike] = (),
        layer: int = 0,
        kernel: str = "auto",
        attention: nn.Module | None = None,
        cross_attention: nn.Module | bool = False,
        feed_forward: nn.Module | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        if norm_after is not None and not norm_first:
            raise HeadwayError("norm_after is given but norm_first is False: leave one of them out")
        super().__init__()
        made: dict[str, Any] = {"device": device, "dtype": dtype}

        def build(
            sink: Tensor | float | None,
            encoding: PositionEncoding | str | None = None,
            parts: Sequence[PartLike] = (),
        ) -> MultiHeadAttention:
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
                encoding=encoding,
                parts=parts,
                layer=layer,
                kernel=kernel,
                **made,
            )

        self.norm_first = norm_first
        self.attention_norm = make_norm(norm, embed_dim, **made)
        self.attention = build(sink, encoding, parts) if attention is None else attention
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

    @refuses_others
    def forward(
        self,
        x: Tensor,
        *,
        mask: AnyMask = None,
        positions: Tensor | Coordinates | None = None,
        key_positions: Tensor | Coordinates | None = None,
        encoding: PositionEncoding | str | None = None,
        cache: KeyValueCache | None = None,
        memory: Tensor | None = None,
        context: Tensor | None = None,
        context_mask: AnyMask = None,
        context_positions: Tensor | Coordinates | None = None,
        context_cache: KeyValueCache | None = None,
        first_values: FirstValues | None = None,
        last: int | None = None,
        **others: Never,
    ) -> Tensor:
        """Returns the output of the block, [batch, n, embed_dim].

        Args:
            x: [batch, n, embed_dim], or a jagged tensor of sequences of different lengths (``torch.nested``). The
                context and the output are jagged then.
            mask: which keys each token of x may see in self-attention; all if None.
            positions: the positions of x.
            key_positions: the positions of all keys of self-attention, those of a memory or a cache included.
            encoding: the position encoding of self-attention; the layer's own if None.
            cache: the keys and values of past tokens, to which those of x are appended.
            memory: hidden states [batch, m, embed_dim] that precede x. The keys are those of memory and x.
            context: the states [batch, m, embed_dim] that cross-attention reads.
            context_mask: which tokens of the context each token of x may see; all if None.
            context_positions: the positions of the context.
            context_cache: a cache for the keys and values of the context, which the first call fills.
            first_values: the values of the stack's first layer, for blocks with a ``ValueResidual``.
            last: computes the output of only so many last tokens of x, [batch, last, embed_dim]; all if None. Only for
                blocks without cross-attention.

        Raises:
            HeadwayError: if a context is given without cross-attention, or cross-attention has no context, or
                ``last`` is given with one.
        """
        refuse_tracers(x)
        if others:
            refuse(type(self).__name__, self.forward, others)
        if is_nested(x, context):
            return self._of_sequences(x, mask, positions, encoding, context, context_mask, context_positions, {
                "key_positions": key_positions, "cache": cache, "memory": memory, "context_cache": context_cache,
                "last": last,
            }, first_values)  # fmt: skip
        if (context is None) != (self.cross_attention is None):
            raise HeadwayError(
                "the block has no cross_attention but context is given: build it with cross_attention=True"
                if context is not None
                else "the block has cross_attention but no context is given: give [batch, m, embed_dim]"
            )

        if last is not None and context is not None:
            raise HeadwayError(
                "last and context are both given: leave out last, and take the last tokens of the output"
            )

        modules: Any = self._modules  # since each attribute that is a module takes a microsecond, which steps notice
        attention, feed_forward = modules["attention"], modules["feed_forward"]
        # modules that are called like MultiHeadAttention need not know this argument
        takes_first = first_values is not None and getattr(attention, "reads_first_values", False)
        options: dict[str, Any] = {"first_values": first_values} if takes_first else {}
        if last is not None:
            options["last"] = last

        def attend(x: Tensor) -> Tensor:
            # with a memory, x is the memory followed by this segment, and only the segment has queries
            out: Tensor = attention(
                x if memory is None else x[:, memory.shape[1] :],
                None if memory is None else x,
                mask=mask,
                positions=positions,
                key_positions=key_positions,
                encoding=encoding,
                cache=cache,
                **options,
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
            out: Tensor = feed_forward(x)
            return out if self.feed_forward_norm_after is None else self.feed_forward_norm_after(out)

        with transaction(cache, context_cache):
            return self._join(x, memory, attend, attend_context, feed)

    def _of_sequences(
        self,
        x: Tensor,
        mask: AnyMask,
        positions: Tensor | Coordinates | None,
        encoding: PositionEncoding | str | None,
        context: Tensor | None,
        context_mask: AnyMask,
        context_positions: Tensor | Coordinates | None,
        others: dict[str, object],
        first_values: FirstValues | None,
    ) -> Tensor:
        """Returns the output of jagged tensors, whose sequences are computed as one row."""
        need_none(others)
        mask, context_mask = map(mask_or_tensor, (mask, context_mask))
        rows = Sequences.of("x", x)
        keys = None if context is None else Sequences.of("context", context)
        out = self.forward(
            rows.row,
            mask=rows.mask(mask),
            positions=rows.coordinates("positions", positions),
            encoding=encoding,
            context=None if keys is None else keys.row,
            context_mask=None if keys is None else rows.mask(context_mask, keys),
            context_positions=None if keys is None else keys.coordinates("context_positions", context_positions),
            first_values=first_values,
        )
        return rows.jagged(out)

    def _join(
        self, x: Tensor, memory: Tensor | None, attend: Sublayer, attend_context: Sublayer, feed: Sublayer
    ) -> Tensor:
        """Applies the parts in their order."""
        modules: Any = self._modules
        x = self._residual(x, modules["attention_norm"], attend, before=memory)
        if self.cross_attention is not None and self.cross_attention_norm is not None:
            x = self._residual(x, self.cross_attention_norm, attend_context)
        return self._residual(x, modules["feed_forward_norm"], feed)

    def _residual(self, x: Tensor, norm: nn.Module, part: Sublayer, before: Tensor | None = None) -> Tensor:
        """Adds a part's output for x, or for its last tokens, to them. ``before`` precedes x in the part's input."""
        shown = x if before is None else torch.cat([before, x], dim=1)
        if self.norm_first:
            added = self._dropped(part(norm(shown)))
            return _last(x, added) + added
        added = self._dropped(part(shown))
        out: Tensor = norm(_last(x, added) + added)
        return out

    def _dropped(self, x: Tensor) -> Tensor:
        dropout: Any = self._modules["dropout"]  # not called in evaluation, where it does nothing but takes time
        return dropout(x) if dropout.training else x


class ParallelBlock(Block):
    """Applies attention and a feed-forward layer in parallel, with one residual connection.

        x = x + attention(norm(x)) + feed_forward(norm'(x))

    Args:
        embed_dim: the width of input and output.
        num_heads: the number of query heads.
        shared_norm: whether norm' is the norm of attention, as in GPT-J and Phi, or a second one, as in GPT-NeoX.
        device: the device of the parameters created here; modules and tensors passed in keep their own.
        dtype: the dtype of the parameters created here, likewise.
        **parts: further arguments of Block, except ``cross_attention`` and ``norm_first=False``.

    Shape:
        x: [batch, n, embed_dim]
        Output: [batch, n, embed_dim]

    Raises:
        HeadwayError: if Block raises it, or an argument is given that parallel parts do not have.

    References:
        Wang and Komatsuzaki 2021 (GPT-J); Black et al. 2022 (GPT-NeoX).
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
                raise HeadwayError(f"{name} is {parts[name]!r}, which a ParallelBlock does not support: leave it out")
        super().__init__(embed_dim, num_heads, device=device, dtype=dtype, **parts)
        if shared_norm:
            self.feed_forward_norm = None

    def _join(
        self, x: Tensor, memory: Tensor | None, attend: Sublayer, attend_context: Sublayer, feed: Sublayer
    ) -> Tensor:
        normed = self.attention_norm(x)
        shown = normed if memory is None else torch.cat([self.attention_norm(memory), normed], dim=1)
        other = normed if self.feed_forward_norm is None else self.feed_forward_norm(x)
        attended = self._dropped(attend(shown))
        return _last(x, attended) + attended + self._dropped(feed(_last(other, attended)))


def _last(x: Tensor, like: Tensor) -> Tensor:
    """Returns the last tokens of x, as many as another tensor has."""
    return x if like.shape[1] == x.shape[1] else x[:, -like.shape[1] :]
