"""Results of the CPU kernel beside those of the reference kernel in float64 and in the dtype of the call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

import headway as hw
from headway.masks import Mask
from headway.terms import Term

Terms = Callable[..., Sequence[Term]]
"""Makes the terms of a call from the tensors behind q, k and v."""


LENGTHS = [(1, 700), (3, 300), (70, 70), (260, 700)]
"""Queries and keys: few queries, which are decoded if a term allows it, one tile, and blocks over several tiles."""


def inputs_of(n: int, m: int, width: int = 16) -> list[Tensor]:
    """Draws q, k and v for 2 rows of 4 heads that share 2 heads of keys."""
    generator = torch.Generator().manual_seed(n + m)
    return [torch.randn(2, heads, tokens, width, generator=generator) for heads, tokens in ((4, n), (2, m), (2, m))]


def results(
    kernel: str, inputs: Sequence[Tensor], terms: Terms, mask: Mask | None, dropout: float = 0.0, **more: Any
) -> list[Tensor]:
    """Returns the output and the gradients of all inputs, for the same dropped weights."""
    leaves = [x.detach().requires_grad_() for x in inputs]
    q, k, v, *others = leaves
    torch.manual_seed(5)
    out = hw.attention(q, k, v, terms=terms(*others), mask=mask, dropout=dropout, kernel=kernel, **more)
    return [out.detach(), *torch.autograd.grad(out, leaves, upstream_of(out))]


def drawn(*shape: int, seed: int = 0) -> Tensor:
    """Draws numbers that every dtype has."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).bfloat16().float()


def upstream_of(out: Tensor) -> Tensor:
    return torch.linspace(-1, 1, out.numel(), dtype=torch.float64).reshape(out.shape).sin().to(out.dtype)


def agree(inputs: Sequence[Tensor], terms: Terms, mask: Mask | None, dropout: float = 0.0, **more: Any) -> list[Tensor]:
    """Checks the results of the CPU kernel, which it returns, beside the error of the reference in the dtype of q."""
    found = results("cpu", inputs, terms, mask, dropout, **more)
    naive = results("reference", [x.to(inputs[0].dtype) for x in inputs], terms, mask, dropout, **more)
    exact = results("reference", [x.double() for x in inputs], terms, mask, dropout, **more)
    for number, (x, same, right) in enumerate(zip(found, naive, exact, strict=True)):
        ulp = torch.finfo(found[0].dtype).eps * right.abs().max()
        error, allowed = ((y.double() - right).abs().amax(-1).mean() for y in (x, same))
        assert error <= 2 * allowed + 4 * ulp, f"result {number}: {error:.2e}, naive {allowed:.2e}, ulp {ulp:.2e}"
    return found


def same_for_any_threads(inputs: Sequence[Tensor], terms: Terms, mask: Mask | None) -> None:
    """Checks that results have the same bits for one, two and three threads."""
    before, found = torch.get_num_threads(), []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        found.append(results("cpu", inputs, terms, mask))
    torch.set_num_threads(before)
    assert all(torch.equal(x, y) for other in found[1:] for x, y in zip(found[0], other, strict=True))
