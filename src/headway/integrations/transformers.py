"""headway's attention inside the models of Hugging Face transformers.

``register()`` makes "headway" an attention implementation, with its mask function, for every model whose attention
goes through ``ALL_ATTENTION_FUNCTIONS``. A mask travels from the one to the other as a tensor of [batch, 1, n, m]
that holds no numbers but a mask of ``headway.masks`` and where the tokens are. It is a tensor because models slice,
move and test their masks, and whatever they do beyond that gives the plain boolean mask; only to be put on scores is
refused. A model none of whose attention comes here is refused when it asks for a mask, or when it is made; one that
supports no implementation but eager gets the numbers that eager adds to scores.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial, reduce, wraps
from importlib import import_module
from operator import and_, or_
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from .._torch import constant_in_graphs, no_torch_function, tree_leaves, tree_map_only
from ..attention import Arguments, attention, attention_weights
from ..coordinates import Coordinates
from ..errors import HeadwayError
from ..masks import Boolean, Causal, Chunked, Documents, Mask, Padding, Window
from ..terms import Clip, DenseBias, DistanceBias, Rows, Term

__all__ = ["register", "use_bias_table"]

NAME = "headway"
TABLE = "headway_table"
"""What MPNet's implementation is called after ``use_bias_table``: before, its attention is none of ours."""
OLDEST = "5.23"
"""The version of transformers that is tested; older ones serve as long as their mask interface takes offsets."""

REFUSED = {
    "indices": "keys that are chosen one by one",
    "block_indices": "blocks of keys that are chosen one by one",
    "sinks": "a sink for each token",
}
"""Arguments of some models' attention that would change the result and that headway does not take."""

ITS_OWN = (
    "this model masks its scores itself, so its attention does not go through transformers' attention interface: load "
    "it with attn_implementation='eager'"
)

NOTHING, NUMBERS, BOOLEANS = "nothing", "numbers", "booleans"
"""The masks that a model takes: none of the interface's, those that eager adds to scores, True where one may look."""

_LIBRARY: dict[str, Any] = {}
"""The modules of transformers that the functions below call: found once, since a compiler follows no import."""


def register() -> None:
    """Makes "headway" an attention implementation of transformers; to call it twice does no harm.

    Afterwards ``from_pretrained(…, attn_implementation="headway")`` and ``model.set_attn_implementation("headway")``
    take it, in training and in ``generate`` alike. Queries that see no key, which are padding, give zeros, where eager
    gives the mean of all values; weights asked for by ``output_attentions`` are those before dropout.

    A model whose attention does not go through the interface raises HeadwayError: at its first mask, or when it is made
    where it looks its attention's class up by name, for which ``PreTrainedModel.get_correct_attn_implementation`` is
    wrapped.

    Raises HeadwayError where transformers is missing or too old.
    """
    transformers = _transformers()
    # without the second, transformers would build no mask for an implementation whose name it does not know
    transformers.AttentionInterface.register(NAME, _attend)
    transformers.AttentionMaskInterface.register(NAME, _mask)
    transformers.AttentionMaskInterface.register(TABLE, _mask)
    _answer_dictionaries(transformers.PreTrainedModel)


def _answer_dictionaries(base: Any) -> None:
    """Gives models that look up their attention's class by the implementation's name, as GPT-J's do, an answer.

    Their dictionaries are known when such a model is made, which asks ``base`` whether there is such an implementation.
    """
    inner = base.get_correct_attn_implementation
    if hasattr(inner, NAME):  # register() was called before
        return

    @wraps(inner)
    def get_correct_attn_implementation(model: Any, requested_attention: str | None, *args: Any, **kwargs: Any) -> str:
        if requested_attention == NAME:
            for module in {kind.__module__ for kind in type(model).__mro__}:
                for name, held in vars(sys.modules[module]).items():
                    if name.endswith("ATTENTION_CLASSES") and isinstance(held, dict):
                        held.setdefault(NAME, _no_class)
        found: str = inner(model, requested_attention, *args, **kwargs)
        return found

    vars(get_correct_attn_implementation)[NAME] = True
    base.get_correct_attn_implementation = get_correct_attn_implementation


