"""Gather: every rank gets all keys and values, and computes ordinary calls with its own queries."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...call import make_call
from ...coordinates import Coordinates
from ...errors import HeadwayError
from ...kernels import KERNELS, Call, kernel_for
from ...masks import Mask
from ...terms import Term
from .._call import SharedCall, why_not_pairs
from .._group import bytes_of_gathered, gathered, tokens_in
from .._sight import sight
from ._base import Method, Traffic


class Gather(Method):
    """Gathers keys, values and the layer's input before the encoding transforms them.

    Each run of queries is then computed by its own call with all keys, or with the keys up to the last one that its
    mask shows, so that in a causal call the queries are the last of the keys. Any encoding works, but each rank needs
    memory for all keys.
    """

    name = "gather"

    def why_not(self, call: SharedCall) -> str | None:
        return why_not_pairs(call.terms)

    def traffic(self, call: SharedCall) -> Traffic:
        tensors = [(call.k, 2), (call.v, 2)]
        if call.encoding is not None and call.encoding.reads_input and call.k_input is not None:
            tensors.append((call.k_input, 1))
        differentiable = [True] * len(tensors)

        def noted(x: Tensor, words: tuple[str, ...]) -> Tensor:
            tensors.append((x, words.index("keys")))
            differentiable.append(x.requires_grad)
            return x

        for term in call.terms:
            term.along("keys", noted)
        counts = list(map(tokens_in, call.k_shards.layout))
        forward = backward = 0
        for (x, dim), wanted in zip(tensors, differentiable, strict=True):
            sent, back = bytes_of_gathered(x.narrow(dim, 0, 1).nbytes, counts, call.group.rank)
            forward, backward = forward + sent, backward + back * wanted
        return Traffic(forward, backward)

    def run(self, call: SharedCall) -> tuple[Tensor, Tensor | None]:
        k, v, terms = _all_keys(call)
        k_input = call.k_input
        if k_input is not None and call.encoding is not None and call.encoding.reads_input:
            k_input = gathered(k_input, call.group, call.k_shards.layout, 1)
        else:
            k_input = None
        return _in_runs(call, k, v, k_input, terms)


def as_one_call(call: SharedCall) -> Call:
    """Returns the call of all queries of this rank and of all keys, as inspection observes it.

    Args:
        call: the call.

    Raises:
        HeadwayError: if the encoding assumes that the queries are the last of the keys, which is not so in a shard.
    """
    if call.encoding is not None and call.encoding.reads_input:
        raise HeadwayError(
            f"{type(call.encoding).__name__} reads the layer's input and takes the queries as the last of the keys, "
            "which those of a shard are not: leave capture out, or call the model on the whole sequence"
        )
    if (why := why_not_pairs(call.terms)) is not None:
        raise HeadwayError(f"the weights cannot be observed here: {why}")
    k, v, terms = (call.k, call.v, call.terms) if call.has_all_keys else _all_keys(call)
    q_at, k_at = call.located()
    with call.drawing():
        made = make_call(
            call.q, k, v, encoding=call.encoding, terms=terms, mask=call.mask_of_shard(), k_positions=k_at,
            q_positions=q_at.take(call.q_shards.runs)._with(shard=None), **call.options,
        )  # fmt: skip
    return made._with(wants_lse=call.wants_lse)


def _all_keys(call: SharedCall) -> tuple[Tensor, Tensor, tuple[Term, ...]]:
    """Returns keys, values and terms of all ranks."""
    k, v = (gathered(x, call.group, call.k_shards.layout, 2) for x in (call.k, call.v))
    return k, v, tuple([term.along("keys", lambda x, words: _gathered(call, x, words)) for term in call.terms])


def with_all_keys(call: SharedCall) -> tuple[Tensor, Tensor | None]:
    """Computes a call whose keys every rank has; the results are as those of ``Method.run``.

    Args:
        call: the call.
    """
    return _in_runs(call, call.k, call.v, call.k_input, call.terms)


def _in_runs(
    call: SharedCall, k: Tensor, v: Tensor, k_input: Tensor | None, terms: tuple[Term, ...]
) -> tuple[Tensor, Tensor | None]:
    """Computes the attention of this rank's queries to all keys, run by run."""
    q_at, k_at = call.located()
    outs, lses, at = [], [], 0
    for start, stop in call.q_shards.runs:
        own, at = (at, at + stop - start), at + stop - start
        out, lse = _run(call, own, (start, stop), k, v, k_input, terms, q_at, k_at)
        outs.append(out)
        lses.append(lse)
    lse = torch.cat([one for one in lses if one is not None], 2) if call.wants_lse else None
    return torch.cat(outs, 2), lse


def _gathered(call: SharedCall, x: Tensor, words: tuple[str, ...]) -> Tensor:
    return gathered(x, call.group, call.k_shards.layout, words.index("keys"))


def _run(
    call: SharedCall,
    own: tuple[int, int],
    queries: tuple[int, int],
    k: Tensor,
    v: Tensor,
    k_input: Tensor | None,
    terms: tuple[Term, ...],
    q_at: Coordinates,
    k_at: Coordinates,
) -> tuple[Tensor, Tensor | None]:
    """Computes the attention of one run of queries: ``own`` is its place among the rank's, ``queries`` among all."""
    m, at = k_at.index.shape[1], q_at.rows(*queries)
    _, seen = sight(call.part_of_mask(queries, (0, m)), at, k_at.rows(0, m))
    options: dict[str, Any] = dict(call.options)
    sink = options.get("sink")
    if isinstance(sink, Tensor) and sink.ndim == 3:
        options["sink"] = sink[..., slice(*own)]
    if call.encoding is not None and call.encoding.reads_input:
        # such an encoding assumes that the queries are the last of the keys, whether these are seen or not
        seen = max(seen, queries[1] + m - q_at.index.shape[1])
    mask: Mask | None = call.part_of_mask(queries, (0, seen))
    q_input = None if call.q_input is None or k_input is None else call.q_input[:, slice(*own)]
    terms = tuple([term.block(*own).cut("keys", 0, seen) for term in terms])
    with call.drawing():
        part = make_call(
            call.q[:, :, slice(*own)], k[:, :, :seen], v[:, :, :seen], encoding=call.encoding, terms=terms, mask=mask,
            q_positions=at, k_positions=k_at.rows(0, seen), q_input=q_input,
            k_input=None if k_input is None else k_input[:, :seen], **options,
        )  # fmt: skip
    part = part._with(wants_lse=call.wants_lse)
    return kernel_for(KERNELS, part, call.kernel).run(part)
