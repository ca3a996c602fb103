"""MPNet."""

from __future__ import annotations

from functools import partial

from torch import nn

from ..models import Encoder, Stack
from ..nn import Block, Embedding
from ..positions import T5, Compose, Learned
from ._base import SMALL, Config, Family, masked_words
from ._left_out import POOLER, Copy, Counted
from ._rules import TRANSPOSED, After, Rule, projections

PADDING = 1
"""The row of padding in the table of positions, whatever the config's pad_token_id is."""


class MPNet(Family):
    """An encoder with post-norm, learned positions and T5's bias.

    Positions: a table whose first two rows belong to no token, as in RoBERTa, and a bias by T5's 32 bidirectional
    buckets, up to a distance of 128, which all layers share. Unlike T5's, scores are divided by √head_dim. There are no
    token types. transformers does not count ids of padding between tokens, as in RoBERTa. The pooler is not read.

    References:
        Song et al. 2020; Raffel et al. 2020 (the bias).
    """

    architectures = {"MPNetModel": False, "MPNetForMaskedLM": True}
    examples = tuple(
        {
            "architectures": [architecture],
            "model_type": "mpnet",
            **SMALL,
            "max_position_embeddings": 66,
            **more,
        }
        for architecture, more in (
            ("MPNetForMaskedLM", {}),
            ("MPNetModel", {"hidden_act": "relu", "layer_norm_eps": 0.1}),
        )
    )
    prefix = "mpnet."
    ignored = {
        "*pooler.*": POOLER,
        "*position_ids": Counted(),
        "lm_head.decoder.weight": Copy(),
        "lm_head.decoder.bias": Copy("head.bias"),
    }

    def build(self, config: Config, *, head: bool) -> nn.Module:
        config.only("relative_attention_num_buckets", 32)  # transformers uses 32 whatever the config says
        config.only("tie_word_embeddings", True)
        width, heads = config["hidden_size"], config["num_attention_heads"]
        norm = partial(nn.LayerNorm, eps=config.get("layer_norm_eps", 1e-12))
        blocks = [
            Block(
                width,
                heads,
                feed_forward_dim=config["intermediate_size"],
                activation=config.activation("hidden_act"),
                norm=norm,
                norm_first=False,
                scale=(width // heads) ** -0.5,
                dropout=config.get("hidden_dropout_prob", 0.1),
            )
            for _ in range(config["num_hidden_layers"])
        ]
        stack = Stack(
            blocks,
            Compose(Learned(config["max_position_embeddings"] - PADDING - 1, width), T5(heads)),
            entry=norm(width),
            dropout=config.get("hidden_dropout_prob", 0.1),
        )
        return Encoder.of_parts(
            Embedding(config["vocab_size"], width),
            stack,
            masked_words(width, width, config["vocab_size"], "gelu", norm) if head else None,
        )

    def body(self, config: Config) -> tuple[Rule, ...]:
        layer, block, positions = "encoder.layer.{}.", "stack.blocks.{}.", "stack.encodings.0.parts."
        return (
            Rule("embeddings.word_embeddings.weight", "embedding.weight"),
            Rule("embeddings.position_embeddings.weight", positions + "0.table", After(PADDING + 1)),
            Rule("embeddings.LayerNorm", "stack.entry"),
            Rule("encoder.relative_attention_bias.weight", positions + "1.table", TRANSPOSED),
            *projections(layer + "attention.attn.", "q", "k", "v", "o"),
            Rule(layer + "attention.LayerNorm", block + "attention_norm"),
            Rule(layer + "intermediate.dense", block + "feed_forward.up_proj"),
            Rule(layer + "output.dense", block + "feed_forward.down_proj"),
            Rule(layer + "output.LayerNorm", block + "feed_forward_norm"),
        )

    def head(self, config: Config) -> tuple[Rule, ...]:
        return (
            Rule("lm_head.dense", "head.transform.0"),
            Rule("lm_head.layer_norm", "head.transform.2"),
            Rule("lm_head.bias", "head.bias"),
        )
