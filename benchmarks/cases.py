"""What is measured: every encoding of the table, at several lengths, for inference and for training."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

import headway as hw
from headway.kernels import KERNELS
from headway.positions import ENCODINGS

BATCH, HEADS, HEAD_DIM = 1, 8, 64


@dataclass(frozen=True)
class Case:
    """One call, causal, in float32."""

    encoding: str
    n: int
    training: bool

    @property
    def name(self) -> str:
        return f"{self.encoding}, n = {self.n}, {'training' if self.training else 'inference'}"


def cases(lengths: list[int]) -> list[Case]:
    """Every encoding that acts in attention, at every length, both ways."""
    names = [name for name, kind in ENCODINGS.items() if build(name).acts & {"prepare", "terms"} or name == "none"]
    return [Case(name, n, training) for name in names for n in lengths for training in (False, True)]


def build(name: str) -> hw.positions.PositionEncoding:
    sizes = {"num_heads": HEADS, "head_dim": HEAD_DIM, "embed_dim": HEADS * HEAD_DIM, "max_length": 65536}
    return hw.encoding(name, **sizes, bidirectional=False)


Side = Callable[[], object]


def sides(case: Case) -> dict[str, Side]:
    """headway's choice, each of its kernels, and the peers that can compute something comparable."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (
        torch.randn(BATCH, HEADS, case.n, HEAD_DIM, generator=generator).requires_grad_(case.training) for _ in range(3)
    )
    encoding = build(case.encoding).requires_grad_(case.training)
    causal = hw.masks.Causal()

    def timed(run: Callable[[], Tensor]) -> Side:
        def inference() -> object:
            with torch.no_grad():
                return run()

        def training() -> object:
            return run().sum().backward()

        return training if case.training else inference

    def ours(kernel: str) -> Side:
        return timed(lambda: hw.attention(q, k, v, encoding=encoding, mask=causal, kernel=kernel))

    with torch.set_grad_enabled(case.training):
        explanation = hw.explain(q, k, v, encoding=encoding, mask=causal)
    found = {"headway": ours("auto")}
    for kernel in KERNELS:
        if not explanation.reasons[kernel] and kernel != explanation.kernel:
            found[f"headway, {kernel}"] = ours(kernel)
    found["torch SDPA, causal, no encoding"] = timed(lambda: scaled_dot_product_attention(q, k, v, is_causal=True))
    bias = torch.zeros(1, HEADS, case.n, case.n).masked_fill(~torch.ones(case.n, case.n).tril().bool(), -torch.inf)
    if any(parameter.requires_grad for parameter in encoding.parameters()) and "terms" in encoding.acts:
        learned = torch.zeros(1, HEADS, case.n, case.n, requires_grad=True)
        found["torch SDPA, dense bias with its gradient"] = timed(
            lambda: scaled_dot_product_attention(q, k, v, attn_mask=learned + bias)
        )
    elif "terms" in encoding.acts:
        found["torch SDPA, dense bias"] = timed(lambda: scaled_dot_product_attention(q, k, v, attn_mask=bias))
    return found
