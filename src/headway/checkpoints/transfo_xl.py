"""Transformer-XL."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .._common.devices import need_numbers
from ..coordinates import Coordinates
from ..errors import HeadwayError
from ..masks import Window
from ..models import Decoder, Stack
from ..nn import Block, Head, MultiHeadAttention
from ..nn.embedding import Product
from ..positions import TransformerXL
from ..positions._base import Input, Pair, Terms
from ..positions._formulas import normal, rates, readable
from ..terms import Clip, RelativeKeys, Rows
from ._base import Config, Family
from ._left_out import Copy, Frequencies
from ._rules import AsItIs, Fused, Rule

SMALL: dict[str, Any] = {
    "model_type": "transfo-xl",
    "vocab_size": 40,
    "cutoffs": [10, 18, 30],
    "d_model": 32,
    "d_embed": 24,
    "n_layer": 3,
    "n_head": 4,
    "d_head": 8,
    "d_inner": 48,
    "div_val": 2,
    "mem_len": 6,
    "clamp_len": 3,
}


class TransfoXL(Family):
    """A decoder that reads segment by segment, with the hidden states of earlier segments as its memory.

    Positions: sinusoids of the distance, clamped to clamp_len, projected in each layer, and two query biases. With
    same_length, a token attends to the mem_len − 1 tokens before it. ``SegmentMemory(mem_len)`` is the memory. It is
    empty at first, as in the authors' code. The memory of transformers begins with mem_len vectors of zeros, to which
    tokens attend. Rare ids have narrow embeddings. The outputs are logarithms of probabilities, those of rare ids
    within their cluster. transformers has no such models since version 5; headway reads files in the format of version
    4.

    References:
        Dai et al. 2019; Grave et al. 2017 and Baevski and Auli 2019 (embeddings and head).
    """

    architectures = {"TransfoXLModel": False, "TransfoXLLMHeadModel": True}
    examples = (
        {**SMALL, "architectures": ["TransfoXLLMHeadModel"]},
        {**SMALL, "architectures": ["TransfoXLModel"], "clamp_len": -1, "d_head": 6, "pre_lnorm": True}
        | {"same_length": False},
    )
    oracle = "golden numbers of transformers 4.57.6"
    prefix = "transformer."
    ignored = {
        "*pos_emb.inv_freq": Frequencies(sinusoids=True),
        "crit.out_layers.*.weight": Copy("embedding.tables.*"),
        "crit.out_projs.*": Copy("embedding.projections.*"),
    }

    def build(self, config: Config, *, head: bool) -> nn.Module:
        config.only("untie_r", True)
        config.only("attn_type", 0)
        config.only("tie_word_embeddings", True)
        config.only("proj_share_all_but_first", True)
        if config.get("div_val", 4) == 1:
            raise HeadwayError("the config's div_val is 1: headway reads only models with narrower vectors")
        width, heads, head_dim = config["d_model"], config["n_head"], config["d_head"]
        norm, dropout = partial(nn.LayerNorm, eps=config.get("layer_norm_epsilon", 1e-5)), config.get("dropout", 0.1)
        blocks = [
            Block(
                width,
                heads,
                feed_forward_dim=config["d_inner"],
                activation="relu",
                norm=norm,
                norm_first=config.get("pre_lnorm", False),
                dropout=dropout,
                attention=MultiHeadAttention(
                    width, heads, head_dim=head_dim, bias=False, dropout=config.get("dropatt", 0.0)
                ),
            )
            for _ in range(config["n_layer"])
        ]
        reach, sees = config.get("clamp_len", 1000), config.get("mem_len", 1600)
        kind = partial(Clamped, reach=reach) if reach > 0 else TransformerXL
        window = Window(sees - 1) if config.get("same_length", True) else None
        stack = Stack(blocks, [kind(width, heads, head_dim) for _ in blocks], [window] * len(blocks), dropout=dropout)
        embedding = AdaptiveEmbedding(
            config["vocab_size"], width, config["d_embed"], config["cutoffs"], config.get("div_val", 4)
        )
        return Decoder.of_parts(embedding, stack, AdaptiveHead(embedding) if head else None)

    def body(self, config: Config) -> tuple[Rule, ...]:
        layer, block, encoding = "layers.{}.", "stack.blocks.{}.", "stack.encodings.{}."
        projections = tuple(f"{block}attention.{name}_proj" for name in "qkv")
        return (
            Rule("word_emb.emb_layers.{}.weight", "embedding.tables.{}"),
            Rule("word_emb.emb_projs.{}", "embedding.projections.{}"),
            Rule(layer + "dec_attn.qkv_net", projections, Fused()),
            Rule(layer + "dec_attn.o_net", block + "attention.out_proj"),
            Rule(layer + "dec_attn.r_net.weight", encoding + "W_R", AsItIs(-1, config["d_model"])),
            Rule(layer + "dec_attn.r_w_bias", encoding + "u"),
            Rule(layer + "dec_attn.r_r_bias", encoding + "v"),
            Rule(layer + "dec_attn.layer_norm", block + "attention_norm"),
            Rule(layer + "pos_ff.CoreNet.0", block + "feed_forward.up_proj"),
            Rule(layer + "pos_ff.CoreNet.3", block + "feed_forward.down_proj"),
            Rule(layer + "pos_ff.layer_norm", block + "feed_forward_norm"),
        )

    def head(self, config: Config) -> tuple[Rule, ...]:
        return (
            Rule("crit.out_projs.0", "head.projections.0"),
            Rule("crit.out_layers.{}.bias", "head.biases.{}"),
            Rule("crit.cluster_weight", "head.clusters.weight"),
            Rule("crit.cluster_bias", "head.clusters.bias"),
        )


class Clamped(TransformerXL):
    """Transformer-XL's encoding with distances clamped to a reach.

        score[h,i,j] = s·( ⟨qᵢ + u_h, kⱼ⟩ + ⟨qᵢ + v_h, W_R,h·R(t)⟩ ),   t = max(0, min(reach, ⌈pᵢ − pⱼ⌉))

    For causal attention, where no distance is below 0. Shapes and errors are those of TransformerXL.
    """

    causal_only = True

    def __init__(self, embed_dim: int, num_heads: int, head_dim: int, reach: int) -> None:
        super().__init__(embed_dim, num_heads, head_dim)
        self.reach = reach

    def terms(self, q_at: Coordinates, k_at: Coordinates, q_input: Input = None, k_input: Input = None) -> Terms:
        """The terms, with ⟨q + v, W_R·R⟩ as a table by distance, from angles in float64."""
        frequencies = rates(self.embed_dim // 2, self.embed_dim, self.base, self.W_R.device)
        turns = torch.arange(self.reach, -1, -1, device=self.W_R.device)[:, None] * frequencies
        wide = self.W_R.to(torch.promote_types(self.W_R.dtype, torch.float32))
        R = torch.cat([turns.sin(), turns.cos()], dim=-1).to(wide.dtype)
        return (RelativeKeys(Rows(R @ wide.mT, Clip(-self.reach, 0)), query_bias=self.v),)

    def oracle(self, pair: Pair) -> float:
        position = pair.coordinates.position.clone()
        position[0, pair.j] = position[0, pair.i] + max(-self.reach, min(0, math.floor(pair.distance)))
        return super().oracle(replace(pair, coordinates=replace(pair.coordinates, position=position)))


class AdaptiveEmbedding(nn.Module):
    """Adaptive embeddings: ids are sorted from the most frequent to the rarest, and rarer ones have narrower tables.

    x = √embed_dim·P_c·E_c[id − cutoff_c],   c the cluster of the id,   E_c [ids of c, width / narrowing^c]
    """

    weight = None
    """There is no single table."""

    def __init__(self, vocab_size: int, embed_dim: int, width: int, cutoffs: list[int], narrowing: int) -> None:
        super().__init__()
        self.ends = [0, *cutoffs, vocab_size]
        widths = [width // narrowing**cluster for cluster in range(len(cutoffs) + 1)]
        sizes = [stop - start for start, stop in zip(self.ends, self.ends[1:], strict=False)]
        self.tables = nn.ParameterList(normal(size, narrow) for size, narrow in zip(sizes, widths, strict=True))
        self.projections = nn.ParameterList(normal(embed_dim, narrow) for narrow in widths)
        self.scale = embed_dim**0.5

    def forward(self, ids: Tensor) -> Tensor:
        """Returns the embeddings [batch, n, embed_dim] of ids, int64 [batch, n]."""
        if readable(ids) and ids.numel() and not 0 <= ids.min() <= ids.max() < self.ends[-1]:
            raise HeadwayError(f"ids go from {ids.min()} to {ids.max()}: give those from 0 to {self.ends[-1] - 1}")
        need_numbers(self, ids.device, "the adaptive embeddings")
        x = torch.zeros((), device=ids.device)
        for start, table, projection in zip(self.ends, self.tables, self.projections, strict=False):
            place = ids - start
            inside = (place >= 0) & (place < len(table))
            x = torch.where(inside[..., None], F.embedding(place.clamp(0, len(table) - 1), table) @ projection.T, x)
        return x * self.scale


class AdaptiveHead(Head):
    """Adaptive softmax: the logarithm of each id's probability, that of its cluster times that within the cluster.

        ln p(id) = ln softmax([E_0·P_0ᵀx + b_0 | C·P_0ᵀx + d])[id], or of the cluster there plus
                   ln softmax(E_c·P_cᵀx + b_c)[id − cutoff_c]

    E_c and P_c are those of the embeddings, except P_0, which is the head's own.
    """

    def __init__(self, embedding: AdaptiveEmbedding) -> None:
        first, *rest = embedding.projections
        super().__init__(first.shape[0], embedding.ends[-1], tied=True)
        self.tables = embedding.tables
        self.projections = nn.ParameterList([normal(*first.shape), *rest])
        self.biases = nn.ParameterList(torch.zeros(len(table)) for table in embedding.tables)
        self.clusters = nn.Linear(first.shape[1], len(rest))

    def forward(self, x: Tensor, embeddings: Tensor | Product | None = None) -> Tensor:
        """Returns the logarithms [..., vocab_size] for x [..., embed_dim]."""
        need_numbers(self, x.device, "the adaptive head")
        parts = zip(self.projections, self.tables, self.biases, strict=True)
        within = [F.linear(x @ projection, table, bias) for projection, table, bias in parts]
        count = len(self.tables[0])
        first = torch.cat([within[0], self.clusters(x @ self.projections[0])], dim=-1).log_softmax(-1)
        rest = [first[..., count + i, None] + part.log_softmax(-1) for i, part in enumerate(within[1:])]
        return torch.cat([first[..., :count], *rest], dim=-1)
