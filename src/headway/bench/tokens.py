"""Benchmarks writing a token after others: one call of attention, a layer with a cache, and a small decoder.

The other side is what people write by hand: torch's linear maps, a rotation, ``torch.cat`` and torch's SDPA.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from ..attention import attention
from ..coordinates import Coordinates
from ..masks import Causal
from ..models import Decoder, TransformerConfig
from ..nn import KeyValueCache, MultiHeadAttention
from ..positions import PositionEncoding, RoPE
from .cases import DTYPES, ModelCase, ModelPlan
from .measure import agree, in_turn
from .rows import Row
from .sides import OURS, Run

BY_HAND = "by hand"
WRITTEN = 8
"""Tokens that a run writes one by one. The next run begins where it did."""
SIZES: dict[str, Any] = {"embed_dim": 512, "num_heads": 8, "num_kv_heads": 2}
LAYERS, VOCABULARY = 4, 256


class Rotated:
    """RoPE by hand, with tables of cosines and sines [positions, pairs]."""

    def __init__(self, rope: RoPE, n: int, dtype: torch.dtype) -> None:
        phases = torch.arange(n)[:, None] * rope.frequencies(Coordinates.span(1))
        self.cos, self.sin = phases.cos().to(dtype), phases.sin().to(dtype)

    def __call__(self, x: Tensor, start: int) -> Tensor:
        """Returns x [batch, heads, n, head_dim] rotated; its first token stands at ``start``."""
        stop = start + x.shape[2]
        cos, sin = self.cos[start:stop], self.sin[start:stop]
        a, b = x[..., ::2], x[..., 1::2]
        return torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2)


class LayerByHand:
    """An attention layer with a cache and the weights of a ``MultiHeadAttention``."""

    def __init__(self, part: MultiHeadAttention, rotate: Rotated) -> None:
        self.part, self.rotate = part, rotate
        self.keys = self.values = torch.empty(0)

    def __call__(self, x: Tensor) -> Tensor:
        """Returns the output of the tokens x [batch, n, embed_dim], which follow those in the cache."""
        part, n = self.part, x.shape[1]
        q, k, v = (
            proj(x).unflatten(-1, (-1, SIZES["embed_dim"] // SIZES["num_heads"])).transpose(1, 2)
            for proj in (part.q_proj, part.k_proj, part.v_proj)
        )
        start = self.keys.shape[2] if self.keys.ndim == 4 else 0
        q, k = self.rotate(q, start), self.rotate(k, start)
        if start:
            k, v = torch.cat([self.keys, k], 2), torch.cat([self.values, v], 2)
        self.keys, self.values = k, v
        out = F.scaled_dot_product_attention(q, k, v, is_causal=n > 1, enable_gqa=True)
        return part.out_proj(out.transpose(1, 2).flatten(2))

    def crop(self, length: int) -> None:
        """Removes all but the first tokens of the cache."""
        self.keys, self.values = self.keys[:, :, :length], self.values[:, :, :length]


class DecoderByHand:
    """A decoder with the weights of a ``Decoder``."""

    def __init__(self, decoder: Decoder, rotate: Rotated) -> None:
        self.embedding: Any = decoder.embedding
        self.norm, self.blocks = decoder.stack.norm, cast(Any, decoder.stack.blocks)
        self.layers = [LayerByHand(block.attention, rotate) for block in self.blocks]

    def __call__(self, ids: Tensor) -> Tensor:
        """Returns the logits of the tokens that follow ids [batch, n]."""
        x = self.embedding(ids)
        for block, layer in zip(self.blocks, self.layers, strict=True):
            x = x + layer(block.attention_norm(x))
            inner = block.feed_forward
            x = x + inner.down_proj(F.gelu(inner.up_proj(block.feed_forward_norm(x))))
        return F.linear(self.norm(x), self.embedding.weight)

    def crop(self, length: int) -> None:
        """Removes all but the first tokens of the caches."""
        for layer in self.layers:
            layer.crop(length)


def _call(encoding: PositionEncoding | None, n: int, dtype: torch.dtype) -> dict[str, Run]:
    """One query after another, each with n or more keys."""
    width = SIZES["embed_dim"] // SIZES["num_heads"]
    q = torch.randn(1, SIZES["num_heads"], 1, width, dtype=dtype)
    # the keys of each step are a new tensor, as torch.cat would make it
    steps = [
        tuple(torch.randn(1, SIZES["num_kv_heads"], n + i, width, dtype=dtype) for _ in range(2))
        for i in range(1, WRITTEN + 1)
    ]
    mask = Causal()
    rotate = None if encoding is None else Rotated(encoding, n + WRITTEN, dtype)  # type: ignore[arg-type]

    def by_hand(k: Tensor, v: Tensor) -> Tensor:
        if rotate is None:
            return F.scaled_dot_product_attention(q, k, v, enable_gqa=True)
        own, k = rotate(q, k.shape[2] - 1), rotate(k, 0)
        return F.scaled_dot_product_attention(own, k, v, enable_gqa=True)

    def ours(k: Tensor, v: Tensor) -> Tensor:
        return attention(q, k, v, encoding=encoding, mask=mask)

    def run(step: Callable[[Tensor, Tensor], Tensor]) -> Run:
        return lambda: [step(k, v) for k, v in steps]

    return {OURS: run(ours), BY_HAND: run(by_hand)}


def _layer(encoding: PositionEncoding | None, n: int, dtype: torch.dtype) -> dict[str, Run]:
    """A layer with a cache of n tokens, which writes some more."""
    assert isinstance(encoding, RoPE)
    layer = MultiHeadAttention(**SIZES, encoding=encoding, bias=False).to(dtype).eval()
    prompt, *xs = torch.randn(1, n + WRITTEN, SIZES["embed_dim"], dtype=dtype).split([n] + [1] * WRITTEN, 1)
    mask, cache, by_hand = Causal(), KeyValueCache(), LayerByHand(layer, Rotated(encoding, n + WRITTEN, dtype))
    layer(prompt, mask=mask, cache=cache)
    by_hand(prompt)

    def ours() -> list[Tensor]:
        cache.crop(n)
        return [layer(x, mask=mask, cache=cache) for x in xs]

    def other() -> list[Tensor]:
        by_hand.crop(n)
        return [by_hand(x) for x in xs]

    return {OURS: ours, BY_HAND: other}


def _decoder(encoding: PositionEncoding | None, n: int, dtype: torch.dtype) -> dict[str, Run]:
    """A decoder with a cache of n tokens, which writes some more."""
    assert isinstance(encoding, RoPE)
    config = TransformerConfig(VOCABULARY, num_layers=LAYERS, bias=False, embedding_scale=1.0, **SIZES)
    decoder = Decoder(config, encoding).to(dtype).eval()
    blocks: Any = decoder.stack.blocks
    for block in blocks:
        block.attention.q_proj.weight.mul_(8)  # makes attention weights, which depend on positions, far from equal
    prompt, *ids = torch.randint(VOCABULARY, (1, n + WRITTEN)).split([n] + [1] * WRITTEN, 1)
    cache, by_hand = decoder.new_cache(), DecoderByHand(decoder, Rotated(encoding, n + WRITTEN, dtype))
    decoder(prompt, cache=cache)
    by_hand(prompt)

    def ours() -> list[Tensor]:
        cache.crop(n)
        return [decoder(one, cache=cache) for one in ids]

    def other() -> list[Tensor]:
        by_hand.crop(n)
        return [by_hand(one) for one in ids]

    return {OURS: ours, BY_HAND: other}


MAKERS: dict[str, Any] = {
    "attention": (_call, False),
    "attention, RoPE": (_call, True),
    "layer, RoPE": (_layer, True),
    "decoder, RoPE": (_decoder, True),
}
"""What makes the sides of a case, and whether positions are encoded."""


@torch.no_grad()
def measure(case: ModelCase, plan: ModelPlan) -> Row:
    """Measures a case: the milliseconds of a token on each side.

    Raises:
        CheckError: if the sides compute different numbers.
    """
    make, encoded = MAKERS[case.model]
    rope = RoPE(SIZES["embed_dim"] // SIZES["num_heads"]) if encoded else None
    torch.manual_seed(0)
    runs: dict[str, Run] = make(rope, case.n, DTYPES[case.dtype])
    ours, by_hand = (runs[name]() for name in (OURS, BY_HAND))
    agree(f"headway and {BY_HAND} on {case}", case.dtype, ours, by_hand)
    milliseconds, rounds = in_turn(runs, plan.seconds, plan.rounds)
    milliseconds = {name: taken / WRITTEN for name, taken in milliseconds.items()}
    return {"rounds": rounds, "seconds": plan.seconds, "ms": milliseconds, "says": {}}
