"""Replaces each ``nn.MultiheadAttention`` of a model by headway's attention, and restores it."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..attention import Arguments, attention, attention_steps, explain
from ..coordinates import Coordinates
from ..errors import HeadwayError
from ..masks import And, Boolean, Causal, Mask
from ..nn.linear import Linear, apply_linear, linear
from ..positions import ENCODINGS, PositionEncoding, encoding_name
from ..positions import encoding as encoding_of
from ..positions._base import IN_ATTENTION
from ..sharing import Sharing, sharing_of
from ..terms import DenseBias, Sink, Term, TokenBias
from ..tracing import refuse_script, refuse_tracers

__all__ = ["restore_attention", "swap_attention", "swapped_attention", "swapped_linear"]


def __dir__() -> list[str]:
    return __all__


Model = TypeVar("Model", bound=nn.Module)
Spec = str | PositionEncoding | type[PositionEncoding]
Choice = Spec | Callable[[str, nn.MultiheadAttention], Spec | None]


class HeadwayAttention(nn.MultiheadAttention):
    """``nn.MultiheadAttention`` computed by headway; ``swap_attention`` makes and describes it."""

    encoding: PositionEncoding | None
    __prepare_scriptable__ = refuse_script

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Returns the output in the layout of query, and the weights or None.

        Arguments are those of ``nn.MultiheadAttention``, in its layouts. ``need_weights=False`` is faster, since the
        n·m weights of each head are not stored. ``is_causal`` requires ``attn_mask``. Raises HeadwayError if shapes or
        masks do not fit.
        """
        refuse_tracers(query)
        shared = sharing_of(self)
        self._check(query, key, value, key_padding_mask, attn_mask, is_causal, shared)
        if query.is_nested:
            return self._nested(query, need_weights, average_attn_weights)
        q, k, v = (self._heads(x) for x in self._projected(query, key, value))
        trusted = is_causal and key_padding_mask is None and not need_weights and self.bias_k is None
        mask, terms = (Causal(), []) if trusted else self._masks(key_padding_mask, attn_mask)
        if shared is not None:
            terms = _without_zeros(terms)
        if self.add_zero_attn:  # a key of zeros has score 0 and value 0, which is a sink
            terms.append(Sink(q.new_zeros(self.num_heads)))
        if self.bias_k is not None and self.bias_v is not None:
            k, v = (torch.cat([x, self._extra(bias, x)], dim=2) for x, bias in ((k, self.bias_k), (v, self.bias_v)))
        arguments: Arguments = {"encoding": self.encoding, "mask": mask, "terms": tuple(terms)}
        arguments["dropout"] = self.dropout if self.training else 0.0
        compute: Callable[..., Tensor] = attention
        if shared is not None:
            compute = partial(shared.attention, self, cross=query is not key)
        elif q.shape[2] != k.shape[2]:  # queries and keys both count from 0, as in torch's is_causal
            arguments["q_positions"] = Coordinates.span(q.shape[2], device=q.device)
            arguments["k_positions"] = Coordinates.span(k.shape[2], device=k.device)
        if self.encoding is not None and self.encoding.reads_input:
            arguments["q_input"], arguments["k_input"] = self._batch_first(query), self._batch_first(key)

        weights = None
        if need_weights:
            if shared is not None:
                shared.refuse(self, need_weights=need_weights)
            out, weights = self._with_weights(q, k, v, arguments)
            weights = weights.mean(1) if average_attn_weights else weights
            weights = weights if query.dim() == 3 else weights[0]
        else:
            out = compute(q, k, v, **arguments)
        return self._merged(out, query.dim() == 3), weights

    def why_not_shared(self) -> str | None:
        """Returns why ``headway.parallel.context`` cannot share the attention of this layer; None if it can."""
        return None if self.bias_k is None else "has add_bias_kv, a key that belongs to no token: do without a context"

    # ------------------------------------------------------------ between torch's layout and headway's

    def _batch_first(self, x: Tensor) -> Tensor:
        """The tokens as [batch, tokens, width]."""
        if x.dim() == 2:
            return x[None]
        return x if self.batch_first else x.transpose(0, 1)

    def _heads(self, x: Tensor) -> Tensor:
        """The features by head, [batch, heads, tokens, head_dim]."""
        return self._batch_first(x).unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2)

    def _merged(self, out: Tensor, batched: bool) -> Tensor:
        """The output of out [batch, heads, n, head_dim], in the layout of the query."""
        if not batched:
            return apply_linear(self.out_proj, out[0].transpose(0, 1).flatten(1))
        tokens_first = out.transpose(1, 2) if self.batch_first else out.permute(2, 0, 1, 3)
        return apply_linear(self.out_proj, tokens_first.flatten(2))

    def _projected(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, ...]:
        """The projected queries, keys and values, in the layout of the arguments."""
        bias = self.in_proj_bias
        if self.in_proj_weight is not None and query is key and key is value:
            return linear(query, self.in_proj_weight, bias).chunk(3, dim=-1)
        if self.in_proj_weight is None:
            weights = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        else:
            weights = self.in_proj_weight.chunk(3)
        biases = (None, None, None) if bias is None else bias.chunk(3)
        return tuple(map(linear, (query, key, value), weights, biases))

    def _extra(self, bias: Tensor, like: Tensor) -> Tensor:
        """bias_k or bias_v as one more token of each row."""
        return bias.to(like.dtype).view(1, self.num_heads, 1, self.head_dim).expand(like.shape[0], -1, -1, -1)

    def _nested(self, x: Tensor, need_weights: bool, average_attn_weights: bool) -> tuple[Tensor, Tensor | None]:
        """Self-attention of a nested tensor, which nn.TransformerEncoder makes of padded input for its fast path."""
        rows = x.unbind()
        padded = nn.utils.rnn.pad_sequence(list(rows), batch_first=True)
        lengths = torch.tensor([len(row) for row in rows], device=x.device)
        hidden = torch.arange(padded.shape[1], device=x.device) >= lengths[:, None]
        out, weights = self.forward(
            padded, padded, padded, hidden, need_weights, average_attn_weights=average_attn_weights
        )
        return torch.nested.as_nested_tensor([kept[: len(row)] for kept, row in zip(out, rows, strict=True)]), weights

    # ------------------------------------------------------------ masks, weights, checks

    def _masks(self, key_padding_mask: Tensor | None, attn_mask: Tensor | None) -> tuple[Mask | None, list[Term]]:
        """Torch's masks as masks and terms: True and −∞ exclude a key, other floats are added to scores."""
        masks: list[Mask] = []
        terms: list[Term] = []
        if attn_mask is not None:
            by_head = attn_mask if attn_mask.dim() == 2 else attn_mask.unflatten(0, (-1, self.num_heads))
            allowed, added = _read(self._with_extra(by_head))
            masks.append(Boolean(allowed))
            terms += [] if added is None else [DenseBias(added)]
        if key_padding_mask is not None:
            rows = key_padding_mask if key_padding_mask.dim() == 2 else key_padding_mask[None]
            allowed, added = _read(self._with_extra(rows))
            masks.append(Boolean(allowed[:, None, None]))
            terms += [] if added is None else [TokenBias(keys=added[:, None])]
        return (And(tuple(masks)) if masks else None), terms

    def _with_extra(self, mask: Tensor) -> Tensor:
        """The mask with the key of add_bias_kv, to which all queries attend."""
        return mask if self.bias_k is None else F.pad(mask, (0, 1))

    def _with_weights(self, q: Tensor, k: Tensor, v: Tensor, arguments: Arguments) -> tuple[Tensor, Tensor]:
        """The output and the weights it is computed from, after dropout, as in torch."""
        steps = attention_steps(q, k, v, **arguments)
        out, weights = steps.output, steps.weights
        if self.add_zero_attn:
            weights = torch.cat([weights, 1 - weights.sum(-1, keepdim=True)], dim=-1)
        if arguments["dropout"]:
            own = self.encoding
            changes = own is not None and "values" in own.acts
            if changes or "RelativeValues" in explain(q, k, v, **arguments).terms:
                raise HeadwayError(
                    f"{type(own).__name__} changes the values, so the dropped weights do not give the "
                    "output: give need_weights=False in training, or a layer without dropout"
                )
            weights = F.dropout(weights, arguments["dropout"])
            out = weights[..., : v.shape[2]] @ v
        return out, weights

    def _check(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None,
        attn_mask: Tensor | None,
        is_causal: bool,
        shared: Sharing | None,
    ) -> None:
        if query.is_nested or key.is_nested or value.is_nested:
            if (
                shared is None
                and query is key is value
                and self.batch_first
                and key_padding_mask is None
                and attn_mask is None
            ):
                return
            raise HeadwayError(
                "query, key or value is a nested tensor, which a layer takes with batch_first, without masks and as "
                "all three of them: pad it and give key_padding_mask"
            )
        for name, x, width in (
            ("query", query, self.embed_dim),
            ("key", key, self.kdim),
            ("value", value, self.vdim),
        ):
            if x.dim() not in (2, 3) or x.dim() != query.dim() or x.shape[-1] != width:
                order = "batch, tokens" if self.batch_first else "tokens, batch"
                raise HeadwayError(
                    f"{name} has shape {tuple(x.shape)}: give all three [{order}, …] or all three "
                    f"[tokens, …], {name} with a width of {width}"
                )
        (batch, n), (k_batch, m) = (self._batch_first(x).shape[:2] for x in (query, key))
        if batch != k_batch or key.shape[:-1] != value.shape[:-1]:
            raise HeadwayError(
                f"query {tuple(query.shape)}, key {tuple(key.shape)} and value {tuple(value.shape)} do not fit: give "
                "one batch, and a value for each key"
            )
        if shared is not None:  # masks are those of the whole sequence
            n, m = shared.whole_sizes(n, m, cross=query is not key)
        by_head = (batch * self.num_heads, n, m)
        padding = (batch, m) if query.dim() == 3 else (m,)
        for name, mask, shapes in (
            ("key_padding_mask", key_padding_mask, (padding,)),
            ("attn_mask", attn_mask, ((n, m), by_head)),
        ):
            if mask is None:
                continue
            if mask.dtype != torch.bool and not mask.is_floating_point():
                raise HeadwayError(f"{name} is {mask.dtype}: give booleans, True to exclude a key, or floats")
            if tuple(mask.shape) not in shapes:
                wanted = " or ".join(str(list(shape)) for shape in shapes)
                raise HeadwayError(f"{name} has shape {tuple(mask.shape)}: give {wanted}")
        if is_causal and attn_mask is None:
            raise HeadwayError(
                "is_causal=True describes attn_mask, and attn_mask is None: give "
                f"attn_mask=nn.Transformer.generate_square_subsequent_mask({n}) too"
            )


