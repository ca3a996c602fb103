"""Models of transformers in ``headway.parallel.context``, whose sequence several processes share."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial, reduce
from operator import and_
from typing import Any

import torch
from torch import Tensor, nn

from ...coordinates import Coordinates
from ...errors import HeadwayError
from ...masks import And, Causal, Chunked, Documents, Mask, Window
from ...sharing import Sharing, sharing_of
from ._library import NAME, import_transformers
from ._mask_tensor import MaskTensor, leaves
from ._models import BOOLEANS, masks_taken

COORDINATES = "headway_coordinates"
"""The argument by which the coordinates of this process's tokens pass through a model to its attention."""
REFUSED = {
    "labels": "shift the targets before Shards.take, and compute the loss from the logits",
    "past_key_values": "leave it out",
    "inputs_embeds": "give input_ids",
    "attention_mask": "leave it out, and give packed documents by position_ids that start again",
}
"""Arguments of models that a context does not support, with what to do."""


class Transformers:
    """The attention of transformers' models, as ``headway.sharing.libraries`` describes it."""

    def why_not(self, module: nn.Module) -> str | None:
        """Returns why a context does not reach a layer; None if it does.

        Args:
            module: a layer that calls the attention interface.
        """
        config: Any = getattr(module, "config", None)
        implementation = getattr(config, "_attn_implementation", None)
        if implementation != NAME:
            return f"has attn_implementation={implementation!r}: call model.set_attn_implementation('headway') first"
        if getattr(config, "is_encoder_decoder", False):
            return "is part of an encoder–decoder, and a context knows only one of its sides: do without a context"
        if masks_taken(type(config)) != BOOLEANS:
            return "is of a model that computes with the numbers of its masks: do without a context"
        return None

    @contextmanager
    def entered(self, model: nn.Module, shared: Sharing) -> Iterator[None]:
        """A context manager in which models pass on the coordinates of this process's tokens.

        Args:
            model: the model of the context.
            shared: the context.

        Raises:
            HeadwayError: for a model that takes no positions, or does not pass arguments on to its attention.
        """
        kind = import_transformers().PreTrainedModel
        with ExitStack() as block:
            for name, module in model.named_modules():
                if not isinstance(module, kind):
                    continue
                taken = inspect.signature(module.forward).parameters
                hands_on = any(one.kind is one.VAR_KEYWORD for one in taken.values())
                if not hands_on or not ("position_ids" in taken or "input_ids" not in taken):
                    raise HeadwayError(
                        f"{name or type(module).__name__} does not take position_ids, or passes no arguments to its "
                        "attention, which a context needs: do without a context"
                    )
                hook = module.register_forward_pre_hook(partial(_with_coordinates, shared), with_kwargs=True)
                block.callback(hook.remove)
            yield


def _with_coordinates(
    shared: Sharing, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """A hook before the forward pass of a model: gives it the positions of this process's tokens."""
    if COORDINATES in kwargs or sharing_of(model) is not shared:
        return None
    taken = inspect.signature(model.forward).parameters
    given = dict(zip(taken, args, strict=False)) | kwargs
    for name, remedy in REFUSED.items():
        if given.get(name) is not None:
            raise HeadwayError(f"{name} is given in headway.parallel.context: {remedy}")
    ids = given.get("input_ids")
    if not isinstance(ids, Tensor):
        raise HeadwayError("input_ids are not given in headway.parallel.context: give this process's tokens")
    at = shared.coordinates(given.get("position_ids"), ids.shape[1], ids.device)
    whole = at if at.shard is None else at.shard.whole
    if (documents := packed(whole.position[..., 0])) is not None:
        whole = replace(whole, document=documents, rising=documents)
        at = whole if at.shard is None else whole.take(at.shard.runs)
    given |= {"position_ids": at.position[..., 0], COORDINATES: at}
    if "use_cache" in taken:
        given["use_cache"] = False
    return (), {name: value for name, value in given.items() if value is not None}


def arguments_of_shard(
    at: Coordinates | None, mask: Any, arguments: dict[str, Any], query: Tensor, key: Tensor
) -> dict[str, Any]:
    """Returns the arguments of one layer's attention for the whole sequence; this process holds a part of its tokens.

    Args:
        at: the coordinates of the tokens; None if the model has not passed them on.
        mask: the mask that the model has made of this process's tokens.
        arguments: the arguments for only these tokens.
        query: the queries.
        key: the keys.

    Raises:
        HeadwayError: if the mask holds numbers, or the keys are not those of the same tokens.
    """
    if at is None or key.shape[2] != query.shape[2]:
        raise HeadwayError(
            "the model does not tell its attention where its tokens are, or gives it other keys, such as those of a "
            "cache: call it outside of headway.parallel.context"
        )
    if mask is not None and not isinstance(mask, MaskTensor):
        raise HeadwayError("the model makes a mask of its own in headway.parallel.context, which holds numbers")
    if any(True for _ in arguments["terms"]):
        raise HeadwayError("the model adds a bias to its scores, which headway.parallel.context cannot share")
    whole = at if at.shard is None else at.shard.whole
    kept = _of_whole(arguments["mask"], with_documents=whole.document is not None)
    return {**arguments, "mask": kept, "q_positions": at, "k_positions": at}


def _of_whole(mask: Mask | None, *, with_documents: bool) -> Mask | None:
    """The mask of the whole sequence. transformers takes the gaps of a shard for boundaries of documents."""
    parts = list(mask.masks) if isinstance(mask, And) else [] if mask is None else [mask]
    parts = [part for part in parts if type(part) is not Documents]
    for leaf in (leaf for part in parts for leaf in leaves(part)):
        if type(leaf) not in (Causal, Window, Chunked):
            raise HeadwayError(
                f"the mask of the model has {type(leaf).__name__}, which headway.parallel.context cannot share"
            )
    if with_documents and any(type(part) is Causal for part in parts):
        parts.append(Documents())
    return reduce(and_, parts) if parts else None


def packed(positions: Tensor) -> Tensor | None:
    """The document of each token, [b, n], where positions [b, n] do not rise by one; None if all of them do.

    Args:
        positions: the positions of the whole sequence.
    """
    starts = positions.diff(dim=1) != 1
    if not bool(starts.any()):
        return None
    return torch.cat([torch.zeros_like(positions[:, :1]), starts.long().cumsum(1)], dim=1)
