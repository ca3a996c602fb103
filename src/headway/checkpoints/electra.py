"""ELECTRA."""

from __future__ import annotations

from ._base import SMALL, Config
from ._left_out import Copy, Counted, Unused
from ._rules import Rule
from .bert import BERT


class ELECTRA(BERT):
    """BERT with embeddings that may be narrower than the layers and are then projected after their norm.

    Generators have a head for masked tokens, whose activation is always gelu. Discriminators, whose config names
    ElectraForPreTraining, are read with architecture="ElectraModel".

    References:
        Clark et al. 2020.
    """

    architectures = {"ElectraModel": False, "ElectraForMaskedLM": True}
    examples = tuple(
        {
            "architectures": [architecture],
            "model_type": "electra",
            **SMALL,
            "max_position_embeddings": 64,
            **more,
        }
        for architecture, more in (
            ("ElectraForMaskedLM", {"embedding_size": 16, "hidden_act": "relu", "layer_norm_eps": 0.1}),
            ("ElectraForMaskedLM", {"embedding_size": 32}),
            ("ElectraModel", {}),
        )
    )
    head_activation = "gelu"
    prefix = "electra."
    ignored = {
        "*position_ids": Counted(),
        "generator_lm_head.weight": Copy(),
        "discriminator_predictions.*": Unused("the head for replaced tokens"),
    }

    def embedding_width(self, config: Config) -> int:
        width: int = config.get("embedding_size", 128)
        return width

    def head(self, config: Config) -> tuple[Rule, ...]:
        return (
            Rule("generator_predictions.dense", "head.transform.0"),
            Rule("generator_predictions.LayerNorm", "head.transform.2"),
            Rule("generator_lm_head.bias", "head.bias"),
        )
