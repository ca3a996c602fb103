"""Products of queries and keys in which each channel decays along the tokens between them.

The products are Σ_c q_ic·k_jc·exp(P_ic − P_jc), where P sums logarithms that are at most 0. They cannot be computed
from q·exp(P) and k·exp(−P), which leave the range of floats. If P is measured from a token between query and key, both
factors are at most 1. ``along`` and ``in_pieces`` measure it from the ends of blocks of 1, 2, 4, … tokens, since each
query and each key before it are in two neighbouring blocks of some size. ``with_earlier`` measures it for
queries and the keys before all of them, from the last of these.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

from .householder import Piece
from .tracing import watched

NOTHING = -1000.0
"""A logarithm whose exponential is 0 in every dtype; sums of it stay finite."""


def along(q: Tensor, k: Tensor, rows: Tensor, log_gates: Tensor, q_index: Tensor, k_index: Tensor) -> Tensor:
    """Computes the products for a block of queries, [batch, heads, rows, m].

    One row is computed channel by channel, as are all that a compiler traces: this takes rows·m·head_dim numbers unless
    the compiler fuses their sum.

    Args:
        q: the queries of the block, [batch, heads, rows, head_dim].
        k: keys, [batch, heads, m, head_dim].
        rows: the slots of the queries.
        log_gates: of each key, [batch or 1, heads, m, head_dim]; numbers above 0 count as 0.
        q_index: the index of each query, [b, n].
        k_index: the index of each key, [b, m].
    """
    narrow, m = q.dtype, k.shape[2]
    wide = torch.promote_types(narrow, torch.float32)
    q, k = q.to(wide), k.to(wide)
    products = q @ k.mT
    logs = log_gates.double().clamp(NOTHING, 0)
    sums = logs.cumsum(2)
    passed = k_index[:, None] <= q_index[:, rows, None]
    # one row needs no blocks; a compiler would fix their number to that of its example
    if watched() or rows.shape[0] == 1:
        between = ((passed[:, None].double() @ logs)[:, :, :, None] - sums[:, :, None]).clamp(max=0)
        return (q[:, :, :, None] * k[:, :, None] * between.to(wide).exp()).sum(-1).to(narrow)
    slot = torch.arange(m, device=k.device)
    # the last key that is not after the query; a query before all keys passes none, like the one at the first key
    own = (passed.sum(-1) - 1).clamp(min=0)
    size = 1
    while size < m:
        of_keys, of_queries = slot // size, own // size
        last = ((of_keys + 1) * size - 1).clamp(max=m - 1)
        of_q, of_k = _up_to(sums, own) - _up_to(sums, of_queries * size - 1), sums[:, :, last] - sums
        decayed = (q * of_q.to(wide).exp()) @ (k * of_k.to(wide).exp()).mT
        meet = of_keys == of_queries[..., None] - 1
        products = torch.where(meet[:, None], decayed, products)
        size *= 2
    return products.to(narrow)


def _up_to(sums: Tensor, slot: Tensor) -> Tensor:
    """The sums up to and including a slot for each query, [batch, heads, rows, head_dim]; 0 for slot −1."""
    return torch.take_along_dim(F.pad(sums, (0, 0, 1, 0)), (slot + 1)[:, None, :, None], dim=2)


def with_earlier(q: Tensor, k: Tensor, log_gates: Tensor) -> tuple[Tensor, Tensor]:
    """Returns queries and keys whose products are those of the queries with the keys before the first query.

    Queries decay from the last of these keys on, and these keys up to it. The queries' own keys, which are the last n,
    are zeros.

    Args:
        q: queries, [batch, heads, n, head_dim].
        k: keys, [batch, heads, m, head_dim].
        log_gates: of each key, [batch or 1, heads, m, head_dim]; numbers above 0 count as 0.
    """
    wide, before = torch.promote_types(q.dtype, torch.float32), k.shape[2] - q.shape[2]
    logs = log_gates.double().clamp(NOTHING, 0)
    earlier = logs[:, :, :before].flip(2).cumsum(2).flip(2)
    after = F.pad(earlier[:, :, 1:], (0, 0, 0, 1))
    moved = k[:, :, :before].to(wide) * after.exp().to(wide)
    return q.to(wide) * logs[:, :, before:].cumsum(2).exp().to(wide), F.pad(moved, (0, 0, 0, q.shape[2]))


def in_pieces(q: Tensor, k: Tensor, log_gates: Tensor) -> Iterator[Piece]:
    """Yields pieces which together hold each pair of a query and a key that is not after it, once.

    The first piece has each query and its own key. Then two neighbouring blocks are one piece, in which a query has
    decayed along its block and a key after itself along its own, and they become a block of twice the size. There are
    1 + ⌈log₂(n)⌉ pieces.

    Args:
        q: queries, [batch, heads, n, head_dim].
        k: keys, [batch, heads, n, head_dim].
        log_gates: of each key, [batch or 1, heads, n, head_dim]; numbers above 0 count as 0.
    """
    wide, n = torch.promote_types(q.dtype, torch.float32), q.shape[2]
    q, k = q.to(wide), k.to(wide)
    yield Piece(q, k, 1, True)
    if n < 2:
        return
    size, blocks = 1, 1 << (n - 1).bit_length()

    def halves(x: Tensor) -> tuple[Tensor, Tensor]:
        left, right = x.unflatten(2, (-1, 2)).unbind(3)
        return left, right

    def padded(x: Tensor) -> Tensor:
        return F.pad(x, (0, 0, 0, blocks - n)) if blocks > n else x

    def decayed(x: Tensor, logs: Tensor, side: int) -> Tensor:
        """Decays left blocks (side 0) or right ones (1); the others, which meet none, are 0."""
        moved = x.unflatten(2, (-1, 2, size))[:, :, :, side] * halves(logs)[side].exp()
        none = moved.new_zeros(()).expand_as(moved)
        return torch.stack([none, moved] if side else [moved, none], dim=3).flatten(2, 4)[:, :, :n]

    # logarithms, [batch, heads, blocks, size, head_dim]: in a product, gates near 1 would each be rounded
    q, k, whole = padded(q), padded(k), padded(log_gates.to(wide).clamp(max=0))[:, :, :, None]
    of_q, of_k = whole, torch.zeros_like(whole)
    while True:
        yield Piece(decayed(q, of_q, 1), decayed(k, of_k, 0), size, False)
        size, blocks = 2 * size, blocks // 2
        if blocks == 1:
            return
        (q_left, q_right), (k_left, k_right), (left, right) = halves(of_q), halves(of_k), halves(whole)
        of_q = torch.cat([q_left, q_right + left], dim=3)
        of_k = torch.cat([k_left + right, k_right], dim=3)
        whole = left + right
