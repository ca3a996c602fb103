"""The base class of encodings that rotate queries and keys by matrix exponentials of learned generators."""

from __future__ import annotations

import torch
from torch import Tensor

from ..coordinates import Coordinates
from ..errors import HeadwayError, need_positive
from ._base import Pair, PositionEncoding
from ._formulas import need_width


class LieRotary(PositionEncoding):
    """Rotates blocks of dimensions of queries and keys by R(p) = exp(Σ_a p_a·A_a), with A_a = −A_aᵀ.

        score[h,i,j] = s·Σ_β ⟨R_hβ(pᵢ)·q_iβ, R_hβ(pⱼ)·k_jβ⟩ over the blocks β of block_size consecutive dimensions

    A subclass defines ``generators``. Exponentials are float64 and take block_size numbers for each number of a query,
    once for all heads if generators are shared. The rotation is computed in float32, or in float64 for float64 input.
    Queries that share a key head share its generators.

    Args:
        head_dim: the width of each head, at least 1.
        block_size: the number of dimensions that are rotated together, at least 2, a divisor of head_dim.
        axes: the number of axes of the positions, at least 1.
        num_heads: the number of query heads, at least 1.
        num_kv_heads: the number of key and value heads, a divisor of num_heads; num_heads if None.

    Raises:
        HeadwayError: if a size is below 1, block_size does not divide head_dim, or num_kv_heads does not divide
            num_heads.
    """

    axes: int | None = 2

    def __init__(self, head_dim: int, block_size: int, axes: int, num_heads: int, num_kv_heads: int | None) -> None:
        super().__init__()
        need_positive(head_dim=head_dim, block_size=block_size, axes=axes, num_heads=num_heads)
        if block_size < 2 or head_dim % block_size:
            raise HeadwayError(f"block_size is {block_size}: give a divisor of head_dim, {head_dim}, of at least 2")
        need_divisor(num_heads, num_kv_heads)
        self.head_dim, self.block_size, self.axes = head_dim, block_size, axes
        self.num_heads, self.num_kv_heads = num_heads, num_kv_heads
        self.blocks = head_dim // block_size
        self.entries = block_size * (block_size - 1) // 2  # above the diagonal

    def generators(self) -> Tensor:
        """Returns the entries of A above its diagonal by rows, [axes, num_kv_heads or 1, blocks, entries] in float64.

        Raises:
            NotImplementedError: if the subclass does not define it.
        """
        raise NotImplementedError

    def learned_tables(self, coordinates: Coordinates) -> Tensor:
        """Returns R(p), [b, num_kv_heads or 1, n, blocks, block_size, block_size] in float64."""
        upper = torch.einsum("bna,ahke->bhnke", coordinates.position.double(), self.generators())
        return torch.linalg.matrix_exp(skew(upper, self.block_size).contiguous())

    def prepare(self, x: Tensor, coordinates: Coordinates) -> Tensor:
        """Returns x [batch, num_heads or num_kv_heads, n, head_dim] rotated, in float32 or wider."""
        need_width(x, "head_dim", self.head_dim)
        turn = self.for_one_forward(coordinates).learned
        if turn.shape[1] > 1:
            (turn,) = for_heads(x, self.num_heads, turn)
        wide = torch.promote_types(x.dtype, torch.float32)
        block = x.to(wide).unflatten(-1, (self.blocks, 1, self.block_size))
        return (turn.to(wide) * block).sum(-1).flatten(-2).to(x.dtype)  # no matmul, which autocast would round

    # ------------------------------------------------------------ for the checks

    def oracle_generator(self, pair: Pair, axis: int, block: int) -> Tensor:
        """Returns A_a [block_size, block_size] of a block in the pair's head, as the paper writes it.

        Args:
            pair: the query and the key.
            axis: a.
            block: the block.

        Raises:
            NotImplementedError: if the subclass does not define it.
        """
        raise NotImplementedError

    def oracle(self, pair: Pair) -> float:
        total = 0.0
        for block in range(self.blocks):
            part = slice(block * self.block_size, (block + 1) * self.block_size)
            q, k = (
                self._oracle_turn(pair, token, block) @ x[part]
                for token, x in ((pair.i, pair.query), (pair.j, pair.key))
            )
            total += float(q @ k)
        return pair.scale * total

    def _oracle_turn(self, pair: Pair, token: int, block: int) -> Tensor:
        """exp(A) by the eigenvalues of the Hermitian i·A."""
        axes = range(pair.coordinates.position.shape[-1])
        generator = sum((pair.at(token, a) * self.oracle_generator(pair, a, block) for a in axes), torch.zeros(()))
        values, vectors = torch.linalg.eigh(1j * generator.to(torch.complex128))
        return ((vectors * torch.exp(-1j * values)) @ vectors.mH).real


def need_divisor(num_heads: int, num_kv_heads: int | None) -> None:
    """Raises HeadwayError unless num_kv_heads is None or divides num_heads."""
    if num_kv_heads is not None and (num_kv_heads < 1 or num_heads % num_kv_heads):
        raise HeadwayError(f"num_kv_heads is {num_kv_heads}: give a divisor of num_heads, {num_heads}")


def for_heads(x: Tensor, num_heads: int, *parts: Tensor) -> tuple[Tensor, ...]:
    """Learned tensors of each key head, [b, num_kv_heads, …], repeated for the heads of x if x are queries."""
    heads, own = x.shape[1], parts[0].shape[1]
    if heads not in (own, num_heads):
        raise HeadwayError(
            f"x has {heads} heads but the encoding learns for {own}: build it with num_kv_heads={heads}, or num_heads"
        )
    return parts if heads == own else tuple(part.repeat_interleave(heads // own, dim=1) for part in parts)


def skew(upper: Tensor, size: int) -> Tensor:
    """A = U − Uᵀ […, size, size] from the entries of U above the diagonal, row by row, […, size·(size − 1)/2]."""
    at = [[0] * size for _ in range(size)]
    signs = [[0.0] * size for _ in range(size)]
    entry = 0
    for i in range(size):
        for j in range(i + 1, size):
            at[i][j] = at[j][i] = entry
            signs[i][j], signs[j][i] = 1.0, -1.0
            entry += 1
    index = torch.tensor(at, device=upper.device)
    return upper[..., index] * torch.tensor(signs, dtype=upper.dtype, device=upper.device)
