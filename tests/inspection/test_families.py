"""Every family of checkpoints: what is captured of headway's model and of transformers' equals eager attention."""

from pathlib import Path
from typing import Any

import pytest
import torch

import headway as hw
from headway.checkpoints import FAMILIES
from headway.testing.checkpoints import inputs, their_model

pytest.importorskip("transformers")

UNSEEN = {"mpnet", "roformer", "deberta", "deberta_v2", "xlnet", "vits", "gptj", "bloom", "mpt"}
"""Families whose attention transformers computes by hand."""
UNSAID = {"vits": "it returns no attention", "falcon": "transformers returns something else under sdpa, which it keeps"}
"""Families whose attention weights transformers does not return."""

CASES = [name for name, family in FAMILIES.items() if family.oracle is None]


@pytest.mark.one_in(3)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CASES)
@torch.no_grad()
def test_weights_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    theirs = their_model(FAMILIES[name].examples[0]).eval()
    theirs.save_pretrained(tmp_path)
    ours = hw.load(tmp_path).eval()
    given = inputs(theirs)
    theirs.set_attn_implementation("eager")
    with hw.capture(ours, "weights") as seen:
        ours(*given.values())
    models: list[Any] = [seen]
    if name in UNSEEN:
        with pytest.raises(hw.HeadwayError, match="no attention was found"), hw.capture(theirs):
            theirs(**given)
    else:
        with hw.capture(theirs, "qk") as other:
            theirs(**given)
        models.append(other)
    kinds = {record.kind for record in seen.records}
    names = ["encoder_attentions", "decoder_attentions", "cross_attentions"] if "cross" in kinds else ["attentions"]
    if name in UNSAID:
        for one, same in zip(seen.attentions, models[-1].attentions, strict=True):
            torch.testing.assert_close(one, same, atol=1e-5, rtol=1e-4)
        return
    truth = theirs(**given, output_attentions=True)
    for kind in names:
        for model in models:
            for one, expected in zip(getattr(model, kind), truth[kind], strict=True):
                torch.testing.assert_close(one, expected, atol=1e-5, rtol=1e-4)
