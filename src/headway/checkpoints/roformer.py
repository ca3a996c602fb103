"""RoFormer."""

from __future__ import annotations

from torch import nn

from ..positions import PositionEncoding, RoPE
from ._base import SMALL, Config
from ._left_out import Turns
from .bert import BERT


class RoFormer(BERT):
    """BERT with RoPE in place of the table of positions.

    Rotary pairs are (2c, 2c + 1), as in the paper and unlike most later models. Embeddings may be narrower than the
    layers and are then projected after their norm. The table of sines and cosines in the files is not read. Models that
    also rotate values (rotary_value) are refused.

    References:
        Su et al. 2021.
    """

    architectures = {"RoFormerModel": False, "RoFormerForMaskedLM": True}
    examples = tuple(
        {
            "architectures": [architecture],
            "model_type": "roformer",
            **SMALL,
            "max_position_embeddings": 64,
            **more,
        }
        for architecture, more in (
            ("RoFormerForMaskedLM", {}),
            ("RoFormerForMaskedLM", {"embedding_size": 16, "hidden_act": "relu", "layer_norm_eps": 0.1}),
            ("RoFormerModel", {"type_vocab_size": 3}),
        )
    )
    prefix = "roformer."
    ignored = {
        **BERT.ignored,
        "*encoder.embed_positions.weight": Turns(),
    }

    def build(self, config: Config, *, head: bool) -> nn.Module:
        config.only("rotary_value", False)
        # RoFormer does not use BERT's key of this name
        return super().build(config.replace(position_embedding_type="absolute"), head=head)

    def embedding_width(self, config: Config) -> int:
        width: int = config.get("embedding_size", config["hidden_size"])
        return width

    def encoding(self, config: Config) -> PositionEncoding:
        return RoPE(config["hidden_size"] // config["num_attention_heads"], layout="interleaved")
