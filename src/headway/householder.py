"""Products of Householder matrices along a sequence of tokens, H_t = I − β_t·w_t·w_tᵀ, in their WY form.

Such a product of some consecutive tokens is I − Σ_t w_t·a_tᵀ, whose a_t solve one triangular system. ``along`` computes
scores of queries and keys with the product between them, a block of queries at a time. ``in_pieces`` moves queries and
keys to common tokens between them, so that scores are products of vectors again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

CHUNK = 64
"""Tokens whose triangular system is solved at once."""


def along(q: Tensor, k: Tensor, rows: Tensor, w: Tensor, beta: Tensor, q_index: Tensor, k_index: Tensor) -> Tensor:
    """Computes qᵢᵀ·Hᵢ ⋯ Hⱼ₊₁·kⱼ for a block of queries, [batch, heads, rows, m].

    From the last key backwards, each chunk subtracts Σ c_t·w_t from u = Hⱼ₊₁ ⋯ Hᵢ·qᵢ, where c solves a triangular
    system.

    Args:
        q: the queries of the block, [batch, heads, rows, head_dim].
        k: keys, [batch, heads, m, head_dim].
        rows: the slots of the queries.
        w: of each key, [batch, kv_heads, m, head_dim].
        beta: β of each key, [batch, kv_heads, m].
        q_index: the index of each query, [b, n].
        k_index: the index of each key, [b, m].
    """
    wide, heads = torch.promote_types(q.dtype, torch.float32), q.shape[1]
    w = w.to(wide).repeat_interleave(heads // w.shape[1], dim=1)
    beta = beta.to(wide).repeat_interleave(heads // beta.shape[1], dim=1)
    u, k, scores = q.to(wide), k.to(wide), []
    own = q_index[:, None, None, rows]
    chunks = -(-k.shape[2] // CHUNK)
    for chunk in reversed(range(chunks)):
        some = slice(chunk * CHUNK, (chunk + 1) * CHUNK)
        w_c, k_c, beta_c = w[:, :, some], k[:, :, some], beta[:, :, some, None]
        passed = k_index[:, None, some, None] <= own
        system = (beta_c * (w_c @ w_c.mT)).triu(1)
        wanted = (beta_c * (w_c @ u.mT)).masked_fill(~passed, 0)
        c = torch.linalg.solve_triangular(system, wanted, upper=True, unitriangular=True).mT
        scores.append(u @ k_c.mT - c @ (w_c @ k_c.mT).tril(-1))
        u = u - c @ w_c
    return torch.cat(scores[::-1], dim=-1).to(q.dtype) if scores else q @ k.to(q.dtype).mT


class Piece(NamedTuple):
    """Pairs of tokens whose scores are products of moved queries and keys.

    Attributes:
        q: moved queries, [batch, heads, n, width].
        k: moved keys, [batch, kv_heads, n, width].
        size: the tokens of a block.
        own: whether each query meets the keys of its own block. If not, those of odd blocks meet the block before.
    """

    q: Tensor
    k: Tensor
    size: int
    own: bool

    def between(self) -> Tensor:
        """Returns, for each token, one between it and each token that it meets, int64 [n]."""
        slot = torch.arange(self.q.shape[2], device=self.q.device)
        block = slot // self.size
        return (block if self.own else block + 1 - block % 2) * self.size

    def keys(self) -> tuple[Tensor, Tensor]:
        """Returns the first key that each query meets, and the one after the last that it may meet, int64 [1, n]."""
        slot = torch.arange(self.q.shape[2], device=self.q.device)[None]
        block = slot // self.size
        if self.own:
            return block * self.size, slot + 1
        odd = block % 2
        return (block - 1) * odd * self.size, block * odd * self.size


def in_pieces(q: Tensor, k: Tensor, w: Tensor, beta: Tensor) -> Iterator[Piece]:
    """Yields pieces which together hold each pair of a query and a key that is not after it, once.

    In a chunk, qᵢᵀ·Hᵢ ⋯ Hⱼ₊₁·kⱼ = ⟨qᵢ, kⱼ⟩ − Σ_t c_it·⟨w_t, kⱼ⟩ is a product of vectors of width head_dim + 64. A query
    beyond the chunk moves to its first token, a key to its last. Two neighbouring blocks are then one piece, and become
    a block of twice the size, in which the later queries move on to the first token, and the earlier keys to the last.
    There are 1 + log₂(chunks) pieces.

    Args:
        q: queries, [batch, heads, n, head_dim].
        k: keys, [batch, kv_heads, n, head_dim].
        w: of each key, [batch or 1, kv_heads, n, head_dim].
        beta: β of each key, [batch or 1, kv_heads, n].
    """
    wide, n, kv_heads = torch.promote_types(q.dtype, torch.float32), q.shape[2], k.shape[1]
    size, chunks = CHUNK, 1 << (-(-n // CHUNK) - 1).bit_length()

    def blocks(x: Tensor) -> Tensor:
        """[batch, heads, n, width] as [batch, kv_heads, group, chunks, CHUNK, width], with tokens whose H is 1."""
        x = F.pad(x.to(wide), (0, 0, 0, chunks * CHUNK - n))
        return x.unflatten(2, (chunks, CHUNK)).unflatten(1, (kv_heads, -1))

    def tokens(x: Tensor) -> Tensor:
        return x.flatten(3, 4).flatten(1, 2)[:, :, :n]

    q, k, w, beta = blocks(q), blocks(k), blocks(w), blocks(beta[..., None])
    scaled = beta * w
    one = torch.eye(CHUNK, dtype=wide, device=q.device)
    solved = torch.linalg.solve_triangular((scaled @ w.mT).tril(-1), one, upper=False, unitriangular=True)
    c = (beta * (solved.mT @ (w @ q.mT).triu())).mT
    passed = (w @ k.mT).tril(-1)
    yield Piece(tokens(torch.cat([q, -c], dim=-1)), tokens(torch.cat([k, passed.mT], dim=-1)), size, True)
    if chunks == 1:
        return
    q = q - c @ w
    k = k - (solved @ (beta * passed)).mT @ w
    whole = torch.eye(w.shape[-1], dtype=wide, device=q.device) - w.mT @ (solved @ scaled)
    while True:
        yield Piece(tokens(q), tokens(k), size, False)
        size, chunks = 2 * size, chunks // 2
        if chunks == 1:
            return
        (q_left, q_right), (k_left, k_right), (left, right) = (
            x.unflatten(3, (chunks, 2)).unbind(4) for x in (q, k, whole)
        )
        q = torch.cat([q_left, q_right @ left], dim=-2)
        k = torch.cat([k_left @ right.mT, k_right], dim=-2)
        whole = right @ left
