"""RoBERTa, XLM-RoBERTa and CamemBERT."""

from __future__ import annotations

from dataclasses import replace

from torch import nn

from ._base import SMALL, Config
from ._left_out import POOLER, Copy, Counted
from ._rules import After, Rule
from .bert import BERT


class RoBERTa(BERT):
    """BERT with a table of positions that begins after the row of padding.

    Positions: the first token is at row pad_token_id + 1 of the table, so a table of 514 rows is for 512 tokens. Here
    the rows before are not read, and positions count from 0. transformers counts the tokens that are not padding by
    their ids, which is what ``Coordinates.padded`` gives for rows padded in front. If the id of padding is between
    other tokens, transformers skips it, while headway, which does not interpret ids, counts it. The tensors of the head
    have other names. Its activation is always gelu, so layers with another activation are refused if there is a head.

    References:
        Liu et al. 2019; Conneau et al. 2020 (XLM-RoBERTa); Martin et al. 2020 (CamemBERT).
    """

    architectures = {
        f"{name}{suffix}": head
        for name in ("Roberta", "XLMRoberta", "Camembert")
        for suffix, head in (("Model", False), ("ForMaskedLM", True))
    }
    examples = tuple(
        {
            "architectures": [architecture],
            "model_type": kind,
            **SMALL,
            "max_position_embeddings": 66,
            **more,
        }
        for architecture, kind, more in (
            ("RobertaForMaskedLM", "roberta", {}),
            ("XLMRobertaModel", "xlm-roberta", {"type_vocab_size": 1, "layer_norm_eps": 0.1}),
            ("XLMRobertaForMaskedLM", "xlm-roberta", {"pad_token_id": 3}),
            ("CamembertModel", "camembert", {}),
        )
    )
    prefix = "roberta."
    ignored = {
        "*pooler.*": POOLER,
        "*position_ids": Counted(),
        "lm_head.decoder.weight": Copy(),
        "lm_head.decoder.bias": Copy("head.bias"),
    }

    def build(self, config: Config, *, head: bool) -> nn.Module:
        config.only("tie_word_embeddings", True)
        if head:
            config.only("hidden_act", "gelu")
        rows = config["max_position_embeddings"] - _first(config)
        return super().build(config.replace(max_position_embeddings=rows), head=head)

    def body(self, config: Config) -> tuple[Rule, ...]:
        table = "stack.encodings.0.table"
        return tuple(
            replace(rule, change=After(_first(config))) if rule.ours == table else rule for rule in super().body(config)
        )

    def head(self, config: Config) -> tuple[Rule, ...]:
        return (
            Rule("lm_head.dense", "head.transform.0"),
            Rule("lm_head.layer_norm", "head.transform.2"),
            Rule("lm_head.bias", "head.bias"),
        )


def _first(config: Config) -> int:
    """The row of the first token."""
    return int(config.get("pad_token_id", 1)) + 1
