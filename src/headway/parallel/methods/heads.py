"""Heads: every rank gets all tokens of its share of the heads, and sends the output back to the tokens' ranks."""

from __future__ import annotations

import torch
from torch import Tensor

from ...coordinates import Coordinates
from ...kernels import KERNELS, Call, kernel_for
from ...terms import Term
from ...tracing import without_autocast
from .._call import SharedCall
from .._group import (
    bytes_by_heads,
    bytes_of_gathered,
    gathered,
    shard_by_tokens,
    tokens_in,
    whole_by_heads,
)
from .._shards import Shards
from ._base import Method, Traffic

HEADS = ("heads", "kv_heads")
"""The names of dimensions of heads."""


class Heads(Method):
    """Exchanges prepared queries, keys and values by heads (DeepSpeed Ulysses); each rank then computes one whole call.

    The number of key heads must be a multiple of the number of ranks. Tensors without a dimension of heads, such as the
    biases of tokens, are gathered.
    """

    name = "heads"

    def why_not(self, call: SharedCall) -> str | None:
        size, heads = call.group.size, call.k.shape[1]
        if heads % size:
            able = ", ".join(str(one) for one in range(1, heads + 1) if heads % one == 0)
            return f"{heads} heads of keys do not divide by {size} processes: they do by {able}"
        if (why := call.why_not_apart()) is not None:
            return why
        fewest = min(map(tokens_in, (*call.q_shards.layout, *call.k_shards.layout)))
        if fewest == 1 and call.probe().terms:
            return "a rank has one token, whose tensors in terms cannot be told from those of all tokens"
        return None

    def traffic(self, call: SharedCall) -> Traffic:
        few, moved, scans = call.rehearsal()
        rank, counts = call.group.rank, [list(map(tokens_in, side.layout)) for side in (call.q_shards, call.k_shards)]
        q, k, v = (x.narrow(2, 0, 1) for x in (few.q, few.k, few.v))
        out = q.shape[0] * q.shape[1] * v.shape[3] * q.itemsize
        lse = q.shape[0] * q.shape[1] * (8 if q.dtype == torch.float64 else 4) * call.wants_lse
        there = [bytes_by_heads(*one, rank) for one in ((q.nbytes, counts[0]), (k.nbytes + v.nbytes, counts[1]))]
        back, forth = bytes_by_heads(out + lse, counts[0], rank)
        sent = [(scans.forward, scans.backward), (forth, back), *there]
        for term in few.terms:
            sent += [_bytes(call, counts, *one) for one in _exchanged(term)]
        if moved:
            for at, count in zip((few.q_coordinates, few.k_coordinates), counts, strict=True):
                position = bytes_of_gathered(at.position[:, :1].nbytes, count, rank)
                sent.append((position[0], position[1] * at.position.requires_grad))
        return Traffic(*map(sum, zip(*sent, strict=True)))

    def run(self, call: SharedCall) -> tuple[Tensor, Tensor | None]:
        local, moved = call.encoded()
        with without_autocast(call.q):
            rotated = KERNELS["cpu"].rotated(local)
            whole = _whole(call, rotated, moved)
            kernel = kernel_for(KERNELS, whole, call.kernel)
            out, lse = kernel.run(whole)
            out = kernel.restored(local, _back(call, out))
        return out.to(local.q.dtype), None if lse is None else _back(call, lse)


def _back(call: SharedCall, x: Tensor) -> Tensor:
    return shard_by_tokens(x, call.group, call.q_shards.layout, 1, 2)


def _whole(call: SharedCall, local: Call, moved: bool) -> Call:
    """Returns the call of all tokens and of this rank's share of the heads."""
    group, shards = call.group, (call.q_shards, call.k_shards)
    q, k, v = (
        whole_by_heads(x, group, side.layout, 1, 2)
        for x, side in ((local.q, shards[0]), (local.k, shards[1]), (local.v, shards[1]))
    )
    first = local.head_offset + group.rank * q.shape[1]
    q_at, k_at = call.located()
    if moved:
        q_at, k_at = (
            _moved(at, side, shard, call)
            for at, side, shard in zip((q_at, k_at), (local.q_coordinates, local.k_coordinates), shards, strict=True)
        )
    return local._with(
        q=q,
        k=k,
        v=v,
        q_coordinates=q_at,
        k_coordinates=k_at,
        terms=tuple([_term(call, term) for term in local.terms]),
        mask=None if call.mask is None else call.mask.cut("heads", first, first + q.shape[1]),
        aligned=call.itself and q_at.ordered,
        head_offset=first,
        out_rotation=None,
        restore=None,
        wants_lse=call.wants_lse,
    )


def _moved(at: Coordinates, side: Coordinates, shards: Shards, call: SharedCall) -> Coordinates:
    return at.facts()._with(position=gathered(side.position, call.group, shards.layout, 1))


def _exchanged(term: Term) -> list[tuple[Tensor, tuple[str, ...]]]:
    """The tensors of a term that have a dimension of queries or keys, each once, with the names of their dimensions."""
    found: dict[int, tuple[Tensor, tuple[str, ...]]] = {}

    def noted(x: Tensor, words: tuple[str, ...]) -> Tensor:
        found[id(x)] = x, words
        return x

    for name in ("queries", "keys"):
        term.along(name, noted)
    return list(found.values())


def _bytes(call: SharedCall, counts: list[list[int]], x: Tensor, words: tuple[str, ...]) -> tuple[int, int]:
    """The bytes that ``_term`` sends of a tensor of a few tokens, forward and backward."""
    name = "queries" if "queries" in words else "keys"
    dim, by_heads = words.index(name), any(word in words and x.shape[words.index(word)] > 1 for word in HEADS)
    found = (bytes_by_heads if by_heads else bytes_of_gathered)(
        x.narrow(dim, 0, 1).nbytes, counts[name == "keys"], call.group.rank
    )
    return found[0], found[1] * x.requires_grad


def _term(call: SharedCall, term: Term) -> Term:
    """Turns a term of this rank's tokens into a term of all tokens and of this rank's share of the heads."""
    group, done = call.group, set[int]()
    layouts = {"queries": call.q_shards.layout, "keys": call.k_shards.layout}

    def shared(x: Tensor, words: tuple[str, ...], name: str) -> Tensor:
        heads = words.index(name)
        tokens = [word for word in words if word in layouts and x.shape[words.index(word)] > 1]
        if not tokens:
            return x.chunk(group.size, heads)[group.rank]
        found = whole_by_heads(x, group, layouts[tokens[0]], heads, words.index(tokens[0]))
        done.add(id(found))
        return found

    def all_of(x: Tensor, words: tuple[str, ...], name: str) -> Tensor:
        return x if id(x) in done else gathered(x, group, layouts[name], words.index(name))

    for name in HEADS:
        term = term.along(name, lambda x, words, name=name: shared(x, words, name))  # type: ignore[misc]
    for name in layouts:
        term = term.along(name, lambda x, words, name=name: all_of(x, words, name))  # type: ignore[misc]
    return term