def _no_class(*args: Any, **kwargs: Any) -> nn.Module:
    raise HeadwayError(ITS_OWN)


def use_bias_table(model: nn.Module) -> nn.Module:
    """Lets a model of T5's family, or MPNet, take its learned bias from a table instead of from n² numbers.

        bias[h,i,j] = table_h[clamp(j − i, −d, d)],  d the distance from which all share a bucket

    The table is made of the model's own weights in each forward pass, in memory that grows with d alone, and its
    gradient goes to them. Changes the attention of this model in place to "headway" ("headway_table" for MPNet; call
    ``register`` first), and returns it; with another implementation set later, the model computes its bias as before.
    To call it twice does no harm.

    Models: T5, mT5, UMT5, Switch Transformers and MPNet.
    Raises HeadwayError for another model, and before ``register()``.
    """
    if NAME not in _transformers().AttentionInterface():
        raise HeadwayError("'headway' is not registered: call headway.integrations.transformers.register() first")
    kind = getattr(getattr(model, "config", None), "model_type", type(model).__name__)
    modules: list[Any] = list(model.modules())
    if kind == "mpnet":
        modules[0].config._attn_implementation = TABLE
        for module in modules:
            if hasattr(module, "compute_position_bias"):
                _replace(module, "compute_position_bias", _mpnet_bias)
            elif type(module).__name__ == "MPNetSelfAttention":
                _replace(module, "forward", _mpnet_attention)
        return model
    if kind not in T5_LIKE:
        raise HeadwayError(f"{kind!r} is no model with a bias by distance: give one of {', '.join(T5_LIKE)} or mpnet")
    modules[0].set_attn_implementation(NAME)
    for module in modules:
        if not hasattr(module, "has_relative_attention_bias"):
            continue
        if module.has_relative_attention_bias:
            _replace(module, "compute_bias", _t5_bias)
        elif "position_bias" in inspect.signature(module.forward).parameters:
            module.register_forward_pre_hook(_no_bias, with_kwargs=True)
    return model


def _replace(module: Any, name: str, by: Callable[..., Any]) -> None:
    """Puts ``by`` in place of a method, which it is given; once, however often this is called."""
    method = getattr(module, name)
    if not isinstance(method, partial):
        setattr(module, name, partial(by, module, method))


T5_LIKE = ("t5", "mt5", "umt5", "switch_transformers")


def _transformers() -> Any:
    try:
        transformers: Any = import_module("transformers")
    except ImportError as error:
        raise HeadwayError(
            f"transformers cannot be imported ({error}): pip install 'transformers>={OLDEST}'"
        ) from error
    try:
        for name in ("masking_utils", "utils.output_capturing"):
            _LIBRARY[name] = import_module(f"transformers.{name}")
        fits = "q_offset" in inspect.signature(_LIBRARY["masking_utils"].sdpa_mask).parameters
    except ImportError:
        fits = False
    if not fits:
        raise HeadwayError(
            f"transformers {transformers.__version__} has another attention and mask interface: "
            f"pip install --upgrade 'transformers>={OLDEST}'"
        )
    return transformers


# ---------------------------------------------------------------- the mask function


@dataclass(frozen=True)
class _Sight:
    """Who may look at whom: a mask, or None for everybody, and where queries and keys are."""

    mask: Mask | None
    q: Coordinates
    k: Coordinates

    def dense(self) -> Tensor:
        """bool [b, 1, n, m]"""
        if self.mask is None:
            return torch.ones(1, 1, self.q.index.shape[1], self.k.index.shape[1], device=self.q.index.device).bool()
        return self.mask.allowed(self.q, self.k)

    def first_keys(self, count: int) -> _Sight | None:
        """The same for the first ``count`` keys; None where the mask's own tensors speak of each key."""
        if any(type(part) not in (Causal, Window, Chunked, Padding) for part in _leaves(self.mask)):
            return None
        return replace(self, k=self.k.rows(0, count))


def _leaves(mask: Mask | None) -> list[Mask]:
    if mask is None:
        return []
    return [leaf for part in getattr(mask, "masks", ()) for leaf in _leaves(part)] or [mask]