def _without_zeros(terms: list[Term]) -> list[Term]:
    """Returns no term, if masks hold only 0 and −∞, for calls whose keys several processes share.

    Raises:
        HeadwayError: for masks of other numbers.
    """
    for term in terms:
        added = term.values if isinstance(term, DenseBias) else term.keys if isinstance(term, TokenBias) else None
        if not isinstance(added, Tensor) or added.requires_grad or bool(added.any()):
            raise HeadwayError(
                "a mask adds numbers to the scores of the whole sequence, and processes cannot share those: give "
                "booleans in headway.parallel.context, or an encoding"
            )
    return []


def _read(mask: Tensor) -> tuple[Tensor, Tensor | None]:
    """One of torch's masks as booleans, True for keys to attend to, and the floats that are added, if any."""
    if mask.dtype == torch.bool:
        return ~mask, None
    hidden = mask == -math.inf
    return ~hidden, mask.masked_fill(hidden, 0)


# ---------------------------------------------------------------- swap and restore


def swap_attention(model: Model, encoding: Choice | None = None, *, linear: bool = False) -> Model:
    """Replaces the attention of every ``nn.MultiheadAttention`` of a model by headway's, in place.

        model = swap_attention(nn.TransformerEncoder(layer, 6))            # the same function
        model = swap_attention(model, "rope")                              # one encoding for each layer
        model = swap_attention(model, lambda name, module: None if "multihead_attn" in name else "rope")
        model = swap_attention(model, linear=True)                         # and the linear maps

    The modules remain the same objects, with their parameters, names and hooks: an optimizer that exists continues to
    work, checkpoints fit as before, and shared modules remain shared. ``swapped_attention`` returns their names.

    Layouts, arguments and results are those of torch. True in a mask excludes a key; floats are added to scores, and
    gradients reach them. ``is_causal`` counts queries and keys from 0, requires attn_mask, and replaces it if neither
    padding nor weights are given.

    The results differ from torch's in three cases. A query that may attend to no key gives zeros and finite gradients.
    NaN in a key that no query of the call may attend to never reaches the output; in a key that some query attends to,
    it may reach any row. ``is_causal`` does not exclude the keys of add_bias_kv and add_zero_attn.

    The fast paths of torch for inference, which bypass a layer's attention, are switched off. Code that passes a
    layer's weights to F.multi_head_attention_forward still bypasses it.

    Args:
        model: the model, which is changed.
        encoding: the position encoding of the layers. A name or a class is built for each layer; an object is shared
            by all layers; a function of a layer's name and module returns one of these or None. Its parameters are in
            the state_dict under ``encoding.``. Positions are 0, 1, 2 … for queries and for keys, padding included;
            cross-attention gets the encoding too.
        linear: whether to compute every ``nn.Linear`` of the model by the faster of torch's and oneDNN's matrix
            products (``headway.nn.linear_kernel``). The model then need not have attention. Subclasses, parametrized
            and quantized layers stay as they are; ``swapped_linear`` lists the swapped layers and the others. Call
            ``restore_attention`` before using tools that look for the class nn.Linear itself, such as torch's
            quantization.

    Returns:
        The same model.

    Raises:
        HeadwayError: if the model has no nn.MultiheadAttention, a subclass of it or a layer that is already swapped,
            or if a layer cannot apply the encoding. The model is then unchanged.
    """
    if not isinstance(model, nn.Module):
        raise HeadwayError(f"model is {model!r:.60}: give a torch.nn.Module, such as nn.TransformerEncoder(…)")
    maps = [part for part in model.modules() if type(part) is nn.Linear] if linear else []
    named = [(name, part) for name, part in model.named_modules() if isinstance(part, nn.MultiheadAttention)]
    if not named and (encoding is not None or not maps):
        wanted = "nn.MultiheadAttention" if encoding is not None or not linear else "nn.MultiheadAttention or nn.Linear"
        raise HeadwayError(f"{type(model).__name__} has no {wanted}: there is nothing to swap")
    for name, module in named:
        if isinstance(module, HeadwayAttention):
            raise HeadwayError(f"{_said(name)} is headway's already: call restore_attention first")
        if type(module) is not nn.MultiheadAttention:
            raise HeadwayError(
                f"{_said(name)} is a {type(module).__name__}, whose own forward would be lost: swap the parts of the "
                "model that hold nn.MultiheadAttention itself, one by one"
            )
    encodings = [_encoding_for(name, module, encoding) for name, module in named]
    for (_, module), own in zip(named, encodings, strict=True):
        module.add_module("encoding", own)
        module.__class__ = HeadwayAttention
        _leave_fast_path(module)
    for part in maps:
        part.__class__ = Linear
    for encoder in _encoders(model):
        vars(encoder)["_nested_before"] = encoder.use_nested_tensor
        encoder.use_nested_tensor = False
    return model


