"""Masks given as FlexAttention takes them: as a function of Python, or as a BlockMask."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from .._torch import mapped_over_pairs
from ..coordinates import Coordinates
from ..errors import HeadwayError
from ..records import Sizes, named
from ..tracing import watched
from ._base import Mask

MaskMod = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""FlexAttention's ``mask_mod``: of the numbers of a row of the batch, a head, a query and a key, whether it sees it."""


@dataclass(frozen=True, eq=False)
class Function(Mask):
    """A mask given as a function (b, h, q_idx, kv_idx) of tensors without dimensions, as FlexAttention's ``mask_mod``.

    The function is mapped over all pairs by ``torch.vmap``, so it may index tensors that it captures, and must return
    a boolean tensor. q_idx and kv_idx are the ``index`` of the tokens, their order in the stream: in a step with a
    cache, the query has the index of its token. In a call whose queries and keys are the same tokens, without padding
    on the left, they are the numbers in the tensors, as in FlexAttention.

    Args:
        function: the function.
        rows: the rows of the batch that b stands for, [batch]. Default: those of the call.
        heads: the heads that h stands for, [heads]. Default: those of the call.

    References:
        Dong et al. 2024, arXiv:2412.05496.
    """

    axes = named(rows="batch", heads="heads")

    whole: ClassVar[tuple[str, ...]] = ("rows", "heads")

    function: MaskMod
    rows: Tensor | None = None
    heads: Tensor | None = None

    def for_call(self, batch: int, heads: int) -> Mask:
        rows = torch.arange(batch) if self.rows is None else self.rows
        return self._with(rows=rows, heads=torch.arange(heads) if self.heads is None else self.heads)

    def extent(self, axis: str) -> int:
        """Returns how many rows or heads the mask distinguishes, at least 1, tried with one query and one key."""
        number = {"batch": 0, "heads": 1}.get(axis)
        if number is None or self.rows is None or self.heads is None:
            return 1
        if watched():
            return len(self.rows) if axis == "batch" else len(self.heads)
        first = torch.zeros(1, 1, dtype=torch.long)
        return self._of(first, first).shape[number]

    def allowed(self, q: Coordinates, k: Coordinates) -> Tensor:
        return self._of(q.index, k.index)

    def _of(self, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        """Calls the function with numbers [b, n] and [b, m]. Dimensions that do not matter have size 1."""
        device = q_idx.device
        count = max(q_idx.shape[0], kv_idx.shape[0])
        rows = torch.arange(count, device=device) if self.rows is None else self.rows.to(device)
        heads = torch.arange(1, device=device) if self.heads is None else self.heads.to(device)
        name = getattr(self.function, "__name__", type(self.function).__name__)
        try:
            found = mapped_over_pairs(self.function, rows, heads, q_idx, kv_idx)
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            raise HeadwayError(
                f"the mask function {name} fails for (b, h, q_idx, kv_idx), tensors without dimensions: "
                f"{str(error).partition(chr(10))[0]}"
            ) from error
        if found.ndim != 4 or found.dtype != torch.bool:
            raise HeadwayError(
                f"the mask function {name} returns {found.dtype} of shape {tuple(found.shape[4:])}: return one boolean"
            )
        return found


NONE, SOME, ALL = 0, 1, 2


@dataclass(frozen=True, eq=False)
class BlockFunction(Function):
    """A mask given as FlexAttention's ``BlockMask``, for tensors of its sizes.

    q_idx and kv_idx of its function are the numbers of queries and keys in the tensors of a call, as in FlexAttention.

    Args:
        blocks: which pairs of a block of queries and one of keys are visible, int8 [1 or batch, 1 or heads, blocks,
            blocks]: none (0), those that the function allows (1), or all (2).
        q_slots: the number of each query, [n].
        k_slots: the number of each key, [m].
        q_block: the queries in a block.
        k_block: the keys in a block.
    """

    axes = named(
        rows="batch",
        heads="heads",
        blocks="1|batch 1|heads query_blocks key_blocks",
        q_slots="queries",
        k_slots="keys",
    )

    blocks: Tensor = field(kw_only=True)
    q_slots: Tensor = field(kw_only=True)
    k_slots: Tensor = field(kw_only=True)
    q_block: int = field(kw_only=True)
    k_block: int = field(kw_only=True)

    @staticmethod
    def of(mask: Any) -> BlockFunction:
        """Returns the mask of a ``BlockMask``.

        Args:
            mask: the ``BlockMask``.
        """
        n, m = mask.seq_lengths
        q_block, k_block = mask.BLOCK_SIZE
        shape = (*mask.kv_indices.shape[:-2], -(-n // q_block), -(-m // k_block))
        blocks = torch.zeros(shape, dtype=torch.int8, device=mask.kv_indices.device)
        lists = ((mask.kv_num_blocks, mask.kv_indices, SOME), (mask.full_kv_num_blocks, mask.full_kv_indices, ALL))
        for counts, indices, kind in lists:
            if counts is None:
                continue
            listed = torch.arange(indices.shape[-1], device=indices.device) < counts[..., None]
            wide = blocks.new_zeros(*shape[:-1], shape[-1] + 1)  # a column for blocks that are not listed
            at = indices[..., : shape[-2], :].long().masked_fill(~listed[..., : shape[-2], :], shape[-1])
            blocks = torch.maximum(blocks, wide.scatter_(-1, at, kind)[..., :-1])
        blocks = blocks[(None,) * (4 - blocks.ndim)]
        q_slots, k_slots = torch.arange(n, device=blocks.device), torch.arange(m, device=blocks.device)
        return BlockFunction(
            mask.mask_mod, blocks=blocks, q_slots=q_slots, k_slots=k_slots, q_block=q_block, k_block=k_block
        )

    def check(self, batch: int, heads: int, n: int, m: int) -> None:
        """Checks that the BlockMask was made for the sizes of a call.

        Raises:
            HeadwayError: if not.
        """
        rows, of_heads = self.blocks.shape[:2]
        own = (rows, of_heads, self.q_slots.numel(), self.k_slots.numel())
        if rows not in (1, batch) or of_heads not in (1, heads) or own[2:] != (n, m):
            raise HeadwayError(
                f"the BlockMask is made for {own[0]} rows, {own[1]} heads, {own[2]} queries and {own[3]} keys and the "
                f"call has {batch}, {heads}, {n} and {m}: make one for these sizes, or give its mask_mod"
            )
        super().check(batch, heads, n, m)

    def own_sizes(self, sizes: Sizes, around: Sizes) -> dict[str, int | None]:
        """Returns the numbers of blocks."""
        blocks = (-(-self.q_slots.numel() // self.q_block), -(-self.k_slots.numel() // self.k_block))
        return dict(zip(("query_blocks", "key_blocks"), blocks, strict=True))

    def extent(self, axis: str) -> int:
        number = {"batch": 0, "heads": 1}.get(axis)
        own = 1 if number is None else self.blocks.shape[number]
        return max(own, super().extent(axis))

    def allowed(self, q: Coordinates, k: Coordinates) -> Tensor:
        found = self._of(self.q_slots[None], self.k_slots[None])
        blocks = self.blocks[:, :, self.q_slots // self.q_block][..., self.k_slots // self.k_block]
        return (blocks == ALL) | ((blocks == SOME) & found)


def is_of_flex(mask: Any) -> bool:
    """Returns whether an argument is a function, as FlexAttention takes, or a BlockMask.

    Args:
        mask: the argument.
    """
    if isinstance(mask, (Mask, Tensor, type, torch.nn.Module, str)) or mask is None:
        return False
    return callable(mask) or _is_block_mask(mask)


def _is_block_mask(mask: Any) -> bool:
    flex = sys.modules.get("torch.nn.attention.flex_attention")  # who has a BlockMask has imported it
    return flex is not None and isinstance(mask, flex.BlockMask)


def from_flex(mask: Any) -> Function:
    """Returns the mask of a function or BlockMask of FlexAttention; every ``mask`` argument also takes these directly.

        Causal() & from_flex(lambda b, h, q_idx, kv_idx: document[q_idx] == document[kv_idx])

    Args:
        mask: a function (b, h, q_idx, kv_idx), or a BlockMask.

    Raises:
        HeadwayError: for anything else, or a function of another number of arguments.
    """
    if _is_block_mask(mask):
        return BlockFunction.of(mask)
    if not is_of_flex(mask):
        raise HeadwayError(f"mask is {mask!r:.60}: give a function (b, h, q_idx, kv_idx) or a BlockMask")
    try:
        inspect.signature(mask).bind(0, 0, 0, 0)
    except (TypeError, ValueError):
        name = getattr(mask, "__name__", type(mask).__name__)
        raise HeadwayError(
            f"mask is the function {name}, which does not take four arguments: give a function (b, h, q_idx, kv_idx) "
            "that returns whether the query sees the key, or one of headway.masks"
        ) from None
    return Function(mask)
