"""OPT."""

from __future__ import annotations

from torch import Tensor, nn

from ..models import Decoder, Stack
from ..nn import Block, Embedding, Head, MultiHeadAttention
from ..positions import Learned
from ._base import Config, Family
from ._left_out import Copy
from ._rules import After, Rule, projections


class OPT(Family):
    """A decoder with learned positions and pre-norm; the 350M model has post-norm.

    Positions: a table whose first two rows are not used; they are saved as zeros. Token embeddings of another width
    than the model's (word_embed_proj_dim, also in the 350M model) are projected before positions are added, and hidden
    states are projected back before the head.

    References:
        Zhang et al. 2022.
    """

    architectures = {"OPTModel": False, "OPTForCausalLM": True}
    examples = tuple(
        {
            "architectures": [architecture],
            "model_type": "opt",
            "vocab_size": 40,
            "hidden_size": 32,
            "ffn_dim": 48,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "max_position_embeddings": 64,
            **more,
        }
        for architecture, more in (
            ("OPTForCausalLM", {}),
            ("OPTForCausalLM", {"do_layer_norm_before": False, "word_embed_proj_dim": 20}),
            ("OPTModel", {"do_layer_norm_before": False, "word_embed_proj_dim": 20, "activation_function": "gelu"}),
            ("OPTModel", {"enable_bias": False}),
        )
    )
    prefix = "model."
    ignored = {"lm_head.weight": Copy()}

    def build(self, config: Config, *, head: bool) -> nn.Module:
        config.only("layer_norm_elementwise_affine", True)
        config.only("_remove_final_layer_norm", False)
        width, heads, first = config["hidden_size"], config["num_attention_heads"], _norm_first(config)
        narrow, bias = config.get("word_embed_proj_dim", width), config.get("enable_bias", True)
        if first:  # else both would follow the last layer
            config.only("word_embed_proj_dim", None, width)
        blocks = [
            Block(
                width,
                heads,
                norm_first=first,
                feed_forward_dim=config["ffn_dim"],
                activation=config.activation("activation_function", "relu"),
                bias=bias,
                dropout=config.get("dropout", 0.1),
                attention=MultiHeadAttention(width, heads, bias=bias, dropout=config.get("attention_dropout", 0.0)),
            )
            for _ in range(config["num_hidden_layers"])
        ]
        out = nn.LayerNorm(width) if first else nn.Linear(width, narrow, bias=False) if narrow != width else None
        stack = Stack(blocks, Learned(config["max_position_embeddings"], width), norm=out)
        embedding = Embedding(config["vocab_size"], width)
        if narrow != width:
            embedding = _Projected(config["vocab_size"], narrow, width)
        logits = Head(narrow, config["vocab_size"], tied=config.get("tie_word_embeddings", True)) if head else None
        return Decoder.of_parts(embedding, stack, logits)

    def body(self, config: Config) -> tuple[Rule, ...]:
        layer, block = "decoder.layers.{}.", "stack.blocks.{}."
        return (
            Rule("decoder.embed_tokens.weight", "embedding.weight"),
            Rule("decoder.project_in", "embedding.project"),
            Rule("decoder.embed_positions.weight", "stack.encodings.0.table", After(2)),
            Rule(layer + "self_attn_layer_norm", block + "attention_norm"),
            *projections(layer + "self_attn.", "q_proj", "k_proj", "v_proj", "out_proj"),
            Rule(layer + "final_layer_norm", block + "feed_forward_norm"),
            Rule(layer + "fc1", block + "feed_forward.up_proj"),
            Rule(layer + "fc2", block + "feed_forward.down_proj"),
            Rule("decoder.final_layer_norm" if _norm_first(config) else "decoder.project_out", "stack.norm"),
        )

    def head(self, config: Config) -> tuple[Rule, ...]:
        return (Rule("lm_head.weight", "head.weight"),)


class _Projected(Embedding):
    """Narrow embeddings and their projection to the model's width."""

    def __init__(self, vocab_size: int, narrow: int, width: int) -> None:
        super().__init__(vocab_size, narrow)
        self.project = nn.Linear(narrow, width, bias=False)

    def embed(self, ids: Tensor, types: Tensor | None = None) -> Tensor:
        out: Tensor = self.project(super().embed(ids, types))
        return out


def _norm_first(config: Config) -> bool:
    return bool(config.get("do_layer_norm_before", True))