def restore_attention(model: Model, *, drop: bool = False) -> Model:
    """Reverts ``swap_attention``: all layers are torch's again, in place, with their current weights.

    Args:
        model: the model, which is changed.
        drop: whether to drop the encodings of layers, which torch's attention cannot apply.

    Returns:
        The same model.

    Raises:
        HeadwayError: if a layer has an encoding that has an effect, unless ``drop``. The model is then unchanged.
    """
    named = _swapped(model)
    for name, module in named.items():
        own = module.encoding
        if own is not None and own.acts and not drop:
            raise HeadwayError(
                f"{_said(name)} has the encoding {encoding_name(own)}, which nn.MultiheadAttention cannot apply: keep "
                "headway's, or give drop=True to lose it"
            )
    for encoder in _encoders(model):
        encoder.use_nested_tensor = vars(encoder).pop("_nested_before", encoder.use_nested_tensor)
    for module in named.values():
        del module.encoding
        for number, hook in list(module._forward_pre_hooks.items()):
            if hook is _not_bypassed:
                del module._forward_pre_hooks[number]
        module.__class__ = nn.MultiheadAttention  # type: ignore[assignment]
    for part in model.modules():
        if type(part) is Linear:
            part.__class__ = nn.Linear  # type: ignore[assignment]
    return model


