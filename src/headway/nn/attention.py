"""Multi-head attention as a module: projections around ``headway.attention``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from typing_extensions import Never

from ..attention import attention
from ..call import Arguments, placed_keys
from ..coordinates import Coordinates
from ..errors import HeadwayError, need_positive, need_whole, refuse, refuses_others, right_call
from ..heads import HeadShard
from ..jagged import Sequences, is_nested, need_none, row_of
from ..masks import AnyMask, Mask, as_mask, mask_or_tensor
from ..plans import prepared_keys_and_values
from ..positions._base import IN_ATTENTION, PositionEncoding
from ..positions._naming import encoding as encoding_of
from ..positions._naming import shared_encoding
from ..sharing import Sharing, sharing_of
from ..tracing import refuse_script, refuse_tracers
from ._coordinates import check_coordinates, continued, joined
from ._step import step
from ._transaction import transaction
from .cache import KeyValueCache
from .linear import apply_linear, reset_projections
from .norm import make_norm
from .parts import PARTS, FirstValues, LayerSizes, Part, PartLike, make_part, parts_of

PROJECTIONS = "qkvo"
"""The letters of the projections: query, key, value and output."""
PREPARED = frozenset({"prepare", "values"})
"""The hooks that prepare keys and values."""


def caches_prepared(encoding: PositionEncoding | None) -> bool:
    """Whether a cache stores keys and values after this encoding has prepared them, so that each is prepared once."""
    return encoding is not None and encoding.cache_prepared and not encoding.acts.isdisjoint(PREPARED)


def key_coordinates(encoding: PositionEncoding | None, keys: Coordinates) -> Coordinates:
    """Returns the coordinates of all keys of a cache, placed by the encoding unless only masks read them."""
    return keys if encoding is None else placed_keys(encoding, keys, read=not caches_prepared(encoding))


def coordinates_of_keys(
    cache: KeyValueCache, new: Coordinates, key_positions: Tensor | Coordinates | None
) -> Coordinates:
    """Returns the coordinates of a cache's tokens and of new ones, which the cache keeps from now on.

    Args:
        cache: the cache, to which the new tokens are not appended yet.
        new: the coordinates of the new tokens.
        key_positions: the positions of all of them in this call; None for those that the cache knows.
    """
    past, n = cache.coordinates, new.index.shape[1]
    padded = past is not None and past.padding and not isinstance(key_positions, Coordinates)
    given = None
    if key_positions is not None:
        given = Coordinates.of(key_positions, len(cache) + n, name="key_positions")
    if given is None or padded:
        all_keys = joined(past, new)
        if given is not None:  # given coordinates do not state padding
            all_keys = replace(all_keys, position=given.position)
        cache.coordinates = all_keys.as_given()
    else:
        all_keys, cache.coordinates = given, past  # coordinates of this call only: the cache no longer counts
    return all_keys


class MultiHeadAttention(nn.Module):
    """Applies multi-head attention between learned projections.

        out = Wo·concat_h( attention(Wq_h·query, Wk_h·key, Wv_h·value) ) + bo

    Args:
        embed_dim: the width of query and output.
        num_heads: the number of query heads.
        num_kv_heads: the number of key and value heads, each shared by num_heads / num_kv_heads query heads;
            ``num_heads`` if None.
        head_dim: the width of each head; embed_dim / num_heads if None.
        key_dim: the width of key; ``embed_dim`` if None.
        value_dim: the width of value; that of key if None.
        encoding: a position encoding that this layer owns and keeps in its state_dict, or a name as for
            ``headway.encoding``, from which the layer makes one of its sizes. A stack that owns its encodings passes
            one in each call instead.
        bias: whether all four projections have a bias, or the letters of those that do, such as "qkv" or "qvo".
        dropout: the probability of dropping an attention weight in training, 0 ≤ dropout < 1.
        scale: the factor of the scores; the encoding's own (head_dim^−½ for most) if None.
        soft_cap: bounds the scores, score ← cap·tanh(score/cap), if given.
        sink: a logit for each head that takes part in the softmax and carries no value. A number is the initial
            value of learned logits; an nn.Parameter [num_heads] is learned; another tensor [num_heads] is constant.
        qk_norm: the norm of each head's query and key over head_dim, before the encoding: "rms", "layer" or a
            function of the width; none if None.
        parts: what the layer computes around attention, in this order: names in ``headway.nn.PARTS``, such as
            "head-gate", parts, or classes and functions of the layer's sizes that make one.
        layer: the number of the layer in its stack, from 0, for parts that depend on it.
        kernel: the name of an attention kernel, or "auto".
        attend: a function that is called in place of ``headway.attention``, with its arguments. It may record calls, or
            distribute the keys among processes.
        device: the device of the parameters created here; an encoding or a tensor passed in keeps its own.
        dtype: the dtype of the parameters created here, likewise.

    Shape:
        query: [batch, n, embed_dim]
        key: [batch, m, key_dim]
        value: [batch, m, value_dim]
        Output: [batch, n, embed_dim]

    Raises:
        HeadwayError: if sizes are below 1 or do not divide, dropout is outside of its range, ``bias`` has other
            letters than "qkvo", ``sink`` has another shape, a name is unknown, or ``encoding`` is not a
            PositionEncoding or only embeds.

    References:
        Vaswani et al. 2017; Ainslie et al. 2023 (shared keys and values).

    Example:
        layer = MultiHeadAttention(512, 8)
        layer(x)                       # self-attention, as is layer(x, x, x)
        layer(x, context)              # cross-attention
    """

    head_shard: HeadShard | None = None
    """Which heads the projections have, where each of several processes computes some of them; None for all."""

    @right_call(
        "MultiHeadAttention(embed_dim=512, num_heads=8, encoding='rope')",
        causal="give mask=headway.masks.Causal() where you call the layer",
        is_causal="give mask=headway.masks.Causal() where you call the layer",
        batch_first="leave it out: the layer takes [batch, tokens, embed_dim]",
    )
    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        num_kv_heads: int | None = None,
        head_dim: int | None = None,
        key_dim: int | None = None,
        value_dim: int | None = None,
        encoding: PositionEncoding | str | None = None,
        bias: bool | str = True,
        dropout: float = 0.0,
        scale: float | None = None,
        soft_cap: float | None = None,
        sink: Tensor | float | None = None,
        qk_norm: str | Callable[[int], nn.Module] | None = None,
        parts: Sequence[PartLike] = (),
        layer: int = 0,
        kernel: str = "auto",
        attend: Callable[..., Tensor] = attention,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        _check_sizes(embed_dim, num_heads, num_kv_heads, head_dim, key_dim=key_dim, value_dim=value_dim)
        if not 0 <= dropout < 1:
            raise HeadwayError(f"dropout is {dropout}: give at least 0 and less than 1")
        sizes = {"num_heads": num_heads, "head_dim": head_dim or embed_dim // num_heads, "embed_dim": embed_dim}
        if isinstance(encoding, str):
            encoding = encoding_of(encoding, **sizes).to(device=device, dtype=dtype)
        if encoding is not None:
            check_encoding(encoding, sizes["head_dim"])
        with_bias = bias if isinstance(bias, str) else PROJECTIONS if bias else ""
        if not set(with_bias) <= set(PROJECTIONS):
            raise HeadwayError(f"bias is {bias!r}: give True, False or letters of {PROJECTIONS!r}")
        super().__init__()
        made: dict[str, Any] = {"device": device, "dtype": dtype}
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.num_kv_heads = num_kv_heads or num_heads
        self.head_dim = head_dim or embed_dim // num_heads
        self.key_dim = key_dim or embed_dim
        self.value_dim = value_dim or key_dim or embed_dim
        self.dropout = dropout
        self.scale = scale
        self.soft_cap = soft_cap
        self.kernel = kernel
        self.attend = attend
        self.encoding = encoding
        self.q_proj = nn.Linear(embed_dim, num_heads * self.head_dim, bias="q" in with_bias, **made)
        self.k_proj = nn.Linear(self.key_dim, self.num_kv_heads * self.head_dim, bias="k" in with_bias, **made)
        self.v_proj = nn.Linear(self.value_dim, self.num_kv_heads * self.head_dim, bias="v" in with_bias, **made)
        self.out_proj = nn.Linear(num_heads * self.head_dim, embed_dim, bias="o" in with_bias, **made)
        self.q_norm = None if qk_norm is None else make_norm(qk_norm, self.head_dim, **made)
        self.k_norm = None if qk_norm is None else make_norm(qk_norm, self.head_dim, **made)
        sizes_of_layer = LayerSizes(embed_dim, num_heads, self.num_kv_heads, self.head_dim, layer)
        self.parts = make_parts(parts, sizes_of_layer, device, dtype)
        self.sink: Tensor | None
        if isinstance(sink, Tensor) and sink.shape != (num_heads,):
            raise HeadwayError(f"sink has shape {tuple(sink.shape)}: give one logit for each of {num_heads} heads")
        self._first_sink = float(sink) if isinstance(sink, (int, float)) else None
        if isinstance(sink, (int, float)):
            sink = nn.Parameter(torch.empty(num_heads, **made))
        if isinstance(sink, nn.Parameter) or sink is None:
            self.register_parameter("sink", sink)
        else:
            self.register_buffer("sink", sink)
        self._reset_own()  # parts already have their initial or given values

    __prepare_scriptable__ = refuse_script

    def reset_parameters(self) -> None:
        """Resets projections to uniform values of variance 2/(in + out) (Glorot and Bengio 2010), and biases to 0.

        Parts are reset, too.
        """
        self._reset_own()
        for part in parts_of(self.parts):
            part.reset_parameters()

    def _reset_own(self) -> None:
        """Resets all parameters but those of parts."""
        reset_projections(self.q_proj, self.k_proj, self.v_proj, self.out_proj)
        self.reset_sink()

    def reset_sink(self) -> None:
        """Resets a learned sink to its initial value, if that was given as a number."""
        if isinstance(self.sink, nn.Parameter) and self._first_sink is not None:
            nn.init.constant_(self.sink, self._first_sink)

    @refuses_others
    def forward(
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        *,
        mask: AnyMask = None,
        positions: Tensor | Coordinates | None = None,
        key_positions: Tensor | Coordinates | None = None,
        cache: KeyValueCache | None = None,
        encoding: PositionEncoding | str | None = None,
        first_values: FirstValues | None = None,
        last: int | None = None,
        **others: Never,
    ) -> Tensor:
        """Returns the attention of the query to the key, [batch, n, embed_dim].

        It is self-attention if key is None or is the query object itself.

        Args:
            query: [batch, n, embed_dim], or a jagged tensor of sequences of different lengths (``torch.nested``). Key
                and value are jagged then, and so is the output.
            key: [batch, m, key_dim]; the query if None.
            value: [batch, m, value_dim]; the key if None.
            mask: which keys each query may see; all if None.
            positions: the positions of the query, and in self-attention of the key; if None, they start at 0 or
                continue those of the cache.
            key_positions: the positions of the key in cross-attention, or of all keys in self-attention with a cache.
            cache: in self-attention, the keys and values of past tokens, to which those of the query are appended. In
                cross-attention, the first call fills it and later calls read it.
            encoding: used in place of the layer's own; a name, as for ``headway.attention``.
            first_values: the values of the stack's first layer, for layers with a ``ValueResidual``.
            last: the number of last tokens of the query whose output is computed, [batch, last, embed_dim]; all if
                None. In self-attention, all tokens still serve as keys.

        Raises:
            HeadwayError: if shapes, positions, mask, cache or encoding do not fit.
        """
        refuse_tracers(query)
        if others:
            refuse(type(self).__name__, self.forward, others)
        mask = mask_or_tensor(mask)
        if isinstance(encoding, str):
            encoding = shared_encoding(encoding, self.num_heads, self.head_dim)
        if is_nested(query, key, value):
            need_none({"last": last})
            return self._of_sequences(query, key, value, mask, positions, key_positions, cache, encoding, first_values)
        if cache is None:
            return self._attend(query, key, value, mask, positions, key_positions, None, encoding, first_values, last)
        with transaction(cache):
            return self._attend(query, key, value, mask, positions, key_positions, cache, encoding, first_values, last)

    def _of_sequences(
        self,
        query: Tensor,
        key: Tensor | None,
        value: Tensor | None,
        mask: Mask | Tensor | None,
        positions: Tensor | Coordinates | None,
        key_positions: Tensor | Coordinates | None,
        cache: KeyValueCache | None,
        encoding: PositionEncoding | None,
        first_values: FirstValues | None,
    ) -> Tensor:
        """Returns the output of jagged tensors, whose sequences are computed as one row."""
        need_none({"cache": cache})
        rows = Sequences.of("query", query)
        context = rows if key is None or key is query else Sequences.of("key", key)
        if value is not None and value is not key:
            context.need("value", value)
        at = rows.coordinates("positions", positions)
        out = self._attend(
            rows.row,
            None if context is rows else context.row,
            None if value is None else row_of(value),
            rows.mask(mask, context),
            at,
            None if context is rows else context.coordinates("key_positions", key_positions),
            None,
            encoding,
            first_values,
        )
        return rows.jagged(out)

    def _attend(
        self,
        query: Tensor,
        key: Tensor | None,
        value: Tensor | None,
        mask: Mask | Tensor | None,
        positions: Tensor | Coordinates | None,
        key_positions: Tensor | Coordinates | None,
        cache: KeyValueCache | None,
        encoding: PositionEncoding | None,
        first_values: FirstValues | None,
        last: int | None = None,
    ) -> Tensor:
        encoding = self.encoding if encoding is None else encoding
        is_self_attention = key is None or key is query
        key = query if key is None else key
        value = key if value is None else value
        self._check(query, key, value)
        if self.head_shard is not None:
            query, key, value = self.head_shard.shared_in((query, key, value))
        if cache is not None and is_self_attention:
            cache.need_room(query.shape[1])
            cache.need_mask(mask, encoding)
        asked, n = query, query.shape[1]  # the tokens whose output is computed; the number of all tokens
        if last is not None:
            need_last(last, n)
            asked, mask = query[:, n - last :], None if mask is None else as_mask(mask).block(n - last, n, n)  # type: ignore[union-attr]
        q = self._normed(self.q_norm, self._heads(self._projected(self._modules["q_proj"], asked)))
        attend, shared = self.attend, sharing_of(self)
        own: Tensor | None = None
        if cache is None or is_self_attention:
            k, v = self._keys_and_values(key, value, first_values)
            own = v if is_self_attention else None
        if shared is not None:
            shared.refuse(self, last=last)
            attend, arguments = self._shared(
                shared, key, positions, key_positions, cache, encoding, cross=not is_self_attention
            )
        elif cache is not None and is_self_attention:
            if positions is None and key_positions is None and last is None and self._takes_steps():
                prepared_by = encoding if caches_prepared(encoding) else None
                stepped = step(q, k, v, mask, cache, encoding, prepared_by, self.scale, self.kernel)
                if stepped is not None:
                    return self._joined(stepped, asked, own)
            k, v, arguments = self._appended(query, k, v, mask, positions, key_positions, cache, encoding)
        else:
            if cache is not None:
                k, v, key_positions = self._context(key, value, key_positions, cache, first_values)
                if encoding is not None and positions is None:
                    raise HeadwayError(
                        "positions are not given: cross-attention with a cache and an encoding needs them"
                    )
            if is_self_attention:
                key_positions = positions
            elif encoding is not None or mask is not None or isinstance(key_positions, Coordinates):
                positions, key_positions = _both_sides(query, key, positions, key_positions)
            arguments = {"q_positions": positions, "k_positions": key_positions, "k_input": key}
        if last is not None:
            own = None if own is None else own[:, :, n - last :]
            arguments = _of_last(arguments, last, n, encoding)
        if self.head_shard is not None:
            arguments["head_shard"] = self.head_shard
        if shared is None or cache is None:  # otherwise the cache has these values already
            v = self._attended(v)
        out = attend(
            q,
            k,
            v,
            encoding=encoding,
            mask=mask,
            scale=self.scale,
            dropout=self._dropout,
            sink=self.sink,
            soft_cap=self.soft_cap,
            q_input=asked,
            kernel=self.kernel,
            **arguments,
        )
        return self._joined(out, asked, own)

    def _shared(
        self,
        shared: Sharing,
        key: Tensor,
        positions: Tensor | Coordinates | None,
        key_positions: Tensor | Coordinates | None,
        cache: KeyValueCache | None,
        encoding: PositionEncoding | None,
        cross: bool,
    ) -> tuple[Callable[..., Tensor], Arguments]:
        """Returns the function that attends to the keys of several processes, with its arguments."""
        attend: Callable[..., Tensor]
        if cache is None:
            attend = partial(shared.attention, self, cross=cross)
            key_positions = key_positions if cross else positions
        else:
            if cross or key_positions is None:  # without a stack, which knows all tokens
                shared.refuse(self, cache=cache)
            prepared_by = encoding if caches_prepared(encoding) else None
            attend = partial(
                shared.cached_attention, self, cache=cache, prepared_by=prepared_by, attended=self._attended
            )
        return attend, {"q_positions": positions, "k_positions": key_positions, "k_input": key}

    def _takes_steps(self) -> bool:
        """Whether attention of a decoding step reads only queries, keys and values, so that it may be prepared."""
        if self.head_shard is not None or self.attend is not attention or self.soft_cap is not None or self._dropout:
            return False
        if self._parameters.get("sink", self) is not None:
            return False
        if self.__dict__.get("parts", self) is None:
            return True
        return all(getattr(part.attended, "__func__", None) is Part.attended for part in parts_of(self.parts))

    def _attended(self, v: Tensor) -> Tensor:
        """Returns the values of all tokens in the form that attention takes."""
        for part in parts_of(self.parts):
            v = part.attended(v)
        return v

    @property
    def reads_first_values(self) -> bool:
        """Whether a call needs ``first_values``."""
        if self.__dict__.get("parts", self) is None:  # since attributes that are modules take a microsecond
            return False
        return any(part.reads_first_values for part in parts_of(self.parts))

    def why_not_shared(self) -> str | None:
        """Returns why ``headway.parallel.context`` cannot share the attention of this layer; None if it can."""
        return None if self.attend is attention else "has an attend of its own: leave that out, or do without a context"

    def extra_repr(self) -> str:
        return f"embed_dim={self.embed_dim}, num_heads={self.num_heads}, num_kv_heads={self.num_kv_heads}"

    @property
    def _dropout(self) -> float:
        return self.dropout if self.training else 0.0

    def _heads(self, x: Tensor) -> Tensor:
        """[batch, n, heads·head_dim] → [batch, heads, n, head_dim]."""
        batch, n, width = x.shape
        return x.view(batch, n, width // self.head_dim, self.head_dim).transpose(1, 2)

    def _joined(self, out: Tensor, x: Tensor, v: Tensor | None) -> Tensor:
        """[batch, heads, n, head_dim] → [batch, n, embed_dim], by the parts and the projection of the output.

        Args:
            out: the outputs of the heads.
            x: the layer's input for these tokens.
            v: their values, if queries are the tokens whose values are attended to.
        """
        if self.__dict__.get("parts", self) is not None:
            for part in parts_of(self.parts):
                out = part.output(out, x, v)
        return apply_linear(cast(nn.Linear, self._modules["out_proj"]), out.transpose(1, 2).flatten(2))

    def _keys_and_values(self, key: Tensor, value: Tensor, first: FirstValues | None) -> tuple[Tensor, Tensor]:
        modules = self._modules  # since each attribute that is a module takes a microsecond, which steps notice
        k = self._heads(self._projected(modules["k_proj"], key))
        v = self._heads(self._projected(modules["v_proj"], value))
        for part in parts_of(self.parts):
            v = part.values(v, first)
        return self._normed(self.k_norm, k), v

    def _projected(self, projection: Any, x: Tensor) -> Tensor:
        if self.head_shard is None:
            return apply_linear(projection, x)
        with self.head_shard.reading(projection):
            return apply_linear(projection, x)

    def _normed(self, norm: nn.Module | None, x: Tensor) -> Tensor:
        if norm is None or self.head_shard is None:
            return x if norm is None else norm(x)
        with self.head_shard.reading(norm):
            normed: Tensor = norm(x)
            return normed

    def _context(
        self,
        key: Tensor,
        value: Tensor,
        key_positions: Tensor | Coordinates | None,
        cache: KeyValueCache,
        first: FirstValues | None,
    ) -> tuple[Tensor, Tensor, Tensor | Coordinates | None]:
        """Returns the keys, values and positions of a context. Later calls read those of the first from the cache."""
        cache.need_prepared_by(None)
        if len(cache) == 0:
            k, v = cache.append(*self._keys_and_values(key, value, first))
        elif len(cache) == key.shape[1]:
            k, v = cache.keys, cache.values
        else:
            raise HeadwayError(
                f"the cache holds {len(cache)} tokens of a context but key has {key.shape[1]}: start a new "
                "cache for another context"
            )
        if key_positions is None:
            key_positions = cache.coordinates
        elif cache.coordinates is None:
            cache.coordinates = Coordinates.of(key_positions, key.shape[1], name="key_positions").as_given()
        return k, v, key_positions

    def _appended(
        self,
        x: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Mask | Tensor | None,
        positions: Tensor | Coordinates | None,
        key_positions: Tensor | Coordinates | None,
        cache: KeyValueCache,
        encoding: PositionEncoding | None,
    ) -> tuple[Tensor, Tensor, Arguments]:
        """Appends keys and values of x to the cache; returns those of all tokens, and arguments for ``attend``."""
        n, prepared_by = x.shape[1], encoding if caches_prepared(encoding) else None
        new = None  # if the cache counts its tokens, their coordinates are the default ones
        if positions is not None or key_positions is not None or not cache.count(x, prepared_by):
            new = continued(cache.coordinates, positions, n, x.device)
            check_coordinates(new, x)
        if new is None or not new.padding:
            cache.need_new_lengths(mask, len(cache), n)
        cache.need_prepared_by(prepared_by)
        inputs = x if encoding is not None and encoding.reads_input else None
        if new is None:
            if prepared_by is not None:
                k, v, _ = prepared_keys_and_values(
                    prepared_by, k, v, None, self.kernel, first=len(cache), head_shard=self.head_shard
                )
            k, v = cache.append(k, v, inputs=inputs)
            return k, v, {"k_input": cache.inputs, "prepared_by": prepared_by}
        all_keys = coordinates_of_keys(cache, new, key_positions)
        if prepared_by is not None:
            k, v, placed = prepared_keys_and_values(prepared_by, k, v, new, self.kernel, head_shard=self.head_shard)
            assert placed is not None  # since new is given
            all_keys, new = placed if all_keys is new else all_keys, placed
        k, v = cache.append(k, v, inputs=inputs)
        if prepared_by is not None and prepared_by.plan_key() is None:  # it may draw places
            cache.placed = new
        at: Arguments = {"q_positions": new, "k_positions": all_keys}
        return k, v, {**at, "k_input": cache.inputs, "prepared_by": prepared_by}

    def _check(self, query: Tensor, key: Tensor, value: Tensor) -> None:
        width = self.embed_dim
        if query is key is value and query.ndim == 3 and query.shape[2] == width == self.key_dim == self.value_dim:
            return
        for name, x, width in (
            ("query", query, self.embed_dim),
            ("key", key, self.key_dim),
            ("value", value, self.value_dim),
        ):
            if x.ndim != 3 or x.shape[-1] != width:
                raise HeadwayError(
                    f"{name} has shape {tuple(x.shape)}: give [batch, tokens, {width}]"
                    + ("" if x.ndim != 3 else f", or build the layer for a width of {x.shape[-1]}")
                )
        if key.shape[:2] != value.shape[:2]:
            raise HeadwayError(
                f"key has batch and tokens {tuple(key.shape[:2])} but value {tuple(value.shape[:2])}: give "
                "a value for each key"
            )
        if query.shape[0] != key.shape[0]:
            raise HeadwayError(
                f"query has a batch of {query.shape[0]} but key of {key.shape[0]}: give both the same batch"
            )


def make_parts(
    parts: Sequence[PartLike], sizes: LayerSizes, device: torch.device | str | None, dtype: torch.dtype | None
) -> nn.ModuleList | None:
    """Returns the parts of a layer, each made for the output of the one before it; None if there are none.

    Raises:
        HeadwayError: if a name is unknown, or a part that makes heads wider follows one that changes the output.
    """
    if isinstance(parts, str):
        raise HeadwayError(f"parts is {parts!r}: give a list, such as [{parts!r}]")
    made: list[Part] = []
    for part in parts:
        one = make_part(part, sizes, PARTS, device, dtype)
        after = one.output_sizes(sizes)
        before = next((other for other in made if type(other).output is not Part.output), None)
        if after.head_dim != sizes.head_dim and before is not None:
            raise HeadwayError(
                f"parts has a {type(one).__name__}, which makes heads wider, after a {type(before).__name__}, which "
                "needs the narrow heads: put it first"
            )
        made.append(one)
        sizes = after
    return nn.ModuleList(made) if made else None


def check_encoding(encoding: PositionEncoding, head_dim: int) -> None:
    if not isinstance(encoding, PositionEncoding):
        raise HeadwayError(
            f"encoding is {encoding!r}: give a name or an object, such as headway.encoding('rope', head_dim={head_dim})"
        )
    if "embed" in encoding.acts and not encoding.acts & IN_ATTENTION:
        raise HeadwayError(
            f"{type(encoding).__name__} only embeds, which an attention layer cannot do: call its .embed on "
            "the model's input, or pass it to a stack of headway.models"
        )


def _both_sides(
    query: Tensor,
    key: Tensor,
    positions: Tensor | Coordinates | None,
    key_positions: Tensor | Coordinates | None,
) -> tuple[Coordinates, Coordinates]:
    """Returns the coordinates of queries and keys, which both count from 0 without positions."""
    q_at, k_at = (
        Coordinates.span(x.shape[1], device=query.device) if at is None else Coordinates.of(at, x.shape[1], name=name)
        for name, x, at in (("positions", query, positions), ("key_positions", key, key_positions))
    )
    return q_at, k_at


def _of_last(arguments: Arguments, last: int, n: int, encoding: PositionEncoding | None) -> Arguments:
    """Returns the arguments of attention for the last of n queries, from those for all of them."""
    at = arguments.get("q_positions")
    if at is None:
        return arguments
    one_side, at = at is arguments["k_positions"], Coordinates.of(at, n, name="positions")
    if one_side and encoding is not None:
        at = encoding.place(at)  # random numbers of a token are drawn once
        arguments = {**arguments, "k_positions": at}
    return {**arguments, "q_positions": at.rows(n - last, n)}


def need_last(last: int, n: int) -> None:
    """Raises HeadwayError unless ``last`` is from 1 to n."""
    if not 1 <= last <= n:
        raise HeadwayError(f"last is {last} and there are {n} tokens: give 1 to {n}, or None for all")


def _check_sizes(
    embed_dim: int, num_heads: int, num_kv_heads: int | None, head_dim: int | None, **widths: int | None
) -> None:
    sizes = {"embed_dim": embed_dim, "num_heads": num_heads, "num_kv_heads": num_kv_heads, "head_dim": head_dim}
    given = {name: value for name, value in (sizes | widths).items() if value is not None}
    need_positive(**given)
    need_whole(**given)
    if head_dim is None and embed_dim % num_heads:
        lower = embed_dim // num_heads * num_heads
        choices = " or ".join(str(size) for size in (lower, lower + num_heads) if size)
        raise HeadwayError(
            f"embed_dim {embed_dim} is not divisible by num_heads {num_heads}: choose embed_dim = {choices}"
        )
    if num_kv_heads is not None and num_heads % num_kv_heads:
        divisors = ", ".join(str(size) for size in range(1, num_heads + 1) if num_heads % size == 0)
        raise HeadwayError(
            f"num_kv_heads {num_kv_heads} does not divide num_heads {num_heads}: choose one of {divisors}"
        )
