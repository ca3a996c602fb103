"""The Vision Transformer."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn

from ..errors import HeadwayError
from ..models import Encoder, Stack
from ..nn import Block, MultiHeadAttention
from ..positions import Learned
from ._base import Config, Family
from ._left_out import HEADS, POOLER, Unused
from ._rules import AsItIs, Rule, projections


class ViT(Family):
    """An encoder of images with pre-norm: a class token, then the patches row by row.

    Positions: a table with a row for the class token and one for each patch of an image of image_size; images of other
    sizes are refused, since the table is not interpolated. The outputs are hidden states after the last norm, that of
    the class token first. Classification heads and the pooler are not read: load such a model with
    architecture="ViTModel". Names are those of published files, which transformers renames on reading and writing.

    References:
        Dosovitskiy et al. 2021.
    """

    architectures = {"ViTModel": False}
    examples = tuple(
        {
            "architectures": ["ViTModel"],
            "model_type": "vit",
            "hidden_size": 32,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "intermediate_size": 48,
            "image_size": 12,
            "patch_size": 4,
            **more,
        }
        for more in (
            {},
            {"num_channels": 1, "patch_size": 5, "qkv_bias": False, "hidden_act": "relu", "layer_norm_eps": 0.1},
        )
    )
    prefix = "vit."
    ignored = {
        "*pooler.*": POOLER,
        "*embeddings.mask_token": Unused("the token of masked patches in training"),
        "classifier.*": HEADS,
        "decoder.*": Unused("the decoder of training on masked patches"),
    }

    def build(self, config: Config, *, head: bool) -> nn.Module:
        width, heads = config["hidden_size"], config["num_attention_heads"]
        norm = partial(nn.LayerNorm, eps=config.get("layer_norm_eps", 1e-12))
        dropout = config.get("hidden_dropout_prob", 0.0)
        blocks = [
            Block(
                width,
                heads,
                feed_forward_dim=config["intermediate_size"],
                activation=config.activation("hidden_act"),
                norm=norm,
                dropout=dropout,
                attention=MultiHeadAttention(
                    width,
                    heads,
                    bias=True if config.get("qkv_bias", True) else "o",
                    dropout=config.get("attention_probs_dropout_prob", 0.0),
                ),
            )
            for _ in range(config["num_hidden_layers"])
        ]
        patches = Patches(_two(config["image_size"]), _two(config["patch_size"]), config.get("num_channels", 3), width)
        stack = Stack(blocks, Learned(1 + patches.count, width), norm=norm(width), dropout=dropout)
        return Encoder.of_parts(patches, stack)

    def body(self, config: Config) -> tuple[Rule, ...]:
        layer, block = "encoder.layer.{}.", "stack.blocks.{}."
        width = config["hidden_size"]
        return (
            Rule("embeddings.cls_token", "embedding.first", AsItIs(1, 1, width)),
            Rule("embeddings.patch_embeddings.projection", "embedding.patch"),
            Rule("embeddings.position_embeddings", "stack.encodings.0.table", AsItIs(1, -1, width)),
            Rule(layer + "layernorm_before", block + "attention_norm"),
            *projections(layer + "attention.", "attention.query", "attention.key", "attention.value", "output.dense"),
            Rule(layer + "layernorm_after", block + "feed_forward_norm"),
            Rule(layer + "intermediate.dense", block + "feed_forward.up_proj"),
            Rule(layer + "output.dense", block + "feed_forward.down_proj"),
            Rule("layernorm", "stack.norm"),
        )


class Patches(nn.Module):
    """Splits an image into patches that do not overlap: a learned class token, and a vector for each patch.

        x = [first; W·patch + b, row by row],   count = ⌊height/patch height⌋·⌊width/patch width⌋

    Pixels on the right and below that fill no patch are ignored.
    """

    def __init__(self, image: tuple[int, int], patch: tuple[int, int], channels: int, embed_dim: int) -> None:
        super().__init__()
        self.shape = (channels, *image)
        self.count = (image[0] // patch[0]) * (image[1] // patch[1])
        self.first = nn.Parameter(torch.zeros(embed_dim))
        self.patch = nn.Conv2d(channels, embed_dim, kernel_size=patch, stride=patch)

    def forward(self, pixels: Tensor) -> Tensor:
        """Returns the vectors [batch, 1 + count, embed_dim] of pixels [batch, channels, height, width]."""
        if pixels.ndim != 4 or pixels.shape[1:] != self.shape:
            raise HeadwayError(
                f"pixels have shape {tuple(pixels.shape)}: give [batch, {', '.join(map(str, self.shape))}]"
            )
        patches: Tensor = self.patch(pixels).flatten(2).transpose(1, 2)
        return torch.cat([self.first.expand(len(pixels), 1, -1), patches], dim=1)


def _two(size: int | Sequence[int]) -> tuple[int, int]:
    """Height and width, from both or from a single number."""
    height, width = (size, size) if isinstance(size, int) else size
    return height, width