def swapped_attention(model: nn.Module) -> list[str]:
    """The names of the layers of a model that ``swap_attention`` has swapped.

    Args:
        model: the model.
    """
    return list(_swapped(model))


class LinearLayers(NamedTuple):
    """The names of the linear maps of a model."""

    swapped: list[str]
    """Those that ``swap_attention`` has swapped."""
    left: list[str]
    """Those that it leaves as they are: of a subclass of nn.Linear, parametrized, quantized or adapted."""


def swapped_linear(model: nn.Module) -> LinearLayers:
    """The names of the linear maps that ``swap_attention(model, linear=True)`` swaps, and of the others.

    Args:
        model: the model, after the call.
    """
    within = {id(layer.out_proj) for layer in _swapped(model).values()}  # computed by headway in any case
    layers = LinearLayers([], [])
    for name, part in model.named_modules():
        if type(part) is Linear:
            layers.swapped.append(name)
        elif hasattr(part, "in_features") and hasattr(part, "out_features") and id(part) not in within:
            layers.left.append(name)
    return layers


def _swapped(model: nn.Module) -> dict[str, HeadwayAttention]:
    return {name: part for name, part in model.named_modules() if isinstance(part, HeadwayAttention)}


def _encoders(model: nn.Module) -> list[nn.TransformerEncoder]:
    """Stacks with a swapped layer, which convert padded input to nested tensors for the fast path of their layers."""
    return [part for part in model.modules() if isinstance(part, nn.TransformerEncoder) and _swapped(part)]


