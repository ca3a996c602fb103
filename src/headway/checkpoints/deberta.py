"""DeBERTa, the first."""

from __future__ import annotations

from .. import positions
from ..nn import MultiHeadAttention
from ._base import Config
from ._rules import Fused, Rule
from .deberta_v2 import SMALL, DeBERTaV2, of_distances, relative

V1 = {**SMALL, "model_type": "deberta", "position_biased_input": False}


class DeBERTa(DeBERTaV2):
    """An encoder with post-norm, whose scores include content-to-position and position-to-content products.

    Positions: one table of distances for all layers, without a norm and without shared rows. Each layer projects it by
    two matrices of its own. Queries, keys and values are one matrix, grouped by head; the biases of queries and
    values are tensors of their own, and keys have none. Talking heads are not supported.

    References:
        He et al. 2021.
    """

    architectures = {"DebertaModel": False, "DebertaForMaskedLM": True}
    examples = (
        {**V1, "architectures": ["DebertaForMaskedLM"]},
        {**V1, "architectures": ["DebertaForMaskedLM"], "max_relative_positions": 4, "legacy": False},
        {**V1, "architectures": ["DebertaModel"], "position_biased_input": True, "type_vocab_size": 2}
        | {"pos_att_type": "c2p"},
    )
    biases = "qvo"

    def encoding(self, config: Config, attention: MultiHeadAttention) -> positions.DeBERTa:
        return relative(config, buckets="clip", norm=False)

    def projections(self, layer: str, config: Config) -> tuple[Rule, ...]:
        attention = "stack.blocks.{}.attention."
        fused = tuple(f"{attention}{name}_proj.weight" for name in "qkv")
        return (
            *of_distances(layer, key="pos_proj", query="pos_q_proj"),
            Rule(layer + "in_proj.weight", fused, Fused(config["num_attention_heads"])),
            Rule(layer + "q_bias", attention + "q_proj.bias"),
            Rule(layer + "v_bias", attention + "v_proj.bias"),
        )
