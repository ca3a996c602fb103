"""XLNet."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn

from ..coordinates import Coordinates
from ..errors import HeadwayError
from ..masks import AnyMask
from ..models import Encoder, Stack
from ..nn import Block, Embedding, Head, MultiHeadAttention
from ..positions import TransformerXL
from ..positions._base import Input, Pair, Terms
from ..positions._formulas import normal, readable
from ..terms import Classes, RelativeKeys, Rows
from ._base import Config, Family
from ._left_out import Copy, Unused
from ._rules import AsItIs, Change, Rule, Shape

SMALL = {
    "model_type": "xlnet",
    "vocab_size": 40,
    "d_model": 32,
    "n_layer": 3,
    "n_head": 4,
    "d_inner": 48,
}


class XLNet(Family):
    """An encoder with post-norm and the relative positions of Transformer-XL.

    Positions: sinusoids of the distance, projected in each layer, and two query biases. If token types are given, a
    third product in each layer depends on whether those of query and key are equal. Of the two streams of training,
    only the content stream is implemented. Missing are the query stream, with its vector in place of a token (mask_emb,
    neither read nor written) and generation through it, the memory, and the causal form.

    References:
        Yang et al. 2019.
    """

    architectures = {"XLNetModel": False, "XLNetLMHeadModel": True}
    examples = (
        {**SMALL, "architectures": ["XLNetLMHeadModel"]},
        {**SMALL, "architectures": ["XLNetLMHeadModel"], "tie_word_embeddings": False, "ff_activation": "relu"},
        {**SMALL, "architectures": ["XLNetModel"]},
    )
    prefix = "transformer."
    aliases = {
        "n_token": "vocab_size",
        "hidden_size": "d_model",
        "num_attention_heads": "n_head",
        "num_hidden_layers": "n_layer",
    }
    ignored = {
        "*mask_emb": Unused("the vector of masked tokens in training"),
        "lm_loss.weight": Copy(),
    }

    def build(self, config: Config, *, head: bool) -> nn.Module:
        config.only("attn_type", "bi")
        config.only("clamp_len", -1)
        config.only("bi_data", False)
        config.only("untie_r", True)
        width, heads, dropout = config["d_model"], config["n_head"], config.get("dropout", 0.1)
        norm = partial(nn.LayerNorm, eps=config.get("layer_norm_eps", 1e-12))
        blocks = [
            Block(
                width,
                heads,
                feed_forward_dim=config["d_inner"],
                activation=config.activation("ff_activation"),
                norm=norm,
                norm_first=False,
                dropout=dropout,
                attention=MultiHeadAttention(width, heads, bias=False, dropout=dropout),
            )
            for _ in range(config["n_layer"])
        ]
        stack = Stack(blocks, [Segmented(width, heads, width // heads) for _ in blocks], dropout=dropout)
        tied = config.get("tie_word_embeddings", True)
        logits = Head(width, config["vocab_size"], tied=tied, bias=True) if head else None
        return SegmentedEncoder.of_parts(Embedding(config["vocab_size"], width), stack, logits)

    def body(self, config: Config) -> tuple[Rule, ...]:
        layer, block, encoding = "layer.{}.", "stack.blocks.{}.", "stack.encodings.{}."
        width, heads = config["d_model"], config["n_head"]
        by_head = ByHead(heads)
        return (
            Rule("word_embedding.weight", "embedding.weight"),
            Rule(layer + "rel_attn.q", block + "attention.q_proj.weight", by_head),
            Rule(layer + "rel_attn.k", block + "attention.k_proj.weight", by_head),
            Rule(layer + "rel_attn.v", block + "attention.v_proj.weight", by_head),
            Rule(layer + "rel_attn.o", block + "attention.out_proj.weight", AsItIs(width, heads, width // heads)),
            Rule(layer + "rel_attn.r", encoding + "W_R", by_head),
            Rule(layer + "rel_attn.r_w_bias", encoding + "u"),
            Rule(layer + "rel_attn.r_r_bias", encoding + "v"),
            Rule(layer + "rel_attn.r_s_bias", encoding + "w"),
            Rule(layer + "rel_attn.seg_embed", encoding + "segments"),
            Rule(layer + "rel_attn.layer_norm", block + "attention_norm"),
            Rule(layer + "ff.layer_1", block + "feed_forward.up_proj"),
            Rule(layer + "ff.layer_2", block + "feed_forward.down_proj"),
            Rule(layer + "ff.layer_norm", block + "feed_forward_norm"),
        )

    def head(self, config: Config) -> tuple[Rule, ...]:
        return (Rule("lm_loss", "head"),)


@dataclass(frozen=True)
class ByHead(Change):
    """Theirs is [in, heads, head_dim], ours [heads·head_dim, in] or the same with three axes."""

    heads: int

    def shape(self, shapes: Sequence[Shape]) -> tuple[int, ...]:
        *outputs, inputs = shapes[0]
        return inputs, self.heads, math.prod(outputs) // self.heads

    def read(self, theirs: Tensor, shapes: Sequence[Shape]) -> list[Tensor]:
        return [theirs.movedim(0, -1).reshape(shapes[0])]

    def write(self, ours: Sequence[Tensor]) -> Tensor:
        return ours[0].reshape(self.heads, -1, ours[0].shape[-1]).movedim(-1, 0)


class Segmented(TransformerXL):
    """Transformer-XL's encoding, with a third product that depends on whether two tokens are in one segment.

        score[h,i,j] = s·( ⟨qᵢ + u_h, kⱼ⟩ + ⟨qᵢ + v_h, W_R,h·R(pᵢ − pⱼ)⟩ + ⟨qᵢ + w_h, G_h[cᵢ ≠ cⱼ]⟩ )

    Shape:
        positions: [batch, n, 2], p and the segment c, an integer from 0 to 4; positions of one axis omit the last
            product
        G, ``segments``: [2, num_heads, head_dim]
        The others are those of TransformerXL.
    """

    axes = None
    classes = 5
    """The two parts of a text and three special tokens, which the authors' code distinguishes."""

    def __init__(self, embed_dim: int, num_heads: int, head_dim: int) -> None:
        super().__init__(embed_dim, num_heads, head_dim)
        self.w = normal(num_heads, head_dim)
        self.segments = normal(2, num_heads, head_dim)

    def terms(self, q_at: Coordinates, k_at: Coordinates, q_input: Input = None, k_input: Input = None) -> Terms:
        """Relative keys of distances and of segments."""
        by_distance = super().terms(q_at, k_at, q_input, k_input)
        if k_at.position.shape[-1] == 1:
            return by_distance
        apart = 1 - torch.eye(self.classes, dtype=torch.long, device=self.segments.device)
        table = self.segments[apart.flatten()].transpose(0, 1)
        pairs = Classes(q_at.axis(1).long(), k_at.axis(1).long(), self.classes)
        return (*by_distance, RelativeKeys(Rows(table, pairs), query_bias=self.w))

    def oracle(self, pair: Pair) -> float:
        if pair.coordinates.position.shape[-1] == 1:
            return super().oracle(pair)
        segment = self.segments[int(pair.at(pair.i, 1) != pair.at(pair.j, 1)), pair.h].double()
        return super().oracle(pair) + pair.scale * ((pair.query + self.w[pair.h].double()) @ segment).item()


class SegmentedEncoder(Encoder):
    """An encoder whose layers read the token types, as a second axis of the positions."""

    def hidden(
        self,
        ids: Tensor,
        *,
        types: Tensor | None = None,
        positions: Tensor | Coordinates | None = None,
        mask: AnyMask = None,
    ) -> Tensor:
        """Returns the hidden states [batch, n, embed_dim] of token ids; ``types`` are 0 to 4, int64 [batch, n]."""
        if types is not None:
            if types.shape != ids.shape or types.is_floating_point():
                raise HeadwayError(
                    f"types are {types.dtype} {list(types.shape)}: give an int64 for each of the ids {list(ids.shape)}"
                )
            last = Segmented.classes - 1
            if readable(types) and types.numel() and not 0 <= types.min() <= types.max() <= last:
                raise HeadwayError(f"types go from {types.min()} to {types.max()}: give integers from 0 to {last}")
            n = ids.shape[1]
            at = Coordinates.span(n, device=ids.device) if positions is None else Coordinates.of(positions, n)
            both = [at.position.expand(len(types), -1, -1), types[..., None]]
            positions = replace(at, position=torch.cat(both, dim=-1))
        return super().hidden(ids, positions=positions, mask=mask)