def _not_bypassed(module: nn.Module, args: tuple[object, ...]) -> None:
    """A hook that does nothing: torch's Transformer layers take their fast path only if no module in them has one."""


def _leave_fast_path(module: nn.Module) -> None:
    if _not_bypassed not in module._forward_pre_hooks.values():
        module.register_forward_pre_hook(_not_bypassed)


def _said(name: str) -> str:
    return name or "the model"


def _encoding_for(name: str, module: nn.MultiheadAttention, choice: Choice | None) -> PositionEncoding | None:
    """The encoding of one layer, validated, on the layer's device."""
    spec = choice
    if callable(choice) and not isinstance(choice, (PositionEncoding, type)):
        spec = choice(name, module)
    if spec is None:
        return None
    sizes = {"embed_dim": module.embed_dim, "num_heads": module.num_heads, "head_dim": module.head_dim}
    if isinstance(spec, str) and (named := ENCODINGS.get(spec.strip().partition("(")[0])) is not None:
        _need_attention(named, spec)  # before an error asks for arguments that would not help
    own = encoding_of(spec, **sizes)  # type: ignore[arg-type]
    kind = type(own).__name__
    _need_attention(own, encoding_name(own))
    if own.axes not in (None, 1):
        raise HeadwayError(f"{kind} reads {own.axes} axes and torch's layers have one: give an encoding of one axis")
    if module.bias_k is not None:
        raise HeadwayError(
            f"{_said(name)} has add_bias_kv, a key without a position, which {kind} needs: give encoding as a function "
            "that returns None for it"
        )
    return own.to(module.out_proj.weight.device).train(module.training)


def _need_attention(encoding: PositionEncoding | type[PositionEncoding], name: str) -> None:
    """Raises HeadwayError for an encoding that does nothing in an attention layer, unless it does nothing anywhere."""
    acts = encoding._acts if isinstance(encoding, type) else encoding.acts
    if not acts or acts & IN_ATTENTION:
        return
    kind = encoding.__name__ if isinstance(encoding, type) else type(encoding).__name__
    if "embed" in acts:
        remedy = f"make it by headway.encoding({name!r}, …) and add it to the model's input: x = encoding.embed(x)"
    else:
        remedy = f"compose it, as in '{name} + rope'"
    raise HeadwayError(f"{kind} does nothing in an attention layer by itself: {remedy}")
