"""Computes the attention of new tokens, which every rank has, to a cache whose keys the ranks share.

Each rank attends to its own keys, and the results are merged by row_max and row_sum, in the order of the ranks. The
rank with the last token of the prompt appends the new keys, so only its last run grows.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..attention import observers
from ..call import make_call
from ..coordinates import Coordinates
from ..errors import HeadwayError
from ..kernels import why_not_in_parts
from ..kernels._autograd import NATIVE
from ..kernels._parts import cut, forward_part, kernel_of_part, merged, sinks_of
from ..kernels._results import ForwardResults
from ..masks import AnyMask, Causal, as_mask, hiding_padding, looks_ahead
from ..nn._retention import reads_others
from ..positions import PositionEncoding
from ..tracing import without_autocast
from ._group import Group, Runs
from ._shards import Shards


def last_rank(shards: Shards) -> int:
    """Returns the rank that has the last token of the prompt and takes the keys of new tokens.

    Args:
        shards: the tokens of the prompt.
    """
    return next(rank for rank, runs in enumerate(shards.layout) if runs[-1][1] == shards.whole)


def need_decodes(encoding: PositionEncoding | None, dropout: float, fills: bool) -> None:
    """Checks that keys can stay on their ranks while new tokens follow.

    Args:
        encoding: the encoding.
        dropout: the share of the weights that is dropped.
        fills: whether the call processes the prompt.

    Raises:
        HeadwayError: if the encoding depends on other tokens or may draw positions, for gradients, for dropout, and for
            a later call that inspection observes.
    """
    if observers() and not fills:  # no process has the weights of all keys
        raise HeadwayError(
            "steps with a cache that processes share cannot be observed: leave capture, attention_statistics and "
            "ablate out, or decode outside of headway.parallel.context"
        )
    if encoding is not None and reads_others(encoding):
        does = "reads the layer's input" if encoding.reads_input else "moves tokens by the keys"
        raise HeadwayError(
            f"{encoding.known_as} {does} of all tokens, which a cache that processes share does not have: decode "
            "outside of headway.parallel.context"
        )
    if encoding is not None and encoding.training and "locate" in encoding.acts:
        raise HeadwayError(
            f"{encoding.known_as} is in training mode, in which each process may draw other positions: put the model "
            "into eval mode"
        )
    if torch.is_grad_enabled():
        raise HeadwayError("a cache that processes share has no gradients: decode within torch.no_grad()")
    if dropout:
        raise HeadwayError(f"dropout is {dropout} while a cache is shared: put the model into eval mode")


def attention_to_shares(
    q: Tensor, k: Tensor, v: Tensor, shards: Shards, encoding: PositionEncoding | None, mask: AnyMask,
    q_at: Coordinates, k_at: Coordinates, prepared_by: PositionEncoding | None, kernel: str, options: dict[str, Any],
) -> Tensor:  # fmt: skip
    """Returns the attention of new queries, the same on every rank.

    Args:
        q: the queries.
        k: this rank's keys.
        v: this rank's values.
        shards: the tokens of the prompt.
        encoding: the encoding.
        mask: the mask of these queries and all keys.
        q_at: coordinates of the queries.
        k_at: coordinates of all keys.
        prepared_by: the encoding that has prepared keys and values already.
        kernel: "auto", or the name of the kernel.
        options: scale, sink, soft_cap and head_shard.

    Raises:
        HeadwayError: as ``headway.attention`` does, and for terms that are functions of all keys at once.
    """
    n, m = q.shape[2], k_at.index.shape[1]
    runs = _own_runs(shards, m)
    checked = as_mask(mask)
    if checked is not None:
        heads = q.shape[1] if options["head_shard"] is None else options["head_shard"].total
        checked.check(q.shape[0], heads, n, m)
        checked = checked.for_call(q.shape[0], heads)
    checked = hiding_padding(checked, k_at)
    if checked is not None and options["head_shard"] is not None:
        checked = options["head_shard"].own_part(checked, k.shape[1])
    made = make_call(
        q, k, v, encoding=encoding, mask=None if looks_ahead(checked) else Causal(), q_positions=q_at,
        k_positions=k_at.take(runs)._with(shard=None), prepared_by=prepared_by, **options,
    )._with(mask=None)  # fmt: skip
    if (why := why_not_in_parts(made)) is not None:
        raise HeadwayError(f"processes cannot share a cache here: {why}: decode outside of headway.parallel.context")
    native = NATIVE[kernel_of_part(made, kernel)]
    with without_autocast(q):
        call, parts, at = native.rotated(made), list[ForwardResults](), 0
        for start, stop in runs:
            part = cut(call, "keys", at, at + stop - start)
            seen = None if checked is None else checked.of_keys(start, stop, n, m)
            parts.append(forward_part(part._with(mask=seen), kernel))
            at += stop - start
        whole = merged(_of_all_ranks(merged(parts), shards.group), sinks_of(call))
        return native.restored(made, whole.out).to(q.dtype)


def _own_runs(shards: Shards, count: int) -> Runs:
    """The runs of this rank's keys among the ``count`` tokens so far."""
    *runs, (start, stop) = shards.runs
    return (*runs, (start, count if stop == shards.whole else stop))


def _of_all_ranks(own: ForwardResults, group: Group) -> list[ForwardResults]:
    """The results of each rank."""
    packed = torch.cat([own.out, own.row_max[..., None], own.row_sum[..., None]], -1).contiguous()
    width = own.out.shape[-1]
    return [ForwardResults(x[..., :width], x[..., width], x[..., width + 1]) for x in group.all_of(packed)]