class _MaskTensor(Tensor):
    """A boolean tensor [batch, 1, n, m] without numbers, which holds a ``_Sight``."""

    sight: _Sight
    __torch_function__ = no_torch_function

    @staticmethod
    def __new__(cls, sight: _Sight, batch: int) -> _MaskTensor:
        shape = (batch, 1, sight.q.index.shape[1], sight.k.index.shape[1])
        self = Tensor._make_wrapper_subclass(cls, shape, dtype=torch.bool, device=sight.q.index.device)
        self.sight = sight
        return self

    def __repr__(self) -> str:  # type: ignore[override]
        return f"_MaskTensor({self.sight.mask}, shape={tuple(self.shape)})"

    def dense(self) -> Tensor:
        return self.sight.dense().expand(self.shape)

    @classmethod
    def __torch_dispatch__(cls, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        aten = torch.ops.aten
        kwargs = kwargs or {}
        if op in (aten.detach.default, aten.alias.default):
            return cls(args[0].sight, args[0].shape[0])
        if op is aten.slice.Tensor:
            kept = _sliced(*args, **kwargs)
            if kept is not None:
                return cls(kept, args[0].shape[0])
        elif _on_scores(op, args, kwargs):
            raise HeadwayError(ITS_OWN)
        return op(*tree_map_only(cls, cls.dense, args), **tree_map_only(cls, cls.dense, kwargs))


def _on_scores(op: Any, args: Any, kwargs: dict[str, Any]) -> bool:
    """Whether a model takes the mask for that of its eager attention, which holds numbers or means the opposite."""
    aten = torch.ops.aten
    if op is aten._to_copy.default:
        return bool(kwargs.get("dtype", torch.bool).is_floating_point)
    masking = op.overloadpacket in (aten.add, aten.add_, aten.masked_fill, aten.masked_fill_)
    return masking and any(isinstance(x, Tensor) and x.is_floating_point() for x in tree_leaves(args))


def _sliced(
    x: _MaskTensor, dim: int = 0, start: int | None = None, stop: int | None = None, step: int = 1
) -> _Sight | None:
    """What remains where a slice keeps all, or the first keys."""
    size = x.shape[dim]
    if step != 1 or (start or 0) != 0:
        return None
    stop = size if stop is None else min(stop, size)
    if stop == size:
        return x.sight
    return x.sight.first_keys(stop) if dim % 4 == 3 and stop > 0 else None


def _mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | Tensor = 0,
    kv_offset: int = 0,
    mask_function: Callable[..., Any] | None = None,
    attention_mask: Tensor | None = None,
    device: torch.device | str = "cpu",
    **kwargs: Any,
) -> Tensor:
    """The mask of one forward pass, which transformers' mask interface asks for; attention_mask: [batch, tokens]."""
    masking = _LIBRARY["masking_utils"]
    function = masking.causal_mask_function if mask_function is None else mask_function

    def as_theirs(make: Callable[..., Tensor]) -> Tensor:
        skips = {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
        sizes = (batch_size, q_length, kv_length, q_offset, kv_offset, function, attention_mask)
        return make(*sizes, device=device, **{**kwargs, **skips})

    config = kwargs.get("config")
    taken = BOOLEANS if getattr(config, "_attn_implementation", NAME) == TABLE else _takes(type(config))
    if taken == NOTHING:
        raise HeadwayError(ITS_OWN)
    if taken == NUMBERS:
        return as_theirs(masking.eager_mask)
    decoding = q_length == 1 and isinstance(q_offset, Tensor)  # one token with a static cache: compiled next
    if decoding or masking.is_tracing(attention_mask):
        return as_theirs(masking.sdpa_mask)
    shifts: list[Tensor] = []
    try:
        mask = _read(function, shifts, kv_offset + kv_length)
    except _UnknownError:
        return as_theirs(masking.sdpa_mask)
    q, k = _span(q_length, q_offset, device), _span(kv_length, kv_offset, device)
    first, length = shifts[0][:, None] if shifts else None, None
    if attention_mask is not None:
        stop = kv_offset + kv_length
        real = nn.functional.pad(attention_mask.bool(), (0, max(0, stop - attention_mask.shape[1])))
        kept = real[:, kv_offset:stop]
        if kept.all():
            pass
        elif (run := _run(real)) is None:
            mask = _join(and_, (mask, Boolean(kept[:, None, None, :])))
        else:
            first, length = run
            mask = _join(and_, (mask, Padding()))
    if first is not None:
        q, k = (replace(x, index=x.index - first, length=length, start=None) for x in (q, k))
    if q_length == kv_length and isinstance(q_offset, int) and q_offset == kv_offset:
        k = q
    return _MaskTensor(_Sight(mask, q, k), batch_size)


@constant_in_graphs
def _takes(config: type) -> str:
    """Which masks the models with such a config take, as far as transformers can tell.

    NOTHING where no attention of theirs calls the interface: some, such as Longformer, read a mask their own way and
    never put it on scores. NUMBERS where they support no implementation but eager: they may compute with what eager
    adds to the scores, as DeepSeek-V4 does, or mask some of the scores themselves, as BigBird-Pegasus does.
    """
    if config not in _TAKEN:
        module = sys.modules.get(config.__module__.replace(".configuration_", ".modeling_"))
        models: list[Any] = [one for one in vars(module).values() if _is_model_of(one, module)] if module else []
        models = [one for one in models if one.config_class is config] or models
        if not models:
            _TAKEN[config] = BOOLEANS
        elif not models[0]._can_set_attn_implementation():
            _TAKEN[config] = NOTHING
        else:
            others = any(one._supports_sdpa or one._supports_flash_attn for one in models)
            _TAKEN[config] = BOOLEANS if others else NUMBERS
    return _TAKEN[config]


def _is_model_of(one: object, module: ModuleType) -> bool:
    return hasattr(one, "_can_set_attn_implementation") and getattr(one, "__module__", None) == module.__name__


_TAKEN: dict[type, str] = {}


def _span(count: int, offset: int | Tensor, device: torch.device | str) -> Coordinates:
    if isinstance(offset, int):
        return Coordinates.span(count, start=offset, device=device)
    index = torch.arange(count, device=device)[None] + offset
    return Coordinates(index[..., None], index, ordered=True)


def _run(real: Tensor) -> tuple[Tensor, Tensor] | None:
    """First real token and how many, both [batch, 1], where each row's stand side by side; else None."""
    count = real.sum(1, keepdim=True)
    first = real.int().argmax(1, keepdim=True)
    slot = torch.arange(real.shape[1], device=real.device)
    together = (slot >= first) & (slot < first + count)
    return (first, count) if torch.equal(together, real) else None


class _UnknownError(Exception):
    """A mask function that is none of transformers' own."""


def _read(function: Callable[..., Any], shifts: list[Tensor], tokens: int) -> Mask | None:
    """A mask function of transformers as a mask of headway's, None for everybody.

    ``shifts`` gains what is to be taken from the index of each row's tokens, which chunks count from; a window as wide
    as the stream of ``tokens`` is none.
    Raises _UnknownError for a function that is not known by its name.
    """
    name = getattr(function, "__qualname__", "") if function.__module__ == "transformers.masking_utils" else ""
    name = name.removesuffix(".<locals>.inner_mask")
    closure = getattr(function, "__closure__", None) or ()
    held = (
        dict(zip(function.__code__.co_freevars, (cell.cell_contents for cell in closure), strict=True)) if name else {}
    )
    if name == "causal_mask_function":
        return Causal()
    if name == "bidirectional_mask_function":
        return None
    if name == "and_masks.<locals>.and_mask":
        return _join(and_, [_read(part, shifts, tokens) for part in held["mask_functions"]])
    if name == "or_masks.<locals>.or_mask":
        parts = [_read(part, shifts, tokens) for part in held["mask_functions"]]
        return None if None in parts else _join(or_, parts)
    if name == "sliding_window_overlay":
        return Window(left=held["sliding_window"] - 1) if held["sliding_window"] < tokens else None
    if name == "sliding_window_bidirectional_overlay":
        return Window(held["sliding_window"], held["sliding_window"])
    if name == "chunked_overlay":
        shifts.append(held["left_padding"])
        return Chunked(held["chunk_size"])
    if name == "packed_sequence_mask_function":
        return Documents(held["packed_sequence_mask"])
    if name == "remap_positions_for_packed_sequence":
        mask = _read(held["mask_function"], shifts, tokens)
        # inside a document positions rise by one, as the index does: what goes by differences stays what it is
        if all(isinstance(part, (Causal, Window)) for part in _leaves(mask)):
            return mask
    raise _UnknownError


def _join(join: Callable[[Mask, Mask], Mask], parts: Any) -> Mask | None:
    masks = [part for part in parts if part is not None]
    return reduce(join, masks) if masks else None


# ---------------------------------------------------------------- the attention function


@dataclass(frozen=True)
class _BiasTable:
    """A bias by distance on its way through a model, in place of n² numbers: rows, or None for no bias."""

    rows: Rows | None
    past: int | Tensor = 0
    """Tokens before the first query, where no mask says where the queries are."""


def _attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | Tensor | None = None,
    is_causal: bool | None = None,
    position_bias: Tensor | _BiasTable | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """Attention of one layer, which transformers' attention interface asks for.

    query [batch, heads, n, head_dim], key and value [batch, kv_heads, m, …]; gives [batch, n, heads, v_dim] and, where
    they are asked for, the weights [batch, heads, n, m].
    """
    _refuse(kwargs)
    n, m = query.shape[2], key.shape[2]
    terms: list[Term] = []
    if isinstance(attention_mask, _MaskTensor):
        sight = attention_mask.sight
        held = attention_mask.shape[3]
        if held < m and sight.mask is None:  # everybody is seen, also what a cache held before
            sight = _Sight(None, _span(n, m - n, query.device), _span(m, 0, query.device))
        elif held < m:
            raise HeadwayError(
                f"the model makes a mask for {held} keys, but its cache holds {m}: give use_cache=False, or no padding"
            )
        elif held > m:
            sight = sight.first_keys(m) or _Sight(Boolean(attention_mask.dense()[..., :m]), sight.q, sight.k.rows(0, m))
    else:
        past = position_bias.past if isinstance(position_bias, _BiasTable) else max(m - n, 0)
        sight = _Sight(None, _span(n, past, query.device), _span(m, 0, query.device))
        causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
        if attention_mask is not None:
            mask, added = _plain(attention_mask[..., :m])
            sight = replace(sight, mask=mask)
            terms += added
        elif causal and n > 1:  # as transformers means it: a cache that is longer is still empty behind the queries
            sight = _Sight(Causal(), _span(n, 0, query.device), sight.k)
    if isinstance(position_bias, _BiasTable):
        terms += [] if position_bias.rows is None else [DistanceBias(position_bias.rows)]
    elif position_bias is not None and _says_something(position_bias):
        terms.append(DenseBias(position_bias))
    if isinstance(scaling, Tensor):
        query, scaling = query * scaling, 1.0
    if query.shape[0] != key.shape[0]:  # learned queries, one set for the batch
        query = query.expand(key.shape[0], -1, -1, -1)
    arguments: Arguments = {
        "terms": terms,
        "mask": sight.mask,
        "scale": scaling,
        "sink": s_aux,
        "soft_cap": softcap,
        "q_positions": sight.q,
        "k_positions": sight.k,
        "dropout": dropout if module.training else 0.0,
    }
    out = attention(query, key, value, **arguments)
    weights = attention_weights(query, key, value, **arguments) if _wants_weights(kwargs) else None
    return out.transpose(1, 2).contiguous(), weights


def _refuse(kwargs: dict[str, Any]) -> None:
    for name, what in REFUSED.items():
        if kwargs.get(name) is not None:
            raise HeadwayError(f"the model hands {name} to its attention, {what}: take attn_implementation='sdpa'")
    if type(kwargs.get("cache")).__name__ == "PagedAttentionCache":
        raise HeadwayError("headway has no paged cache for continuous batching: take attn_implementation='sdpa'")


def _plain(mask: Tensor) -> tuple[Mask | None, list[Term]]:
    """A mask that is a tensor: boolean, or numbers to be added, of which the lowest forbid."""
    mask = mask[(None,) * (4 - mask.ndim)]
    if mask.dtype == torch.bool:
        return Boolean(mask), []
    if not mask.is_floating_point():
        raise HeadwayError(f"attention_mask is {mask.dtype}: give booleans, True where one may look, or floats to add")
    forbidden = mask <= torch.finfo(mask.dtype).min / 2
    added = mask.masked_fill(forbidden, 0)
    terms: list[Term] = [DenseBias(added)] if _says_something(added) else []
    return Boolean(~forbidden) if _says_something(forbidden) else None, terms


def _says_something(x: Tensor) -> bool:
    """Whether it is not all zeros, as T5 makes them for cross-attention; who traces cannot look."""
    return x.requires_grad or _LIBRARY["masking_utils"].is_tracing(x) or bool(x.any())


def _wants_weights(kwargs: dict[str, Any]) -> bool:
    """Whether the caller asks for weights: by an argument that reaches this layer, or what the model now records."""
    recorded = _LIBRARY["utils.output_capturing"]._active_collector.get()
    return bool(kwargs.get("output_attentions")) or any(name.endswith("attentions") for name in recorded or ())


# ---------------------------------------------------------------- learned biases by distance


def _t5_bias(
    module: Any,
    dense: Callable[..., Tensor],
    query_length: int,
    key_length: int,
    device: torch.device | None = None,
    past_seen_tokens: int | Tensor = 0,
) -> Tensor | _BiasTable:
    """In place of T5Attention.compute_bias: what ``dense`` gives for one query among all distances that differ."""
    if module.config._attn_implementation != NAME:
        return dense(query_length, key_length, device=device, past_seen_tokens=past_seen_tokens)
    far = module.relative_attention_max_distance
    table = dense(1, 2 * far + 1, device=device, past_seen_tokens=far)[0, :, 0]
    return _BiasTable(Rows(table, Clip(-far, far)), past_seen_tokens)


def _no_bias(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Before T5Attention.forward of a layer without a bias, which would else make n² zeros."""
    if module.config._attn_implementation == NAME and kwargs.get("position_bias") is None:
        kwargs = {**kwargs, "position_bias": _BiasTable(None)}
    return args, kwargs


MPNET_FAR = 128
"""The distance from which MPNet's buckets are one; its code writes the number out."""


def _mpnet_bias(encoder: Any, dense: Callable[..., Tensor], x: Tensor, **kwargs: Any) -> Tensor | _BiasTable:
    """In place of MPNetEncoder.compute_position_bias."""
    if encoder.config._attn_implementation != TABLE:
        return dense(x, **kwargs)
    table = dense(x.new_empty(1, 2 * MPNET_FAR + 1), **kwargs)[0, :, MPNET_FAR]
    return _BiasTable(Rows(table, Clip(-MPNET_FAR, MPNET_FAR)))


def _mpnet_attention(
    module: Any,
    eager: Callable[..., tuple[Tensor, ...]],
    hidden_states: Tensor,
    attention_mask: Tensor | None = None,
    position_bias: Tensor | _BiasTable | None = None,
    output_attentions: bool = False,
    **kwargs: Any,
) -> tuple[Tensor, ...]:
    """In place of MPNetSelfAttention.forward, which calls no attention interface."""
    if not isinstance(position_bias, _BiasTable):
        return eager(hidden_states, attention_mask, position_bias, output_attentions=output_attentions, **kwargs)
    shape = (*hidden_states.shape[:-1], module.num_attention_heads, module.attention_head_size)
    q, k, v = (project(hidden_states).view(shape).transpose(1, 2) for project in (module.q, module.k, module.v))
    out, weights = _attend(
        module,
        q,
        k,
        v,
        attention_mask,
        dropout=module.dropout.p,
        is_causal=False,
        position_bias=position_bias,
        output_attentions=output_attentions,
    )
    out = module.o(out.flatten(2))
    return (out,) if weights is None else (out, weights)
